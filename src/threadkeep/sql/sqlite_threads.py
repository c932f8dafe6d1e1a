"""SQLite on threads of its own: a whole operation is one hop to a thread that has the connection.

Through an async driver every single call would be a hop. Reads have a connection and a thread to themselves, because a
read queued behind a writer would wait for whatever that writer waits for; so does each transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from os import PathLike, fspath
from typing import Any, TypeVar

import sqlalchemy as sa

from threadkeep.errors import CheckpointerLockTimeoutError
from threadkeep.sql.connections import Run
from threadkeep.sql.sqlite_file import IN_MEMORY, connect
from threadkeep.sql.transactions import Decision, Transactions, Work, in_transaction

T = TypeVar("T")


class _Worker:
    """A thread with a connection."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"threadkeep-{name}")
        self._conn: sa.Connection | None = None

    def _do(self, work: Work[T]) -> T:
        if self._conn is None or self._conn.invalidated:
            self._conn = self._engine.connect()
        return work(self._conn)

    async def run(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    async def write(self, transactions: Transactions, work: Work[T]) -> T:
        decision = Decision()
        doing = asyncio.ensure_future(self.run(lambda conn: in_transaction(conn, transactions, work, decision.commit)))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            if decision.cancel():
                # Nobody will ask what became of it: it is rolled back.
                doing.add_done_callback(_forget)
            else:
                await asyncio.wait([doing])
            raise

    async def close(self) -> None:
        def close_connection() -> None:
            if self._conn is not None:
                self._conn.close()
                self._conn = None

        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, close_connection))
        finally:
            self._thread.shutdown(wait=False)


def _forget(doing: asyncio.Future[Any]) -> None:
    if not doing.cancelled():
        doing.exception()


class SQLiteThreads:
    """Connections to one SQLite file, or to a `:memory:` database, which has but one: there callers queue."""

    def __init__(self, path: str | PathLike[str], transactions: Transactions, lock_timeout: float) -> None:
        self.transactions = transactions
        self._path = fspath(path)
        self._lock_timeout = lock_timeout
        self._engine = sa.create_engine(
            "sqlite://",
            creator=lambda: connect(self._path, lock_timeout),
            poolclass=sa.NullPool,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            hide_parameters=True,
        )
        self._idle: list[_Worker] = []

    async def open(self) -> None:
        self._turn = asyncio.Lock()
        self._writer = _Worker(self._engine, "writer")
        self._reader = self._writer if self._path == IN_MEMORY else _Worker(self._engine, "reader")

    async def close(self) -> None:
        for worker in {self._writer, self._reader, *self._idle}:
            await worker.close()
        self._idle.clear()

    async def read(self, work: Work[T]) -> T:
        async with self._alone():
            return await self._reader.run(work)

    async def write(self, work: Work[T]) -> T:
        async with self._alone():
            return await self._writer.write(self.transactions, work)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Run]:
        if self._path == IN_MEMORY:
            async with self._alone():
                yield self._writer.run
            return
        worker = self._idle.pop() if self._idle else _Worker(self._engine, "transaction")
        try:
            yield worker.run
        finally:
            self._idle.append(worker)

    def _alone(self) -> AbstractAsyncContextManager[None]:
        return self._in_turn() if self._path == IN_MEMORY else nullcontext()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._lock_timeout):
                await self._turn.acquire()
        except TimeoutError:
            raise CheckpointerLockTimeoutError(
                f"the only connection of this :memory: database was in use for more than {self._lock_timeout:g} s"
            ) from None
        try:
            yield
        finally:
            self._turn.release()
