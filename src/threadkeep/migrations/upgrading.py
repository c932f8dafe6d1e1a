"""Bringing a database to the newest schema, from Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncEngine

from threadkeep.errors import CubepiSchemaMismatch
from threadkeep.sql import engines
from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.gate import check_schema
from threadkeep.sql.tables import SCHEMA_VERSION
from threadkeep.urls import Backend, split_url, sqlite_path

T = TypeVar("T")

_LOCK_TIMEOUT = 60.0
_HERE = Path(__file__).parent
_OF_CUBEPI = 3

# Alembic keeps its context in module globals: in one process, one command at a time.
_alembic = Lock()


def alembic_config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration for our revisions, wherever the package is installed."""
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade_connection(conn: sa.Connection) -> None:
    """Bring the database to head, in the caller's transaction where the server's DDL has them.

    A newer schema that is open to this library is left as it is. One that is not raises CubepiSchemaMismatch.
    """
    config = alembic_config(conn)
    with hooks_of(conn.dialect).migrating(conn):
        if _made_by_a_newer_release(conn, config):
            check_schema(conn, hooks_of(conn.dialect))
        else:
            try:
                command.upgrade(config, "head")
            except NotImplementedError as error:
                raise CubepiSchemaMismatch(SCHEMA_VERSION, _OF_CUBEPI, str(error)) from None


def _made_by_a_newer_release(conn: sa.Connection, config: Config) -> bool:
    from threadkeep.migrations.environment import VERSION_TABLE

    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    there = MigrationContext.configure(conn, opts={"version_table": VERSION_TABLE}).get_current_heads()
    return not known.issuperset(there)


async def upgrade(url_or_engine: str | AsyncEngine) -> None:
    """Bring a database to the newest schema. Does nothing to one that is there; two at once both succeed."""
    async with one_at_a_time():
        await on_connection(url_or_engine, upgrade_connection)


@asynccontextmanager
async def one_at_a_time() -> AsyncIterator[None]:
    """Wait until no other task or thread of this process runs an Alembic command."""
    # Taken without blocking: the holder may be a task of this very loop.
    while not _alembic.acquire(blocking=False):  # noqa: ASYNC110 - the holder may be on another thread's loop
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        _alembic.release()


async def on_connection(url_or_engine: str | AsyncEngine, work: Callable[[sa.Connection], T]) -> T:
    """Run work on a connection, in a transaction that is committed if it ends well."""
    if isinstance(url_or_engine, AsyncEngine):
        async with url_or_engine.begin() as conn:
            return await conn.run_sync(work)
    backend, rest = split_url(url_or_engine)
    match backend:
        case Backend.POSTGRESQL:
            engine = engines.postgresql_engine(url_or_engine, **engines.MIGRATING)
        case Backend.MYSQL:
            engine = engines.mysql_engine(url_or_engine, lock_timeout=_LOCK_TIMEOUT, **engines.MIGRATING)
        case Backend.SQLITE:
            return await asyncio.to_thread(_on_sqlite, sqlite_path(rest), work)
        case Backend.MEMORY:
            raise ValueError("memory:// has no schema to upgrade")
    try:
        async with engine.begin() as conn:
            return await conn.run_sync(work)
    finally:
        await engine.dispose()


def _on_sqlite(path: str, work: Callable[[sa.Connection], T]) -> T:
    with engines.sqlite_engine(path).begin() as conn:
        return work(conn)
