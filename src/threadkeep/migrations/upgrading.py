"""Bringing a database to the newest schema, from Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Protocol, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from threadkeep.errors import CheckpointerLockTimeoutError, CubepiSchemaError, CubepiSchemaMismatch
from threadkeep.migrations.environment import VERSION_TABLE
from threadkeep.migrations.rights import missing_rights
from threadkeep.sql import engines
from threadkeep.sql.dialects import Failure, Hooks, hooks_of
from threadkeep.sql.gate import check_schema, is_ours
from threadkeep.sql.tables import SCHEMA_VERSION, schema_version
from threadkeep.urls import Backend, split_url, sqlite_path

T = TypeVar("T")

_HERE = Path(__file__).parent

# Alembic keeps its context in module globals: in one process, one command at a time.
_alembic = Lock()


class Progress(Protocol):
    """Whom an upgrade tells how far it is."""

    def __call__(self, step: str, done: int, total: int, within: bool) -> None:
        """The step that begins, of how many; or, `within` it, how many of its rows are done."""


def alembic_config(
    connection: sa.Connection | None = None, *, rename_ids: bool = False, progress: Progress | None = None
) -> Config:
    """Alembic's configuration for our revisions, wherever the package is installed."""
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    config.attributes.update(connection=connection, rename_ids=rename_ids, progress=progress)
    return config


def upgrade_connection(
    conn: sa.Connection, *, rename_ids: bool = False, progress: Progress | None = None
) -> dict[str, str]:
    """Bring the database to head, in the caller's transaction where the server's DDL has them.

    A newer schema that is open to this library is left as it is. What cannot be brought there raises CubepiSchemaError,
    before anything is changed.
    """
    config = alembic_config(conn, rename_ids=rename_ids, progress=progress)
    scripts = ScriptDirectory.from_config(config)
    with _explained(conn), hooks_of(conn.dialect).migrating(conn):
        if _has_left_our_hands(conn, scripts):
            return {}
        renamed = preflight(conn, scripts, rename_ids=rename_ids)
        config.attributes["is_checked"] = True
        command.upgrade(config, "head")
        return renamed


def preflight(conn: sa.Connection, scripts: ScriptDirectory, *, rename_ids: bool) -> dict[str, str]:
    """Ask each revision that is to come whether it can do its work here. Returns which ids it will rename, and to what.

    Before Alembic begins: on MySQL even its version table stays once it is made.
    """
    renamed: dict[str, str] = {}
    to_come = _to_come(conn, scripts)
    for script in to_come:
        if hasattr(script.module, "preflight"):
            renamed |= script.module.preflight(conn, rename_ids=rename_ids)
    if to_come and (missing := missing_rights(conn)):
        raise CubepiSchemaError(
            "this account may not change the tables: run the upgrade with one that may."
            f" It lacks {', '.join(missing)} on this database. Nothing was changed"
        )
    return renamed


def renamed_id(old: str) -> str:
    """What `rename_ids` makes of an id that is not allowed: for hosts that keep such ids in tables of their own."""
    new: str = ScriptDirectory.from_config(alembic_config()).get_revision("threadkeep_v4").module.renamed(old)
    return new


def _to_come(conn: sa.Connection, scripts: ScriptDirectory) -> list[Script]:
    heads = _revisions_of(conn).get_current_heads()
    return list(reversed(list(scripts.iterate_revisions("head", heads or "base"))))


def _revisions_of(conn: sa.Connection) -> MigrationContext:
    return MigrationContext.configure(conn, opts={"version_table": VERSION_TABLE})


def _has_left_our_hands(conn: sa.Connection, scripts: ScriptDirectory) -> bool:
    """Whether a newer release has been here, or the tables are ours but under a host's own Alembic.

    Then they must be open to this library as they are, or CubepiSchemaMismatch is raised.
    """
    there = _revisions_of(conn).get_current_heads()
    if there and {script.revision for script in scripts.walk_revisions()}.issuperset(there):
        return False
    if not there and not is_ours(conn):
        return False
    try:
        check_schema(conn, hooks_of(conn.dialect))
    except CubepiSchemaMismatch as mismatch:
        if there or mismatch.actual > SCHEMA_VERSION:
            raise
        hint = "a host's own Alembic history keeps these tables: run its 'alembic upgrade heads'"
        raise CubepiSchemaMismatch(SCHEMA_VERSION, mismatch.actual, hint) from None
    return True


