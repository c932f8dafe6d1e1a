"""SQLite on threads of its own: a whole operation is one hop to a thread that has the connection.

Through an async driver every single call would be a hop. Reads have a connection and a thread to themselves, because a
read queued behind a writer would wait for whatever that writer waits for; so do transactions, one after another.

Writes that wait for the writer share its next transaction, and so one flush to the disk: see `_Writer`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from os import PathLike, fspath
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from threadkeep.errors import CheckpointerError, CheckpointerLockTimeoutError
from threadkeep.sql.cancelling import to_its_end, until_done
from threadkeep.sql.connections import Run
from threadkeep.sql.dialects import Failure, Shortcut
from threadkeep.sql.engines import OPERATING
from threadkeep.sql.sqlite_file import IN_MEMORY, WholeReads, connect
from threadkeep.sql.sqlite_groups import Attempt, Outcome, write_together
from threadkeep.sql.transactions import Decision, Transactions, Work

T = TypeVar("T")

_TOGETHER = 100
"""Writes that share a transaction, at most: other processes wait for all of it."""
_NEARLY_ALL = 0.95
"""Of the time that a caller may wait: what is left of it then need not be told to the connection."""


class _Worker:
    """A thread with a connection. (An executor would do, if a hop to one did not take twice as long.)"""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self._conn: sa.Connection | None = None
        self._is_closed = False
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: a program that ends without closing us has nothing more to wait for.
        Thread(target=self._work, name=f"threadkeep-{name}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # else what it has written stays in memory until the next one comes

    def run(self, work: Work[T]) -> asyncio.Future[T]:
        """Run the work there. Who is cancelled does not stop it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(work, partial(_answer, answer))
        return answer

    def _submit(self, work: Work[Any], tell: Callable[[Outcome], None]) -> None:
        """Run the work there, and tell the event loop what became of it."""
        self.refuse_if_closed()
        loop = asyncio.get_running_loop()

        def job() -> None:
            try:
                if self._conn is None or self._conn.invalidated:
                    self._conn = self._engine.connect()
                outcome = Outcome(work(self._conn))
            except BaseException as error:
                outcome = Outcome(error=error)
            with suppress(RuntimeError):  # the loop may be closed: nobody asks any more
                loop.call_soon_threadsafe(tell, outcome)

        self._jobs.put(job)

    def refuse_if_closed(self) -> None:
        if self._is_closed:
            raise CheckpointerError("the checkpointer was closed while this call waited for its turn")

    async def close(self) -> None:
        """Close the connection, and end the thread. It may just be connecting: so it is the thread that looks."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def close_connection() -> None:
            if self._conn is not None:
                self._conn.close()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_answer, closed, Outcome())

        self._is_closed = True
        self._jobs.put(close_connection)
        self._jobs.put(None)
        await asyncio.shield(closed)


def _answer(future: asyncio.Future[Any], outcome: Outcome) -> None:
    if future.done():
        return  # cancelled
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.result)


def _waiting_at_most(seconds: float, usual: float, work: Work[T]) -> Work[T]:
    """The same work, which waits for other processes no longer than this: its caller has waited before."""
    if seconds > _NEARLY_ALL * usual:
        return work

    def impatient(conn: sa.Connection) -> T:
        _set_patience(conn, seconds)
        try:
            return work(conn)
        finally:
            if not conn.invalidated:  # else the next one is made with it
                _set_patience(conn, usual)

    return impatient


def _set_patience(conn: sa.Connection, seconds: float) -> None:
    conn.exec_driver_sql(f"PRAGMA busy_timeout = {max(0, round(seconds * 1000))}")


class _Write:
    """A write that waits for the writer."""

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.decision = Decision()
        self.since = loop.time()
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._is_over = False
        self._over: asyncio.Future[None] | None = None

    def end(self, outcome: Outcome) -> None:
        """Its transaction is over."""
        _answer(self.answer, outcome)
        self._is_over = True
        if self._over is not None:
            self._over.set_result(None)

    async def until_over(self) -> None:
        """Wait for that, as a caller who was cancelled does."""
        if not self._is_over:
            self._over = asyncio.get_running_loop().create_future()
            await until_done(self._over)


class _Writer(_Worker):
    """The thread that writes. What has come while it was busy goes into one transaction, and so to the disk, together.

    Nobody is answered before the commit. A write that fails leaves no trace, and fails alone.
    """

    def __init__(self, engine: sa.Engine, transactions: Transactions) -> None:
        super().__init__(engine, "writer")
        self._transactions = transactions
        self._rest()

    def _rest(self) -> None:
        """Begin anew. This is the event loop's alone; if it was closed with writes waiting, nobody asks for them."""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Write] = deque()
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    async def write(self, work: Work[T]) -> T:
        self.refuse_if_closed()
        if self._loop is not asyncio.get_running_loop():
            self._rest()
        write = _Write(work, self._loop)
        self._waiting.append(write)
        if self._at_rest.is_set():
            self._go_on()
        try:
            result: T = await write.answer
        except asyncio.CancelledError:
            if not write.decision.cancel():
                await write.until_over()
            raise
        return result

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            while not self._at_rest.is_set():
                await self._at_rest.wait()
        await super().close()

    def _go_on(self) -> None:
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
        if not group:
            self._at_rest.set()
            return
        self._at_rest.clear()
        attempts = [Attempt(write.work, write.decision.commit) for write in group]
        # They wait for the lock as long as the first of them may.
        usual = self._transactions.lock_timeout
        left = usual - (self._loop.time() - group[0].since)
        work = partial(write_together, transactions=self._transactions, attempts=attempts)
        self._submit(_waiting_at_most(left, usual, work), partial(self._answer_each, group))

    def _answer_each(self, group: list[_Write], together: Outcome) -> None:
        outcomes = [Outcome(error=together.error)] * len(group) if together.error else together.result
        too_long = self._loop.time() - self._transactions.lock_timeout
        for write, outcome in zip(reversed(group), reversed(outcomes), strict=True):
            if write.since > too_long and self._came_too_late(outcome.error):
                self._waiting.appendleft(write)  # it has come after the first, and may wait on
            else:
                write.end(outcome)
        # Not now: who is answered may write again at once, and then shares the next transaction.
        self._loop.call_soon(self._go_on)

    def _came_too_late(self, error: BaseException | None) -> bool:
        """Whether the lock was not to be had in time."""
        return isinstance(error, DBAPIError) and self._transactions.hooks.classify(error) is Failure.LOCK_TIMEOUT


