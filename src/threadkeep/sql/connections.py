"""Where connections come from: an engine of our own, or the host's. `sqlite_threads` is the third way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import greenlet_spawn

from threadkeep.sql.cancelling import to_its_end
from threadkeep.sql.dialects import Failure, Shortcut
from threadkeep.sql.gathering import NOT_MADE, Gathering, Take
from threadkeep.sql.transactions import (
    AbandonedError,
    Decision,
    StaleConnectionError,
    Transactions,
    Work,
    at_once,
    in_transaction,
)

T = TypeVar("T")
Run = Callable[[Work[Any]], Awaitable[Any]]
"""Runs work on one certain connection."""


class Connections(Protocol):
    """Gives work a connection, for one call or for a transaction of several."""

    transactions: Transactions

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def read(self, work: Work[T]) -> T: ...
    async def write(self, work: Work[T]) -> T: ...
    async def write_at_once(self, shortcut: Shortcut, args: Sequence[Any]) -> Any: ...
    def hold(self) -> AbstractAsyncContextManager[Run]: ...


class _Presence:
    """Counts the calls that are under way."""

    def __init__(self) -> None:
        self._present = 0
        self._left = asyncio.Event()

    def __enter__(self) -> None:
        self._present += 1

    def __exit__(self, *_: object) -> None:
        self._present -= 1
        if not self._present:
            self._left.set()

    async def until_all_have_left(self) -> None:
        while self._present:
            self._left.clear()
            await self._left.wait()


class EngineConnections:
    """Connections of an AsyncEngine. One that is the host's is never disposed."""

    def __init__(self, engine: AsyncEngine, transactions: Transactions, *, owned: bool, open_first: int = 1) -> None:
        self.transactions = transactions
        self.engine = engine
        self._owned = owned
        self._open_first = open_first
        self._in_use = _Presence()
        self._gatherings = {
            shortcut: Gathering(
                partial(self._send, shortcut.together), interruptible=transactions.hooks.interruptible_shortcuts
            )
            for shortcut in transactions.shortcuts.values()
            if shortcut.together is not None
        }

    async def open(self) -> None:
        try:
            async with AsyncExitStack() as opened:
                connecting = (opened.enter_async_context(self.engine.connect()) for _ in range(self._open_first))
                # All of them, also when one fails: those that were opened must be closed again.
                for failure in await asyncio.gather(*connecting, return_exceptions=True):
                    if isinstance(failure, BaseException):
                        raise failure
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._owned:
            # A connection that a call still has would come back to nobody.
            await self._in_use.until_all_have_left()
            await self.engine.dispose()

    async def _run(self, work: Work[T]) -> T:
        def on(conn: sa.Connection) -> T:
            try:
                return work(conn)
            except asyncio.CancelledError:
                conn.invalidate()  # a driver may have left it in the middle of an answer
                raise
            except DBAPIError as error:
                if self.transactions.hooks.classify(error) is Failure.DISCONNECT:
                    conn.invalidate()  # SQLAlchemy does so by itself, for what it knows
                raise

        def on_a_connection() -> T:
            with self.engine.sync_engine.connect() as conn:
                return on(conn)

        with self._in_use:
            if self._owned:
                # What AsyncEngine.connect() and run_sync() do, in one step where those take five, and a task.
                return await greenlet_spawn(on_a_connection)
            async with self._connected() as conn:
                return await conn.run_sync(on)

    async def read(self, work: Work[T]) -> T:
        return await self._cancellable(self._run(work))

    async def write(self, work: Work[T]) -> T:
        decision = Decision()

        def whole(conn: sa.Connection) -> T:
            return in_transaction(conn, self.transactions, work, decision.commit)

        return await self._cancellable(self._run(whole), decision)

    async def write_at_once(self, shortcut: Shortcut, args: Sequence[Any]) -> Any:
        gathering = self._gatherings.get(shortcut)
        if gathering is None:
            return await self._write_alone(shortcut, args)
        with gathering, self._in_use:
            result = await gathering.made(args)
            return await self._write_alone(shortcut, args) if result is NOT_MADE else result

    async def _send(self, together: Callable[..., dict[int, Any]], take: Take) -> dict[int, Any]:
        def group(conn: sa.Connection) -> dict[int, Any]:
            # Not before there is a connection: who waits for one can still leave, or be joined by others.
            calls = take()
            return at_once(conn, self.transactions, together, [calls]) if calls else {}

        sending = self._run(group)
        try:
            return await (sending if self.transactions.hooks.interruptible_shortcuts else to_its_end(sending))
        except StaleConnectionError:
            return {}
        except DBAPIError as error:
            if self.transactions.hooks.classify(error) is Failure.DISCONNECT:
                raise
            return {}

    async def _write_alone(self, shortcut: Shortcut, args: Sequence[Any]) -> Any:
        if self.transactions.hooks.interruptible_shortcuts:
            return await self._run(lambda conn: at_once(conn, self.transactions, shortcut.alone, args))
        decision = Decision()

        def unless_cancelled(conn: sa.Connection) -> Any:
            if not decision.commit():
                raise AbandonedError
            return at_once(conn, self.transactions, shortcut.alone, args)

        return await to_its_end(self._run(unless_cancelled), decision, is_harmless_before=True)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Run]:
        async with self._connected() as conn:
            yield on(conn, interruptible=self.transactions.hooks.interruptible)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        conn = await self.engine.connect()
        try:
            yield conn
        finally:
            # A host's pool rolls back what comes back to it, and some releases lose it when that is cancelled.
            await to_its_end(conn.close())

    async def _cancellable(self, attempt: Coroutine[Any, Any, T], decision: Decision | None = None) -> T:
        if self.transactions.hooks.interruptible:
            return await attempt
        return await to_its_end(attempt, decision)


def on(conn: AsyncConnection, *, interruptible: bool) -> Run:
    """Run work on this connection."""
    if interruptible:
        return conn.run_sync
    return lambda work: to_its_end(conn.run_sync(work))