@contextmanager
def _explained(conn: sa.Connection) -> Iterator[None]:
    """A revision that refuses, and a server that does, as an error of ours."""
    try:
        yield
    except ValueError as refusal:
        raise CubepiSchemaMismatch(SCHEMA_VERSION, schema_of_cubepi(conn) or 0, str(refusal)) from None
    except DBAPIError as error:
        match hooks_of(conn.dialect).classify(error):
            case Failure.DENIED:
                raise CubepiSchemaError(
                    f"this account may not change the tables: run the upgrade with one that may ({error.orig})"
                ) from error
            case Failure.LOCK_TIMEOUT:
                raise CheckpointerLockTimeoutError(
                    "somebody else has used the tables for too long: run the upgrade again when they have finished"
                ) from error
        raise


def schema_of_cubepi(conn: sa.Connection) -> int | None:
    """The number of cubepi's schema, where the tables are its own. In a SQLite file its tables tell it."""
    seen = sa.inspect(conn)
    if seen.has_table(schema_version.name) and not is_ours(conn):
        return conn.execute(sa.select(sa.func.max(schema_version.c.version))).scalar()
    if not seen.has_table("messages") or "message_json" not in {col["name"] for col in seen.get_columns("messages")}:
        return None
    if seen.has_table("thread_hitl_answers"):
        return 5
    runs = seen.get_columns("runs") if seen.has_table("runs") else []
    return 4 if "completion_seq" in {column["name"] for column in runs} else 3


def upgrade_with(op: Operations | ModuleType, *, rename_ids: bool = False) -> None:
    """Bring our tables to head from within a revision of the host's: `upgrade_with(op)`, with its `alembic.op`.

    It runs on the host's connection and in its transaction, and prints a script where the host does (`--sql`), for a
    database without our tables. Our own version table records it, so the host's history keeps its one head.
    """
    context = op.get_context()
    scripts = ScriptDirectory.from_config(alembic_config())
    context.opts["rename_ids"] = rename_ids
    if context.as_sql:
        if not context.opts.get("threadkeep_is_printed"):  # by an earlier revision of the host's, in the same script
            _print(op, scripts)
            context.opts["threadkeep_is_printed"] = True
        return
    conn = op.get_bind()
    with _explained(conn), hooks_of(conn.dialect).migrating(conn):
        if _has_left_our_hands(conn, scripts):
            return
        preflight(conn, scripts, rename_ids=rename_ids)
        context.opts["is_checked"] = True
        for script in _to_come(conn, scripts):
            script.module.upgrade()
            _revisions_of(conn).stamp(scripts, script.revision)


def _print(op: Operations | ModuleType, scripts: ScriptDirectory) -> None:
    # As Alembic would make it: it makes its own only where it connects.
    version = sa.Column("version_num", sa.String(32), nullable=False)
    table = op.create_table(VERSION_TABLE, version, sa.PrimaryKeyConstraint(version, name=f"{VERSION_TABLE}_pkc"))
    for script in reversed(list(scripts.walk_revisions())):
        script.module.upgrade()
    op.execute(sa.insert(table).values(version_num=scripts.get_current_head()))


async def upgrade(
    url_or_engine: str | AsyncEngine, *, rename_ids: bool = False, progress: Progress | None = None
) -> dict[str, str]:
    """Bring a database to the newest schema. Does nothing to one that is there; two at once both succeed.

    One that cubepi wrote is taken over in place. If it has ids that are not allowed here, they are listed and nothing
    is changed, unless `rename_ids` says to rename them. Returns the old and the new names of those that were.
    """

    def work(conn: sa.Connection) -> dict[str, str]:
        return upgrade_connection(conn, rename_ids=rename_ids, progress=progress)

    async with one_at_a_time():
        return await on_connection(url_or_engine, work)


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
            engine = engines.mysql_engine(url_or_engine, lock_timeout=Hooks.migration_lock_timeout, **engines.MIGRATING)
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
