"""The whole truth about SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from threadkeep import rules
from threadkeep.errors import TransactionConflictError
from threadkeep.records import MessageRow
from threadkeep.sql.dialects import sqlite_append
from threadkeep.sql.dialects.base import Failure, Hooks
from threadkeep.sql.dialects.shortcuts import is_plain
from threadkeep.sql.prepared import Prepared, is_own
from threadkeep.sql.tables import threads

_BEGIN = Prepared(sa.text("BEGIN IMMEDIATE"))
_TAKE_THE_LOCK = sa.update(threads).where(sa.false()).values(last_seq=0)


class SQLiteHooks(Hooks):
    """One writer at a time, for the whole file: the lock is the transaction."""

    insert = staticmethod(sqlite.insert)
    failures: ClassVar = {
        sqlite3.SQLITE_BUSY: Failure.LOCK_TIMEOUT,
        sqlite3.SQLITE_BUSY_TIMEOUT: Failure.LOCK_TIMEOUT,
        sqlite3.SQLITE_LOCKED: Failure.LOCK_TIMEOUT,
        # The transaction has read what somebody else has changed since: no waiting makes it writable.
        sqlite3.SQLITE_BUSY_SNAPSHOT: Failure.CONFLICT,
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Failure.DUPLICATE,
        sqlite3.SQLITE_READONLY: Failure.DENIED,
    }

    # A statement that was cancelled half way keeps its closed connection, and the lock, until it is collected.
    interruptible = False
    decodes_where_it_reads = True

    def begin(self, conn: sa.Connection) -> None:
        _BEGIN.count(conn, {})  # waits as long as the connection's busy timeout says

    def roll_back(self, conn: sa.Connection) -> None:
        # SQLite has rolled back by itself after some errors, and a second time would be one more.
        if _in_transaction(conn):
            super().roll_back(conn)

    def start(self, conn: sa.Connection) -> None:
        # A driver in its legacy mode begins nothing until the first INSERT, and a SAVEPOINT would then be committed by
        # its RELEASE. Where a plain BEGIN has run, a write that changes nothing takes the lock before anything is read.
        if not conn.in_transaction():
            conn.begin()  # so that a host's listener, which says BEGIN, speaks first
        if _in_transaction(conn):
            conn.execute(_TAKE_THE_LOCK)
        else:
            conn.exec_driver_sql("BEGIN IMMEDIATE")

    def join(self, conn: sa.Connection) -> None:
        has_begun = _in_transaction(conn)
        try:
            self.start(conn)
        except DBAPIError as error:
            # A transaction that has read is not made to wait: when the other writer is done, it has read too early.
            if has_begun and self.classify(error) is Failure.LOCK_TIMEOUT:
                raise TransactionConflictError(
                    "another writer came first, and this transaction cannot write any more: run all of it again"
                ) from error
            raise

    def has_lost_transaction(self, conn: sa.Connection) -> bool:
        # SQLite undoes all of it when the disk is full or broken, and what comes next would be committed alone.
        return not conn.invalidated and not _in_transaction(conn)

    def now(self, conn: sa.Connection) -> datetime:
        return rules.utc_now()  # SQLite's is this machine's, too, and to the millisecond

    def clock(self, *, after: float = 0) -> sa.ColumnElement[Any]:
        # As precise as SQLite's clock, written like all times of ours.
        return sa.func.strftime("%Y-%m-%d %H:%M:%f", "now", f"{after:+.3f} seconds").concat("000")

    def append_in_one_go(
        self, conn: sa.Connection, thread_id: str, rows: Sequence[MessageRow], stem: str
    ) -> int | None:
        run_ids = {row.run_id for row in rows}
        if not is_own(conn) or len(run_ids) > 1 or not is_plain(rows):
            return None
        return sqlite_append.append(conn, thread_id, rows, stem, *run_ids)

    @contextmanager
    def migrating(self, conn: sa.Connection) -> Iterator[None]:
        if not _in_transaction(conn):
            conn.exec_driver_sql("BEGIN IMMEDIATE")  # a driver that has begun by itself would commit at the first DDL
        else:
            # A plain BEGIN has run. This takes the write lock before anything is read, and there is no table yet.
            conn.exec_driver_sql("PRAGMA incremental_vacuum(1)")
        yield

    def classify(self, error: DBAPIError) -> Failure:
        # The only one told by its text: SQLite has one code for every error in a statement.
        if self.code(error) == sqlite3.SQLITE_ERROR and str(error.orig).startswith("no such table"):
            return Failure.MISSING_TABLE
        return super().classify(error)

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)


def _in_transaction(conn: sa.Connection) -> bool:
    driver: Any = conn.connection.driver_connection
    return bool(driver.in_transaction)
