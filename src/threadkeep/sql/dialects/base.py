"""What a dialect adds to the portable operations. Defaults work for servers with RETURNING and ON CONFLICT.

A statement that SQLAlchemy can say portably is not a hook: these are for locking, for allocating, and for telling a
driver's errors apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum, auto
from functools import cache
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from threadkeep import rules
from threadkeep.errors import CheckpointerError
from threadkeep.records import MessageRow
from threadkeep.sql.batches import in_batches
from threadkeep.sql.parameters import COUNT, NOW, THREAD
from threadkeep.sql.prepared import Insert, Prepared, Row
from threadkeep.sql.tables import threads


class Failure(Enum):
    """What a driver's error means for us."""

    LOCK_TIMEOUT = auto()
    CONFLICT = auto()
    """The server has ended the transaction: a deadlock, a serialization failure, a snapshot that is too old."""
    DISCONNECT = auto()
    DUPLICATE = auto()
    MISSING_TABLE = auto()
    DENIED = auto()
    """The account may not do this."""
    OTHER = auto()


_HALF_A_ROW = 500_000_000
"""Bytes. A row of SQLite, and a message to PostgreSQL, ends at a gigabyte; a message's metadata is in its row twice."""
Fresh = Callable[[sa.Select[Any]], sa.Select[Any]]
"""Makes a statement read what is committed by now."""


def as_it_is(statement: sa.Select[Any]) -> sa.Select[Any]:
    """The statement, which needs nothing for that."""
    return statement


class NoShortcutError(Exception):
    """This write takes the operation itself. Nothing has been written."""


class Shortcut(NamedTuple):
    """A whole operation in one message to the server, for a connection of ours in autocommit mode."""

    alone: Callable[..., Any]
    """Takes the connection, the limit that `lock_limit` gives, and what the operation takes. It does all of that and
    returns what the operation does, or fails and has done nothing."""
    together: Callable[..., dict[int, Any]] | None = None
    """Takes the connection, the limit, and the arguments of several calls; tells what those of them return that it has
    made, by their numbers. It waits for no lock of a thread."""


@cache
def _locking(changed: sa.Column[Any], to: Any, *columns: sa.Column[Any]) -> Any:
    """Made once: making it takes longer than sending it."""
    statement = sa.update(threads).where(threads.c.thread_id == THREAD).values({changed: to})
    return statement.returning(threads.c.thread_id, threads.c.deleted_at.label("deleted"), *columns)


def taking(insert: Callable[[sa.Table], Any], *columns: sa.Column[Any]) -> Any:
    """The upsert that creates the thread, locks it, and takes its next seqs; it returns whether it was deleted, too."""
    return (
        insert(threads)
        .values(thread_id=THREAD, extra=sa.literal_column("'{}'"), last_seq=COUNT, created_at=NOW, updated_at=NOW)
        .on_conflict_do_update(
            index_elements=[threads.c.thread_id],
            set_={"last_seq": threads.c.last_seq + COUNT, "updated_at": NOW},
        )
        .returning(threads.c.deleted_at, *columns)
    )


_BEGIN, _ROLLBACK = Prepared(sa.text("BEGIN")), Prepared(sa.text("ROLLBACK"))
_NEXT_COMPLETION_SEQ = Prepared(
    sa.update(threads)
    .where(threads.c.thread_id == THREAD)
    .values(last_completion_seq=threads.c.last_completion_seq + 1, updated_at=NOW)
    .returning(threads.c.deleted_at, threads.c.last_completion_seq)
)


