"""How a transaction begins and ends, on one connection. Synchronous: a whole operation is one hop to the connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from threadkeep.sql.dialects import Failure, Hooks, NoShortcutError, Shortcut
from threadkeep.sql.prepared import Prepared

T = TypeVar("T")
Work = Callable[[sa.Connection], T]
"""An operation with everything but its connection."""
Shortcuts = Mapping[str, Shortcut]


_COMMIT = Prepared(sa.text("COMMIT"))
_SAVEPOINT, _RELEASE = Prepared(sa.text("SAVEPOINT threadkeep")), Prepared(sa.text("RELEASE SAVEPOINT threadkeep"))

_LAST_ASKED = "threadkeep_last_asked"
_TRUSTED_SECONDS = 0.5
"""That a connection is taken to live on after it has answered."""


class StaleConnectionError(Exception):
    """The connection was dead before anything of the write was sent."""


class AbandonedError(Exception):
    """The caller was cancelled before the commit: the write was rolled back."""


class TransactionLostError(Exception):
    """The database has rolled back all of a transaction, and not just the operation that failed in it: its cause."""


class Decision:
    """Decides between a commit and a cancellation: whichever comes first.

    So on SQLite a cancelled write has either happened by the time its caller sees CancelledError, or never will. (A
    server may still be at work on a COMMIT that it was sent.)
    """

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def commit(self) -> bool:
        """Whether the commit may go on."""
        return self._make("commit")

    def cancel(self) -> bool:
        """Whether the cancellation came in time."""
        return self._make("cancel")

    def _make(self, decision: str) -> bool:
        # One step, also between threads: whoever comes second finds what the first has set.
        return self._made.setdefault("decision", decision) == decision


class Transactions(Protocol):
    """Begins and ends transactions on a connection."""

    hooks: Hooks
    lock_timeout: float
    shortcuts: Shortcuts
    """Those of the hooks that can be taken here."""

    def begin(self, conn: sa.Connection) -> None: ...
    def commit(self, conn: sa.Connection) -> None: ...
    def rollback(self, conn: sa.Connection) -> None: ...


class OwnTransactions:
    """On an engine of our own, in autocommit mode: a read is one round trip, a write says BEGIN and COMMIT itself."""

    def __init__(self, hooks: Hooks, lock_timeout: float) -> None:
        self.hooks = hooks
        self.lock_timeout = lock_timeout
        self.shortcuts: Shortcuts = hooks.shortcuts

    def begin(self, conn: sa.Connection) -> None:
        self.hooks.begin(conn)
        self.hooks.bound_waits(conn, self.lock_timeout)

    def commit(self, conn: sa.Connection) -> None:
        _COMMIT.count(conn, {})

    def rollback(self, conn: sa.Connection) -> None:
        self.hooks.roll_back(conn)


class HostTransactions:
    """On a host's engine, as the host has set it up: SQLAlchemy begins and ends."""

    def __init__(self, hooks: Hooks, lock_timeout: float) -> None:
        self.hooks = hooks
        self.lock_timeout = lock_timeout
        self.shortcuts: Shortcuts = {}  # no autocommit mode: even one statement is in a transaction

    def begin(self, conn: sa.Connection) -> None:
        self.hooks.start(conn)
        self.hooks.bound_waits(conn, self.lock_timeout)

    def commit(self, conn: sa.Connection) -> None:
        conn.commit()

    def rollback(self, conn: sa.Connection) -> None:
        conn.rollback()


def at_once(conn: sa.Connection, transactions: Transactions, shortcut: Callable[..., T], args: Sequence[Any]) -> T:
    """Run a shortcut. Who is cancelled meanwhile waits until it is certain whether it has happened."""
    hooks = transactions.hooks
    _require_alive(conn, hooks)
    try:
        return shortcut(conn, hooks.lock_limit(transactions.lock_timeout), *args)
    except NoShortcutError:
        raise
    except BaseException as error:
        roll_back_quietly(conn, transactions)
        if isinstance(error, sa.exc.DBAPIError) and hooks.was_never_sent(error):
            raise StaleConnectionError from error
        raise


def _require_alive(conn: sa.Connection, hooks: Hooks) -> None:
    """Raise StaleConnectionError for a connection that has died in the pool.

    Nothing may be sent twice that is all of a write. So one that was idle for long is asked first, as a BEGIN would.
    """
    now = time.monotonic()
    if hooks.is_closed(conn) or now - conn.info.get(_LAST_ASKED, 0) > _TRUSTED_SECONDS:
        try:
            conn.exec_driver_sql("SELECT 1")
        except sa.exc.DBAPIError as error:
            if hooks.classify(error) is Failure.DISCONNECT:
                raise StaleConnectionError from error
            raise
    conn.info[_LAST_ASKED] = now


def begin_or_stale(conn: sa.Connection, transactions: Transactions) -> None:
    """Begin, or raise StaleConnectionError: then nothing was sent that a fresh connection could not send again."""
    try:
        transactions.begin(conn)
    except sa.exc.DBAPIError as error:
        roll_back_quietly(conn, transactions)
        if transactions.hooks.classify(error) is Failure.DISCONNECT:
            conn.invalidate()
            raise StaleConnectionError from error
        raise


def in_transaction(conn: sa.Connection, transactions: Transactions, work: Work[T], may_commit: Callable[[], bool]) -> T:
    """Run the work in a transaction of its own: all of it or nothing."""
    begin_or_stale(conn, transactions)
    try:
        result = work(conn)
        if not may_commit():
            raise AbandonedError
        transactions.commit(conn)
    except BaseException:
        roll_back_quietly(conn, transactions)
        raise
    return result


def roll_back_quietly(conn: sa.Connection, transactions: Transactions) -> None:
    """Undo without a word: what made it necessary is what the caller must hear of."""
    if conn.invalidated:
        return
    try:
        transactions.rollback(conn)
    except SQLAlchemyError:
        # In whatever state it is, nobody must get it from the pool.
        conn.invalidate()
    except BaseException:  # cancelled once more
        conn.invalidate()
        raise


def in_savepoint(conn: sa.Connection, hooks: Hooks, work: Work[T]) -> T:
    """Run the work inside a transaction that is open already. If it fails, no trace of it is left there.

    Raises TransactionLostError if there is no transaction any more.
    """
    # Plain statements: SQLAlchemy's begin_nested doubles the cost.
    _SAVEPOINT.count(conn, {})
    try:
        result = unless_lost(conn, hooks, work)
    except TransactionLostError:
        raise
    except BaseException:
        _undo_savepoint(conn)
        raise
    _RELEASE.count(conn, {})
    return result


def unless_lost(conn: sa.Connection, hooks: Hooks, work: Work[T]) -> T:
    """Run the work inside a transaction. Raises TransactionLostError if it fails, and there is none any more."""
    try:
        return work(conn)
    except Exception as error:
        if hooks.has_lost_transaction(conn):
            raise TransactionLostError from error
        raise


def _undo_savepoint(conn: sa.Connection) -> None:
    if conn.invalidated:
        return
    try:
        conn.exec_driver_sql("ROLLBACK TO SAVEPOINT threadkeep")
        conn.exec_driver_sql("RELEASE SAVEPOINT threadkeep")
    except SQLAlchemyError:
        # After a deadlock MySQL has no savepoint left: the transaction is gone, and the first error says so.
        return