class SQLiteThreads:
    """Connections to one SQLite file, or to a `:memory:` database, which has but one: there callers queue."""

    def __init__(self, path: str | PathLike[str], transactions: Transactions, lock_timeout: float) -> None:
        self.transactions = transactions
        self._path = fspath(path)
        self._lock_timeout = lock_timeout
        self._engine = sa.create_engine(
            "sqlite://",
            creator=lambda: connect(self._path, lock_timeout, WholeReads),
            poolclass=sa.NullPool,
            hide_parameters=True,
            **OPERATING,
        )
        self._idle: list[_Worker] = []

    async def open(self) -> None:
        self._is_open = True
        self._turn = asyncio.Lock()
        self._writer = _Writer(self._engine, self.transactions)
        self._reader = self._writer if self._path == IN_MEMORY else _Worker(self._engine, "reader")

    async def close(self) -> None:
        self._is_open = False
        # Whoever cancels it: a thread would stay, with its connection, as long as the program.
        await to_its_end(self._close())

    async def _close(self) -> None:
        for worker in {self._writer, self._reader, *self._idle}:
            await worker.close()
        self._idle.clear()

    async def read(self, work: Work[T]) -> T:
        if self._path != IN_MEMORY:
            return await self._reader.run(work)
        async with self._in_turn():
            return await self._reader.run(work)

    async def write(self, work: Work[T]) -> T:
        if self._path != IN_MEMORY:
            return await self._writer.write(work)
        async with self._in_turn():
            return await self._writer.write(work)

    async def write_at_once(self, shortcut: Shortcut, args: Sequence[Any]) -> Any:
        raise NotImplementedError("SQLite has no shortcuts: what it saves is in the driver")

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Run]:
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with self._in_turn():
            self._writer.refuse_if_closed()
            if self._path == IN_MEMORY:
                yield self._writer.run
                return
            worker = self._idle.pop() if self._idle else _Worker(self._engine, "transaction")
            left = self._lock_timeout - (loop.time() - since)
            try:
                yield lambda work: worker.run(_waiting_at_most(left, self._lock_timeout, work))
            finally:
                if self._is_open:
                    self._idle.append(worker)
                else:
                    await to_its_end(worker.close())

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """One after another: calls for the only connection of a `:memory:` database, and else transactions.

        SQLite has one that writes at a time, so each further one would be a thread that only waits.
        """
        try:
            async with asyncio.timeout(self._lock_timeout):
                await self._turn.acquire()
        except TimeoutError:
            what = "the only connection of this :memory: database" if self._path == IN_MEMORY else "a transaction"
            raise CheckpointerLockTimeoutError(
                f"another caller had {what} open for more than {self._lock_timeout:g} s"
            ) from None
        try:
            yield
        finally:
            self._turn.release()