class Hooks:
    """The hooks of one dialect."""

    insert: Callable[[sa.Table], Any]
    """The dialect's own INSERT, which knows its upsert."""

    failures: ClassVar[dict[Any, Failure]]
    """The driver's codes that mean something to us."""

    interruptible = True
    """Whether a driver's call can be cancelled half way without leaving its connection and its locks behind."""

    error_aborts = False
    """Whether a statement that fails takes the whole transaction with it, so that even a read needs a savepoint."""

    decodes_where_it_reads = False
    """Whether messages are decoded by the thread that has read them, which alone can use the rows' memory again."""

    shortcuts: ClassVar[dict[str, Shortcut]] = {}
    """Those there are, by the operation's name."""

    interruptible_shortcuts = True
    """Whether it is certain, after a shortcut was cancelled half way, that the server does not go on with it."""

    # ---- transactions ----------------------------------------------------------------------------------------

    def begin(self, conn: sa.Connection) -> None:
        """Begin a write on an engine of our own, which is in autocommit mode otherwise."""
        _BEGIN.count(conn, {})

    def roll_back(self, conn: sa.Connection) -> None:
        """End such a write, however far it got."""
        _ROLLBACK.count(conn, {})

    def start(self, conn: sa.Connection) -> None:
        """Begin a write on a host's engine, where SQLAlchemy manages the transaction."""
        self.join(conn)

    def join(self, conn: sa.Connection) -> None:
        """Make sure that the host's transaction, which may have read and written before, is one to write in."""
        driver = conn.connection.dbapi_connection
        if driver is not None and conn.dialect.detect_autocommit_setting(driver):
            raise CheckpointerError(
                "the connection is in AUTOCOMMIT mode, where nothing is all or none: pass one without"
            )

    def has_lost_transaction(self, conn: sa.Connection) -> bool:
        """Whether the database has ended the transaction that was begun there, without an error that says so."""
        return False

    def lock_limit(self, lock_timeout: float) -> str:
        """How the server is told how long to wait for a lock, where a setting of the connection does not say it."""
        return ""

    def is_closed(self, conn: sa.Connection) -> bool:
        """Whether the driver knows already that this connection is dead."""
        return False

    def was_never_sent(self, error: DBAPIError) -> bool:
        """Whether the driver has refused to send anything: it knows that this connection is at its end."""
        return False

    def forget_rows(self, conn: sa.Connection) -> None:
        """Let the driver forget what it read last, if it would keep it until it reads again."""

    def bound_waits(self, conn: sa.Connection, lock_timeout: float) -> None:
        """Limit lock waits for the rest of this transaction, where no setting of the connection does."""

    # ---- the thread's row: its lock and its counters. One that was deleted softly raises ThreadDeletedError --

    def lock_or_create(
        self, conn: sa.Connection, thread_id: str, now: datetime, *columns: sa.Column[Any]
    ) -> Sequence[Any]:
        """Lock the thread, creating it when needed; return these columns of it, which hold no times."""
        return self._take(conn, thread_id, 0, now, *columns)

    def lock(self, conn: sa.Connection, thread_id: str, now: datetime, *columns: sa.Column[Any]) -> Any | None:
        """Lock the thread if there is one; return these columns of it, or None."""
        statement = _locking(threads.c.updated_at, NOW, *columns)
        row = conn.execute(statement, {"thread": thread_id, "now": now}).one_or_none()
        if row is not None:
            rules.refuse_deleted(thread_id, row.deleted)
        return row

    def lock_unchanged(
        self, conn: sa.Connection, thread_id: str, *columns: sa.Column[Any], even_deleted: bool = False
    ) -> Any | None:
        """The same, but the row keeps its values. With `even_deleted`, `deleted` says whether and when it was.

        It is written all the same: a transaction with an older snapshot shall learn that something happened here.
        """
        statement = _locking(threads.c.last_seq, threads.c.last_seq, *columns)
        row = conn.execute(statement, {"thread": thread_id}).one_or_none()
        if row is not None and not even_deleted:
            rules.refuse_deleted(thread_id, row.deleted)
        return row

    def fresh_on(self, conn: sa.Connection) -> Fresh:
        """How to read there what is committed by now, of what the thread's lock does not protect row by row.

        Who has an older snapshot has failed at the lock, on most servers.
        """
        return as_it_is

    def allocate(self, conn: sa.Connection, thread_id: str, count: int, now: datetime) -> int:
        """Lock the thread, creating it when needed, and take the next `count` seqs; return the last of them."""
        (last_seq,) = self._take(conn, thread_id, count, now, threads.c.last_seq)
        return int(last_seq)

    def next_completion_seq(self, conn: sa.Connection, thread_id: str, now: datetime) -> int | None:
        """Lock the thread if there is one, and take its next completion_seq; None without a thread."""
        row = _NEXT_COMPLETION_SEQ.row(conn, {"thread": thread_id, "now": now})
        if row is None:
            return None
        deleted, completion_seq = row
        rules.refuse_deleted(thread_id, deleted)
        return int(completion_seq)

    def _take(
        self, conn: sa.Connection, thread_id: str, count: int, now: datetime, *columns: sa.Column[Any]
    ) -> Sequence[Any]:
        (row,) = self._upsert(*columns).rows(conn, {"thread": thread_id, "count": count, "now": now})
        deleted, *values = row
        rules.refuse_deleted(thread_id, deleted)
        return list(values)

    @cache  # noqa: B019 - there is one instance a dialect, and it lives as long as the program
    def _upsert(self, *columns: sa.Column[Any]) -> Prepared:
        return Prepared(taking(self.insert, *columns))

    # ---- time ------------------------------------------------------------------------------------------------

    def now(self, conn: sa.Connection) -> datetime:
        """The database's time, to the microsecond: what workers, whose clocks may disagree, can order things by."""
        time: datetime = conn.execute(sa.select(sa.type_coerce(self.clock(), threads.c.updated_at.type))).scalar_one()
        return time

    def clock(self, *, after: float = 0) -> sa.ColumnElement[Any]:
        """The database's time, so many seconds from this very moment, also late in a transaction.

        All processes read the same one, whatever their own clocks say.
        """
        raise NotImplementedError

    # ---- rows ------------------------------------------------------------------------------------------------

    def append_in_one_go(
        self, conn: sa.Connection, thread_id: str, rows: Sequence[MessageRow], stem: str
    ) -> int | None:
        """`messages.append`, for what most of them are, where there is a shorter way. None: nothing was done yet."""
        return None

    def insert_if_absent(self, conn: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
        """Insert the row unless its key is taken, also by a transaction that commits while this one waits."""
        return self._insert_if_absent(table, *row).count(conn, row) == 1

    @cache  # noqa: B019 - as above
    def _insert_if_absent(self, table: sa.Table, *columns: str) -> Prepared:
        return Prepared(self.insert(table).on_conflict_do_nothing(), columns)

    def insert_rows(self, conn: sa.Connection, into: Insert, rows: Iterable[Row]) -> None:
        """Insert the rows, however many."""
        for some in in_batches(rows):
            self.insert_some(conn, into, some)

    def insert_some(self, conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
        """As many as one statement may insert. Their values may be changed to what the driver takes."""
        into.each(conn, rows)

    def put(self, conn: sa.Connection, table: sa.Table, row: dict[str, Any]) -> None:
        """Insert the row, or replace the one that has its key."""
        statement = self.insert(table).values(row)
        changes = {name: statement.excluded[name] for name in row if not table.c[name].primary_key}
        keys = list(table.primary_key.columns)
        conn.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))

    # ---- errors ----------------------------------------------------------------------------------------------

    def code(self, error: DBAPIError) -> Any:
        """The driver's code for this error."""
        raise NotImplementedError

    def classify(self, error: DBAPIError) -> Failure:
        """What the error means. By code, never by text."""
        if error.connection_invalidated:
            return Failure.DISCONNECT
        return self.failures.get(self.code(error), Failure.OTHER)

    # ---- limits and migrations -------------------------------------------------------------------------------

    def max_value_bytes(self, conn: sa.Connection) -> int:
        """The largest encoded value that server and driver really carry."""
        return _HALF_A_ROW

    migration_lock_timeout: ClassVar[int] = 60
    """Seconds that an upgrade waits for a table. While it waits, everybody else waits behind it."""

    @contextmanager
    def migrating(self, conn: sa.Connection) -> Iterator[None]:
        """One upgrade at a time, in one transaction where the server's DDL has them."""
        yield

    def end_revision(self, conn: sa.Connection) -> None:
        """Keep what one revision has done, whatever becomes of the next, where the server's DDL has no transactions."""
