"""Where connections come from: an engine of our own, or the host's. `sqlite_threads` is the third way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from threadkeep.sql.transactions import Transactions, Work, in_transaction

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
    def hold(self) -> AbstractAsyncContextManager[Run]: ...


class EngineConnections:
    """Connections of an AsyncEngine. One that is the host's is never disposed."""

    def __init__(
        self, engine: AsyncEngine, transactions: Transactions, *, owned: bool, open_first: int = 1
    ) -> None:
        self.transactions = transactions
        self.engine = engine
        self._owned = owned
        self._open_first = open_first

    async def open(self) -> None:
        try:
            async with AsyncExitStack() as opened:
                connecting = (
                    opened.enter_async_context(self.engine.connect()) for _ in range(self._open_first)
                )
                await asyncio.gather(*connecting)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._owned:
            await self.engine.dispose()

    async def read(self, work: Work[T]) -> T:
        async with self.engine.connect() as conn:
            return await conn.run_sync(work)

    async def write(self, work: Work[T]) -> T:
        def whole(conn: sa.Connection) -> T:
            return in_transaction(conn, self.transactions, work, lambda: True)

        async with self.engine.connect() as conn:
            return await conn.run_sync(whole)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Run]:
        async with self.engine.connect() as conn:
            yield on(conn)


def on(conn: AsyncConnection) -> Run:
    """Run work on this connection."""
    return conn.run_sync
