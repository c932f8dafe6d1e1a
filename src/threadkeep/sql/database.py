"""Runs operations: one attempt after another, until it has worked or the caller gets an error of ours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from threadkeep.errors import (
    CheckpointerError,
    CheckpointerLockTimeoutError,
    CubepiSchemaUninitialized,
    OutcomeUnknownError,
    TransactionConflictError,
)
from threadkeep.sql.cancelling import to_its_end
from threadkeep.sql.connections import Connections, Run
from threadkeep.sql.dialects import Failure, Hooks, NoShortcutError, Shortcut
from threadkeep.sql.transactions import (
    StaleConnectionError,
    TransactionLostError,
    Work,
    begin_or_stale,
    in_savepoint,
    roll_back_quietly,
    unless_lost,
)

T = TypeVar("T")

_ATTEMPTS = 8
"""For conflicts of a single operation. Each one lets at least one other writer through."""
_RECONNECTS = 3


class Runner(Protocol):
    """Runs an operation's work: as a transaction of its own, or as part of one."""

    async def read(self, work: Work[T]) -> T: ...
    async def write(self, work: Work[T], at_once: AtOnce | None = None) -> T: ...


class AtOnce(NamedTuple):
    """The same write as a shortcut, where there is one by this name."""

    name: str
    args: Sequence[Any]


