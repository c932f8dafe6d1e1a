"""`open_checkpointer`: the right class for a URL."""

from __future__ import annotations

from typing import Any

from threadkeep.memory import MemoryCheckpointer
from threadkeep.sql.checkpointer import (
    MySQLCheckpointer,
    PostgresCheckpointer,
    SQLCheckpointer,
    SQLiteCheckpointer,
)
from threadkeep.urls import Backend, split_url, sqlite_path


def open_checkpointer(url: str, **options: Any) -> MemoryCheckpointer | SQLCheckpointer:
    """The checkpointer for a URL, to be used with `async with`. Options are those of its class.

    `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory), `postgresql://…`,
    `mysql://…` or `mariadb://…`.
    """
    backend, rest = split_url(url)
    match backend:
        case Backend.MEMORY:
            return MemoryCheckpointer(**options)
        case Backend.SQLITE:
            return SQLiteCheckpointer(sqlite_path(rest), **options)
        case Backend.POSTGRESQL:
            return PostgresCheckpointer(url, **options)
        case Backend.MYSQL:
            return MySQLCheckpointer(url, **options)
