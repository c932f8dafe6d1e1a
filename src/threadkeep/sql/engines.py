"""Engines of our own, made from a DSN."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from threadkeep.sql.prepared import OWN_ENGINE
from threadkeep.sql.sqlite_file import connect
from threadkeep.urls import Backend, split_url

_POOL_TIMEOUT = 30
_UPGRADE_LOCK_TIMEOUT = 60

OPERATING: dict[str, Any] = {
    "isolation_level": "AUTOCOMMIT",
    "skip_autocommit_rollback": True,
    "execution_options": OWN_ENGINE,
}
"""For operations: a read is one round trip, and a write begins and ends its transaction itself."""
MIGRATING: dict[str, Any] = {"poolclass": sa.NullPool}
"""For upgrades: one connection, with transactions as SQLAlchemy manages them."""


def pool_of(size: int) -> dict[str, Any]:
    """A pool that keeps up to `size` connections and opens no more."""
    return {"pool_size": size, "max_overflow": 0, "pool_timeout": _POOL_TIMEOUT}


def postgresql_engine(dsn: str, **options: Any) -> AsyncEngine:
    """An engine on asyncpg, which reads the DSN itself: `sslmode`, several hosts and PG* variables all work."""
    import asyncpg

    rest = _after_scheme(dsn, Backend.POSTGRESQL)

    async def open_connection() -> Any:
        with suppress(ValueError):
            return await asyncpg.connect(f"postgresql://{rest}")
        # Not from the driver's error, not even as its context: its words may hold a piece of the password.
        raise _unreadable("postgresql://user:password@host:5432/database")

    return create_async_engine("postgresql+asyncpg://", async_creator=open_connection, hide_parameters=True, **options)


def sqlite_engine(path: str) -> sa.Engine:
    """A synchronous engine on one SQLite file, whose transactions begin when we say so."""
    return sa.create_engine(
        "sqlite://", creator=lambda: connect(path, _UPGRADE_LOCK_TIMEOUT), hide_parameters=True, **MIGRATING
    )


def mysql_engine(dsn: str, *, lock_timeout: float, **options: Any) -> AsyncEngine:
    """An engine on asyncmy, for MySQL and MariaDB."""
    rest = _after_scheme(dsn, Backend.MYSQL)
    try:
        url = make_url(f"mysql+asyncmy://{rest}")
    except (ArgumentError, ValueError):
        url = None
    if url is None or "@" in (url.host or ""):
        raise _unreadable("mysql://user:password@host:3306/database")
    from asyncmy.constants import CLIENT

    # Whatever the DSN says: in gbk or big5 a byte of a message takes the backslash before a quote for its second half.
    url = url.update_query_dict({"charset": "utf8mb4"})
    # The first is SQLAlchemy's own, which is lost if another is named. The second is for shortcuts.
    flags = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
    engine = create_async_engine(url, hide_parameters=True, connect_args={"client_flag": flags}, **options)
    # READ COMMITTED: gap locks would make writers of different threads wait for each other, and deadlock.
    # Strict mode: a server without it would cut off a value that does not fit, and store the rest. No other mode: where
    # backslashes do not escape, the driver's literals of bytes end where a message says so, and in ORACLE's nothing is
    # what it was. A COMMIT begins nothing new, no limit hides rows, and no UPDATE is refused for having no key.
    settings = (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        # For rows, and for whole tables.
        f"SET SESSION innodb_lock_wait_timeout = {max(1, math.ceil(lock_timeout))},"
        f" lock_wait_timeout = {max(1, math.ceil(lock_timeout))}",
        # MySQL warns of strict mode without the three after it.
        "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
        "NO_ENGINE_SUBSTITUTION', default_storage_engine = InnoDB,"
        " completion_type = 0, sql_select_limit = DEFAULT, sql_safe_updates = 0,"
        # Also if a DSN's init_command has said otherwise.
        " character_set_client = utf8mb4, character_set_connection = utf8mb4, character_set_results = utf8mb4",
    )

    # First of all: SQLAlchemy looks, too, how quotes are to be written.
    @sa.event.listens_for(engine.sync_engine, "connect", insert=True)
    def set_up(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(setting)
        cursor.close()

    return engine


def _unreadable(example: str) -> ValueError:
    return ValueError(
        f"the URL, or a parameter after its ?, cannot be read: write {example},"
        " with %40 for an @ in the password, %2F for a /"
    )


def _after_scheme(dsn: str, expected: Backend) -> str:
    backend, rest = split_url(dsn)
    if backend is not expected:
        raise ValueError(f"the URL must start with {expected.value}://")
    return rest