class Database:
    """Every operation is a transaction of its own."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.hooks: Hooks = connections.transactions.hooks
        self._shortcuts = connections.transactions.shortcuts

    async def read(self, work: Work[T]) -> T:
        """Read from one snapshot. A read that lost its connection, or a conflict with writers, is made again."""
        attempts = {Failure.DISCONNECT: _RECONNECTS + 1, Failure.CONFLICT: _ATTEMPTS}
        while True:
            try:
                return await _cancellable(self.connections.read(work))
            except DBAPIError as error:
                failure = self.hooks.classify(error)
                if failure not in attempts:
                    raise _ours(failure, error, reading=True) from error
                attempts[failure] -= 1
                if attempts[failure] == 0 and failure is Failure.DISCONNECT:
                    raise
                if attempts[failure] == 0:
                    raise _ours(failure, error, reading=True) from error
            except SQLAlchemyError as error:
                raise _unexpected(error) from error

    async def write(self, work: Work[T], at_once: AtOnce | None = None) -> T:
        """Write all or nothing. Conflicts are tried again; a connection that was dead to begin with is replaced."""
        shortcut = self._shortcuts.get(at_once.name) if at_once is not None else None
        if at_once is not None and shortcut is not None:
            with suppress(NoShortcutError):
                result: T = await self._written(shortcut, at_once)
                return result
        conflicts = reconnects = 0
        while True:
            try:
                return await _cancellable(self.connections.write(work))
            except StaleConnectionError as error:
                reconnects += 1
                if reconnects > _RECONNECTS:
                    raise error.__cause__ or error from None
            except DBAPIError as error:
                failure = self.hooks.classify(error)
                if failure is not Failure.CONFLICT:
                    raise _ours(failure, error) from error
                conflicts += 1
                if conflicts == _ATTEMPTS:
                    raise CheckpointerLockTimeoutError(
                        f"the write conflicted with others {_ATTEMPTS} times in a row: try again later"
                    ) from error
                await asyncio.sleep(random.uniform(0, 0.002 * 2**conflicts))  # noqa: S311 - apart, not secret
            except SQLAlchemyError as error:
                raise _unexpected(error) from error

    async def _written(self, shortcut: Shortcut, at_once: AtOnce) -> Any:
        """What the shortcut has done. NoShortcutError: nothing, and the operation itself will tell why."""
        try:
            return await _cancellable(self.connections.write_at_once(shortcut, at_once.args))
        except StaleConnectionError as error:
            raise NoShortcutError from error
        except DBAPIError as error:
            failure = self.hooks.classify(error)
            if failure in (Failure.DISCONNECT, Failure.LOCK_TIMEOUT):
                raise _ours(failure, error) from error
            raise NoShortcutError from error
        except SQLAlchemyError as error:
            raise _unexpected(error) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Joined]:
        """A runner for several operations that happen together or not at all."""
        transactions = self.connections.transactions
        async with AsyncExitStack() as stack:
            run = await self._begin(stack)
            joined = Joined(run, self.hooks)
            try:
                yield joined
                joined.refuse_if_over()
                joined.end("the transaction is over: it was committed")
                try:
                    await _cancellable(run(transactions.commit))
                except DBAPIError as error:
                    raise _ours(self.hooks.classify(error), error, joined=True) from error
            except BaseException:
                joined.end("the transaction is over: it was rolled back")
                await self._roll_back(run)
                raise

    async def _begin(self, stack: AsyncExitStack) -> Run:
        """Begin on a connection that `stack` gives back at its end."""
        transactions = self.connections.transactions
        for attempt in range(_RECONNECTS + 1):
            try:
                async with AsyncExitStack() as this_attempt:
                    run = await this_attempt.enter_async_context(self.connections.hold())
                    try:
                        await _cancellable(run(lambda conn: begin_or_stale(conn, transactions)))
                    except asyncio.CancelledError:
                        # A thread that is beginning goes on with it: what it has begun must end before it is idle.
                        await self._roll_back(run)
                        raise
                    stack.push_async_exit(this_attempt.pop_all())
                    return run
            except StaleConnectionError as error:
                if attempt == _RECONNECTS:
                    raise error.__cause__ or error from None
            except DBAPIError as error:
                raise _ours(self.hooks.classify(error), error) from error
            except SQLAlchemyError as error:
                raise _unexpected(error) from error
        raise AssertionError("unreachable")

    async def _roll_back(self, run: Run) -> None:
        """Also when cancelled, and again: the connection goes back clean, or not at all."""

        async def roll_back() -> None:
            with suppress(CheckpointerError):  # it was closed meanwhile, and with it went the transaction
                await run(lambda conn: roll_back_quietly(conn, self.connections.transactions))

        await to_its_end(roll_back())


class HostConnection:
    """What all handles on a connection of a host's share: they take turns, and know which transaction was lost."""

    _all: ClassVar[WeakKeyDictionary[sa.Connection, HostConnection]] = WeakKeyDictionary()

    @classmethod
    def of(cls, conn: sa.Connection) -> HostConnection:
        """The one of this connection."""
        return cls._all.setdefault(conn, cls(conn))

    def __init__(self, conn: sa.Connection) -> None:
        self.turn = asyncio.Lock()
        self._conn = ref(conn)
        self._lost: tuple[ref[sa.Transaction], type[CheckpointerError], str] | None = None

    def lose(self, error: CheckpointerError) -> None:
        """The server has ended its transaction. The host's next one is another."""
        if (transaction := self._transaction()) is not None:
            self._lost = ref(transaction), type(error), str(error)

    def refuse_if_lost(self) -> None:
        """Raise if that is still the one there is."""
        if self._lost is not None:
            transaction, kind, text = self._lost
            if transaction() is not None and transaction() is self._transaction():
                raise kind(text)

    def _transaction(self) -> sa.Transaction | None:
        conn = self._conn()
        return None if conn is None else conn.get_transaction()


