"""The whole truth about PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from threadkeep.errors import CheckpointerError
from threadkeep.sql.dialects import postgresql_groups, postgresql_rows, postgresql_shortcuts
from threadkeep.sql.dialects.base import Failure, Hooks, Shortcut
from threadkeep.sql.prepared import Insert, Prepared, Row

_UPGRADE_LOCK = 0x7468726561646B  # "threadk"


_BOUND_WAITS = Prepared(sa.select(sa.func.set_config("lock_timeout", sa.bindparam("limit", type_=sa.Text), sa.true())))


def _require_unicode(conn: sa.Connection) -> None:
    encoding = conn.exec_driver_sql("SELECT current_setting('server_encoding')").scalar_one()
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise CheckpointerError(
            f"the database's encoding is {encoding}, in which not every text can be stored: make one with"
            " ENCODING 'UTF8'"
        )


class PostgreSQLHooks(Hooks):
    """Everything is the default, but for shortcuts, lock timeouts and error codes."""

    insert = staticmethod(postgresql.insert)
    shortcuts: ClassVar = {
        "append": Shortcut(postgresql_shortcuts.append, together=postgresql_groups.append_each),
        "claim_run": Shortcut(postgresql_shortcuts.claim_run, together=postgresql_groups.claim_each),
        "mark_run_complete": Shortcut(postgresql_shortcuts.mark_run_complete, together=postgresql_groups.complete_each),
        "save_extra": Shortcut(postgresql_shortcuts.save_extra, together=postgresql_groups.save_each),
    }
    error_aborts = True
    failures: ClassVar = {
        "55P03": Failure.LOCK_TIMEOUT,
        "40001": Failure.CONFLICT,
        "40P01": Failure.CONFLICT,
        "23505": Failure.DUPLICATE,
        "42P01": Failure.MISSING_TABLE,
        "42501": Failure.DENIED,
        # The server ends the session: an administrator's word, a crash, a shutdown, an idle limit.
        "57P01": Failure.DISCONNECT,
        "57P02": Failure.DISCONNECT,
        "57P03": Failure.DISCONNECT,
        "57P05": Failure.DISCONNECT,
        "08003": Failure.DISCONNECT,
        "08006": Failure.DISCONNECT,
    }

    def begin(self, conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")  # whatever the database's default is

    def bound_waits(self, conn: sa.Connection, lock_timeout: float) -> None:
        # For this transaction alone: behind PgBouncer a session's settings would be somebody else's.
        _BOUND_WAITS.rows(conn, {"limit": self.lock_limit(lock_timeout)})

    def lock_limit(self, lock_timeout: float) -> str:
        return f"{max(1, round(lock_timeout * 1000))}ms"

    def is_closed(self, conn: sa.Connection) -> bool:
        driver: Any = conn.connection.driver_connection
        return bool(driver.is_closed())

    def was_never_sent(self, error: DBAPIError) -> bool:
        # The server's farewell has been read, the end of the connection not yet. It has no code, and its class has
        # other meanings.
        return "cannot switch to state" in str(error.orig)

    def clock(self, *, after: float = 0) -> sa.ColumnElement[Any]:
        # now() stands still within a transaction.
        return sa.func.clock_timestamp() + sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.cast(after, sa.Double))

    def max_value_bytes(self, conn: sa.Connection) -> int:
        _require_unicode(conn)
        return super().max_value_bytes(conn)

    def insert_some(self, conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
        postgresql_rows.insert_rows(conn, into, rows)

    def code(self, error: DBAPIError) -> Any:
        return "08003" if self.was_never_sent(error) else getattr(error.orig, "sqlstate", None)

    @contextmanager
    def migrating(self, conn: sa.Connection) -> Iterator[None]:
        self.join(conn)  # in autocommit mode there is no transaction to roll back, or to hold the lock
        _require_unicode(conn)
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))  # as long as another upgrade takes
        self.bound_waits(conn, self.migration_lock_timeout)
        yield
