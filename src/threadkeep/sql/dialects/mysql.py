"""The whole truth about MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from threadkeep import rules
from threadkeep.errors import CheckpointerError, CheckpointerLockTimeoutError
from threadkeep.sql.dialects import mysql_groups, mysql_rows, mysql_shortcuts
from threadkeep.sql.dialects.base import Failure, Fresh, Hooks, Shortcut, as_it_is
from threadkeep.sql.dialects.mysql_shortcuts import NEXT_COMPLETION_SEQ, UPSERT
from threadkeep.sql.parameters import NOW, THREAD
from threadkeep.sql.prepared import Insert, Prepared, Row, is_own
from threadkeep.sql.tables import threads

_DRIVER_ROW_LIMIT = 16 * 1024 * 1024 - 64 * 1024
"""asyncmy 0.2.17 loses rows of 16 MiB and more."""
_PACKET_OVERHEAD = 1024 * 1024 + 256 * 1024
"""The statement around a value, the metadata mirror, and the batch that asyncmy fills before it sends."""
_UPGRADE_LOCK_SECONDS = 600
_NO_BACKSLASH_ESCAPES = 0x200
"""That mode in the status that a server sends with every answer."""
_UNSAFE_MODE = (
    "the connection's sql_mode has NO_BACKSLASH_ESCAPES, in which asyncmy does not quote bytes safely: make the"
    " engine's connections without it"
)


_NAMED = (threads.c.thread_id, threads.c.deleted_at.label("deleted"))
_TOUCH = sa.update(threads).where(threads.c.thread_id == THREAD, threads.c.deleted_at.is_(None)).values(updated_at=NOW)


def _locking_read(statement: sa.Select[Any]) -> sa.Select[Any]:
    return statement.with_for_update(read=True)


@cache
def _locking(*columns: Any) -> sa.Select[Any]:
    return sa.select(*columns).where(threads.c.thread_id == THREAD).with_for_update()


@cache
def _read(*columns: sa.Column[Any]) -> Prepared:
    return Prepared(_locking(*columns))


@cache
def _insert(table: sa.Table, *columns: str) -> Prepared:
    return Prepared(sa.insert(table), columns)


def _require_utf8mb4(*charsets: str) -> None:
    for charset in charsets:
        if charset != "utf8mb4":
            raise CheckpointerError(
                f"the connection's character set is {charset}: not every text can be said in it, and asyncmy may not"
                " quote bytes safely: make the engine's connections with charset=utf8mb4"
            )


class MySQLHooks(Hooks):
    """No RETURNING: LAST_INSERT_ID(n) carries the allocated number back in the reply to the upsert itself."""

    insert = staticmethod(mysql.insert)
    shortcuts: ClassVar = {
        "append": Shortcut(mysql_shortcuts.append, together=mysql_groups.append_each),
        "claim_run": Shortcut(mysql_shortcuts.claim_run),
        "mark_run_complete": Shortcut(mysql_shortcuts.mark_run_complete),
        "save_extra": Shortcut(mysql_shortcuts.save_extra),
    }
    interruptible_shortcuts = False
    failures: ClassVar = {
        0: Failure.DISCONNECT,  # the driver itself: a call on this connection was cancelled half way
        1205: Failure.LOCK_TIMEOUT,
        1213: Failure.CONFLICT,
        1020: Failure.CONFLICT,  # MariaDB's innodb_snapshot_isolation
        1062: Failure.DUPLICATE,
        1146: Failure.MISSING_TABLE,
        1044: Failure.DENIED,
        1142: Failure.DENIED,
        1053: Failure.DISCONNECT,
        1317: Failure.DISCONNECT,  # KILL QUERY and KILL during a statement look alike
        1927: Failure.DISCONNECT,
        2006: Failure.DISCONNECT,
        2013: Failure.DISCONNECT,
        4031: Failure.DISCONNECT,
    }

    def is_closed(self, conn: sa.Connection) -> bool:
        driver: Any = conn.connection.driver_connection
        # Its own `connected` stays true until it is used. Without the attribute the connection is asked a little later.
        transport = getattr(driver, "_transport", None)
        return transport is not None and bool(transport.is_closing())

    def forget_rows(self, conn: sa.Connection) -> None:
        driver: Any = conn.connection.driver_connection
        if getattr(driver, "_result", None) is not None:
            driver._result = None  # a whole thread, for as long as the connection is idle

    def join(self, conn: sa.Connection) -> None:
        super().join(conn)
        driver: Any = conn.connection.driver_connection
        # Of any engine: one that was never looked at on entry.
        _require_utf8mb4(getattr(driver, "_charset", "utf8mb4"))
        if getattr(driver, "server_status", 0) & _NO_BACKSLASH_ESCAPES:
            raise CheckpointerError(_UNSAFE_MODE)

    def start(self, conn: sa.Connection) -> None:
        super().start(conn)
        conn.exec_driver_sql("DO 0")  # SQLAlchemy sends no BEGIN: a dead connection shows here, before the write

    def lock_or_create(
        self, conn: sa.Connection, thread_id: str, now: datetime, *columns: sa.Column[Any]
    ) -> Sequence[Any]:
        self.allocate(conn, thread_id, 0, now)
        return _read(*columns).row(conn, {"thread": thread_id}) or () if columns else ()

    def lock(self, conn: sa.Connection, thread_id: str, now: datetime, *columns: sa.Column[Any]) -> Any | None:
        if conn.execute(_TOUCH, {"thread": thread_id, "now": now}).rowcount == 0:
            return self.lock_unchanged(conn, thread_id, *columns)  # there is none, or it was deleted softly
        return self._read_locked(conn, thread_id, *columns)

    def lock_unchanged(
        self, conn: sa.Connection, thread_id: str, *columns: sa.Column[Any], even_deleted: bool = False
    ) -> Any | None:
        row = conn.execute(_locking(*_NAMED, *columns), {"thread": thread_id}).one_or_none()
        if row is not None and not even_deleted:
            rules.refuse_deleted(thread_id, row.deleted)
        return row

    def fresh_on(self, conn: sa.Connection) -> Fresh:
        # A host's transaction may have an older snapshot: the lock lets it pass, and plain reads believe it. On engines
        # of ours there is none.
        return as_it_is if is_own(conn) else _locking_read

    def allocate(self, conn: sa.Connection, thread_id: str, count: int, now: datetime) -> int:
        last_seq = UPSERT.lastrowid(conn, {"thread": thread_id, "count": count, "now": now})
        if last_seq == 0:
            self.lock_unchanged(conn, thread_id)  # it is empty, or was deleted softly
        if last_seq < count:
            raise CheckpointerError("the server has answered something else: does another task use this connection?")
        return last_seq

    def next_completion_seq(self, conn: sa.Connection, thread_id: str, now: datetime) -> int | None:
        completion_seq = NEXT_COMPLETION_SEQ.lastrowid(conn, {"thread": thread_id, "now": now})
        if completion_seq == 0:
            self.lock_unchanged(conn, thread_id)  # there is none, or it was deleted softly
        return completion_seq or None

    def _read_locked(self, conn: sa.Connection, thread_id: str, *columns: sa.Column[Any]) -> Any:
        if not columns:
            return (thread_id,)
        return conn.execute(_locking(*columns), {"thread": thread_id}).one()

    def clock(self, *, after: float = 0) -> sa.ColumnElement[Any]:
        # UTC_TIMESTAMP is when the statement began, before it waited for a lock. SYSDATE runs, in the session's zone.
        later = sa.literal_column("TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))", sa.BigInteger) + round(after * 1e6)
        return sa.func.timestampadd(sa.text("MICROSECOND"), later, sa.func.utc_timestamp(6))

    def insert_if_absent(self, conn: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
        # INSERT IGNORE would forgive more than a taken key; this error ends only the statement, not the transaction.
        try:
            _insert(table, *row).count(conn, row)
        except DBAPIError as error:
            if self.classify(error) is Failure.DUPLICATE:
                return False
            raise
        return True

    def insert_some(self, conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
        if is_own(conn):
            mysql_rows.insert_rows(conn, into, rows)
        else:
            into.each(conn, rows)

    def put(self, conn: sa.Connection, table: sa.Table, row: dict[str, Any]) -> None:
        statement = self.insert(table).values(row)
        # Named, not bound again: a value that travels twice would not fit where it fits once.
        changes = {name: statement.inserted[name] for name in row if not table.c[name].primary_key}
        conn.execute(statement.on_duplicate_key_update(changes))

    def code(self, error: DBAPIError) -> Any:
        return error.orig.args[0] if error.orig and error.orig.args else None

    def max_value_bytes(self, conn: sa.Connection) -> int:
        asked = "SELECT @@max_allowed_packet, @@sql_mode, @@character_set_client, @@character_set_connection"
        packet, mode, *charsets = conn.exec_driver_sql(asked).one()
        _require_utf8mb4(*charsets)
        if "NO_BACKSLASH_ESCAPES" in mode.split(","):
            raise CheckpointerError(_UNSAFE_MODE)
        # Values travel as quoted literals: in the worst case every byte of one is escaped and takes two.
        return min((int(packet) - _PACKET_OVERHEAD) // 2, _DRIVER_ROW_LIMIT)

    def end_revision(self, conn: sa.Connection) -> None:
        # Its changes of tables are committed already. Its version would be lost with a later revision that refuses.
        conn.exec_driver_sql("COMMIT")

    @contextmanager
    def migrating(self, conn: sa.Connection) -> Iterator[None]:
        # By a hash: a lock's name must be shorter than a database's may be.
        name = "concat('threadkeep.', left(sha2(database(), 256), 32))"
        if conn.exec_driver_sql(f"SELECT get_lock({name}, {_UPGRADE_LOCK_SECONDS})").scalar() != 1:
            raise CheckpointerLockTimeoutError("another upgrade of this database is running: try again later")
        waits = int(conn.exec_driver_sql("SELECT @@lock_wait_timeout").scalar_one())
        conn.exec_driver_sql(f"SET SESSION lock_wait_timeout = {self.migration_lock_timeout}")
        try:
            yield
        finally:
            if not conn.invalidated:
                conn.exec_driver_sql(f"SET SESSION lock_wait_timeout = {waits}")
                conn.exec_driver_sql(f"SELECT release_lock({name})")