class Joined:
    """Operations inside a transaction that is open already, ours or the host's. Each is a savepoint."""

    def __init__(self, run: Run, hooks: Hooks, host: HostConnection | None = None) -> None:
        self._run = run
        self._host = host
        self._hooks = hooks
        self._over: str | None = None
        self._lost: type[CheckpointerError] = CheckpointerError
        self._turn = host.turn if host else asyncio.Lock()

    def end(self, reason: str) -> None:
        """Refuse all that comes now."""
        self._over = self._over or reason

    def refuse_if_over(self) -> None:
        """Raise if the transaction is over, and say so again if the server has ended it."""
        if self._over:
            raise self._lost(self._over)
        if self._host:
            self._host.refuse_if_lost()

    def _lose(self, error: CheckpointerError) -> None:
        self.end(str(error))
        if self._host:
            self._host.lose(error)

    async def read(self, work: Work[T]) -> T:
        """Read what this transaction sees."""
        if self._hooks.error_aborts:
            return await self._attempt(lambda conn: in_savepoint(conn, self._hooks, work))
        if self._host:
            return await self._attempt(work)  # it may not have begun yet
        return await self._attempt(lambda conn: unless_lost(conn, self._hooks, work))

    async def write(self, work: Work[T], at_once: AtOnce | None = None) -> T:
        """Write as a part of this transaction, where no shortcut is one."""

        def part(conn: sa.Connection) -> T:
            if self._host:
                self._hooks.join(conn)
            return in_savepoint(conn, self._hooks, work)

        return await self._attempt(part)

    def _end_if_lost(self, error: Exception) -> None:
        # MySQL would begin a new transaction without a word, and half of the work would be in it.
        if isinstance(error, (TransactionConflictError, OutcomeUnknownError)):
            self._lost = type(error)
            self._lose(error)

    async def _attempt(self, work: Work[T]) -> T:
        async with self._turn:
            self.refuse_if_over()
            try:
                result: T = await _cancellable(self._run(work))
            except DBAPIError as error:
                ours = _ours(self._hooks.classify(error), error, joined=True)
                self._end_if_lost(ours)
                raise ours from error
            except TransactionLostError as error:
                lost = CheckpointerError(
                    "the database has undone all of this transaction, and not just this operation:"
                    f" roll back and run all of it again: {_reason(error.__cause__)}"
                )
                self._lose(lost)
                raise lost from error.__cause__
            except TransactionConflictError as error:
                self._end_if_lost(error)
                raise
            except SQLAlchemyError as error:
                raise _unexpected(error) from error
            except asyncio.CancelledError:
                self.end("the transaction is over: an operation in it was cancelled")
                raise
            return result


def _ours(failure: Failure, error: DBAPIError, *, joined: bool = False, reading: bool = False) -> Exception:
    """The error the caller gets instead of the driver's."""
    reason = _reason(error)
    match failure:
        case Failure.LOCK_TIMEOUT:
            return CheckpointerLockTimeoutError(
                f"another writer held the lock for too long, and nothing was written: {reason}"
            )
        case Failure.CONFLICT if joined:
            return TransactionConflictError(
                f"the server has ended this transaction: roll back and run all of it again: {reason}"
            )
        case Failure.DISCONNECT:
            return OutcomeUnknownError(
                f"the connection broke after the write was sent: it may or may not have happened: {reason}"
            )
        case Failure.MISSING_TABLE:
            return CubepiSchemaUninitialized(
                f"the tables are not what this library needs: run 'threadkeep upgrade URL' ({reason})"
            )
    so_what = "" if reading else ", and nothing was written"
    return CheckpointerError(f"the database refused the operation{so_what}: {reason}")


def _reason(error: BaseException | None) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error)


def _unexpected(error: SQLAlchemyError) -> Exception:
    if isinstance(error, PoolTimeoutError):
        return CheckpointerLockTimeoutError(
            "no connection of the pool became free in time: raise max_pool_size, or hold transactions for less long"
        )
    return CheckpointerError(f"the operation could not be run on this connection: {error}")


async def _cancellable(work: Awaitable[T]) -> T:
    """Await it. If the task is cancelled meanwhile, CancelledError is what comes out, whatever cleaning up raised."""
    task = asyncio.current_task()
    assert task is not None
    requests = task.cancelling()
    try:
        return await work
    except Exception as error:
        if task.cancelling() > requests:
            raise asyncio.CancelledError from error
        raise
