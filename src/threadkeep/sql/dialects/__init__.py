"""The dialect hooks. This is the only place that knows SQLAlchemy's names for the dialects."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep.sql.dialects.base import Failure, Hooks, NoShortcutError, Shortcut
from threadkeep.sql.dialects.mysql import MySQLHooks
from threadkeep.sql.dialects.postgresql import PostgreSQLHooks
from threadkeep.sql.dialects.sqlite import SQLiteHooks

__all__ = ["MYSQL", "POSTGRESQL", "SQLITE", "Failure", "Hooks", "NoShortcutError", "Shortcut", "hooks_of"]

SQLITE = SQLiteHooks()
POSTGRESQL = PostgreSQLHooks()
MYSQL = MySQLHooks()

_BY_NAME: dict[str, Hooks] = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL}


def hooks_of(dialect: sa.Dialect) -> Hooks:
    """The hooks of a dialect, or ValueError."""
    try:
        return _BY_NAME[dialect.name]
    except KeyError:
        raise ValueError(f"Threadkeep does not run on {dialect.name}: it needs {', '.join(_BY_NAME)}") from None
