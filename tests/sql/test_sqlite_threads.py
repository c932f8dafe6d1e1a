"""SQLite's threads and connections: few, closed in the end, and never with half a transaction. (Only it has them.)"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backends import BACKENDS, Backend, migrated_file
from sql.full_disk import leave_little_room
from sql.turn_writes import said
from threadkeep import CheckpointerError, CheckpointerLockTimeoutError, SQLiteCheckpointer
from threadkeep.sql.sqlite_file import connect

MORE_THAN_FITS = "x" * 6_000_000
"""Also than SQLite keeps in memory: so it meets the full disk in the middle, and gives up the whole transaction."""


async def texts(cp: Any, thread_id: str) -> list[str]:
    return [message.content[0].text for message in (await cp.load(thread_id)).messages]


# ---- a transaction that the database gives up -------------------------------------------------------------


@pytest.fixture(params=["sqlite", "sqlite-in-memory", "aiosqlite-of-host", "aiosqlite-of-host-with-begin"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


async def test_a_transaction_that_was_undone_is_over(backend: Backend) -> None:
    """Else what comes after the error that was caught would be stored, and what came before it would not."""
    async with backend.opened() as cp:
        await cp.append("thread", [said("before")])
        with pytest.raises(CheckpointerError, match="undone all of this transaction"):
            async with cp.transaction() as tx:
                await tx.append("thread", [said("in it")])
                await tx._store._runner._run(leave_little_room)
                with pytest.raises(CheckpointerError, match="undone all of this transaction"):
                    await tx.append("thread", [said(MORE_THAN_FITS)])
                for call in (tx.append("thread", [said("later")]), tx.claim_run("thread", "run"), tx.load("thread")):
                    with pytest.raises(CheckpointerError, match="undone all of this transaction"):
                        await call
        assert await texts(cp, "thread") == ["before"]
        assert await cp.runs.list("thread") == []
        async with cp.transaction() as tx:
            await tx.append("thread", [said("after")])
        assert await texts(cp, "thread") == ["before", "after"]


@pytest.mark.parametrize("backend", ["sqlite", "aiosqlite-of-host", "aiosqlite-of-host-with-begin"], indirect=True)
async def test_a_host_learns_that_its_transaction_was_undone(backend: Backend) -> None:
    """With its own rows. It may commit all the same: then there is nothing to commit."""
    assert backend.engine is not None
    async with backend.opened() as cp:
        async with backend.engine.begin() as conn:
            await conn.execute(sa.text("CREATE TABLE orders (item TEXT)"))
        async with backend.engine.connect() as conn:
            await conn.execute(sa.text("INSERT INTO orders VALUES ('lamp')"))
            using = cp.using(conn)
            await using.append("thread", [said("in it")])
            await conn.run_sync(leave_little_room)
            with pytest.raises(CheckpointerError, match="roll back and run all of it again"):
                await using.append("thread", [said(MORE_THAN_FITS)])
            with pytest.raises(CheckpointerError, match="undone all of this transaction"):
                await using.append("thread", [said("later")])
            await conn.rollback()
        async with backend.engine.connect() as conn:
            assert (await conn.execute(sa.text("SELECT * FROM orders"))).all() == []
        assert await cp.load("thread") is None


@pytest.mark.parametrize("backend", ["sqlite", "sqlite-in-memory"], indirect=True)
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError])
async def test_an_error_in_a_transaction_stays_what_it_is_when_the_checkpointer_was_closed(
    backend: Backend, error: type[BaseException]
) -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def work(cp: Any) -> None:
        async with cp.transaction() as tx:
            await tx.append("thread", [said("in it")])
            began.set()
            await closed.wait()
            raise error

    async with backend.make() as cp:
        working = asyncio.create_task(work(cp))
        await began.wait()
    closed.set()
    with pytest.raises(error):
        await working


# ---- threads and connections ------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return migrated_file(tmp_path)


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("threadkeep-")]


async def test_however_many_transactions_there_are_few_threads(path: Path) -> None:
    most = 0

    async def transact(cp: Any, number: int) -> None:
        nonlocal most
        async with cp.transaction() as tx:
            most = max(most, len(our_threads()))
            await tx.append("thread", [said(f"{number}")])

    async with SQLiteCheckpointer(path, lock_timeout=60) as cp:
        await asyncio.gather(*(transact(cp, number) for number in range(300)))
        assert await texts(cp, "thread") == [f"{number}" for number in range(300)]
        assert most == len(our_threads()) == 3  # for writing, for reading, for transactions


async def test_who_waits_for_a_transaction_in_vain_hears_of_it(path: Path) -> None:
    async with SQLiteCheckpointer(path, lock_timeout=0.2) as cp:
        async with cp.transaction():
            with pytest.raises(CheckpointerLockTimeoutError, match="a transaction open"):
                async with cp.transaction():
                    raise AssertionError
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1")])
        assert await texts(cp, "thread") == ["1"]


async def test_a_transaction_does_not_begin_after_the_end(path: Path) -> None:
    async with SQLiteCheckpointer(path) as cp:
        first = cp.transaction()
        await first.__aenter__()

        async def second() -> None:
            async with cp.transaction() as tx:
                await tx.append("thread", [said("late")])

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    with pytest.raises(CheckpointerError, match="closed while this call waited"):
        await waiting


async def test_a_close_that_is_cancelled_leaves_no_thread(path: Path) -> None:
    before = {*our_threads()}
    with closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        cp = await SQLiteCheckpointer(path, lock_timeout=60).__aenter__()
        writing = asyncio.create_task(cp.append("thread", [said("1")]))
        await asyncio.sleep(0)
        ending = asyncio.create_task(cp.__aexit__(None, None, None))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.sleep(0)
        another.execute("COMMIT")
        await writing
        with pytest.raises(asyncio.CancelledError):
            await ending
    left = {*our_threads()} - before
    for thread in left:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in left)


# ---- patience ---------------------------------------------------------------------------------------------


async def test_on_sqlite_each_write_waits_as_long_as_it_may_and_not_for_others_as_well(path: Path) -> None:
    """The first waits alone. Who came with it has no time left then, and who came later has what is left of its own."""
    async with SQLiteCheckpointer(path, lock_timeout=2) as cp:
        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            first = asyncio.create_task(cp.append("thread", [said("first")]))
            with_it = asyncio.create_task(cp.append("thread", [said("with it")]))
            await asyncio.sleep(1)
            later = asyncio.create_task(cp.append("thread", [said("later")]))
            with pytest.raises(CheckpointerLockTimeoutError):
                await first
            done, _ = await asyncio.wait([with_it, later], return_when=asyncio.FIRST_COMPLETED)
            assert done == {with_it}  # before the lock is free
            assert isinstance(with_it.exception(), CheckpointerLockTimeoutError)
            another.execute("COMMIT")
            await later
        assert await texts(cp, "thread") == ["later"]
        # And the next may wait as long as ever.
        connections: Any = cp._opened.get().connections
        asking = connections._writer.run(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
        assert await asking == 2000


async def test_on_sqlite_a_transaction_waits_for_its_turn_and_for_the_lock_as_long_as_it_may_and_no_longer(
    path: Path,
) -> None:
    async with SQLiteCheckpointer(path, lock_timeout=4) as cp, SQLiteCheckpointer(path, lock_timeout=3) as other:

        async def transact() -> None:
            async with cp.transaction() as tx:
                await tx.append("thread", [said("too late")])

        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            async with cp.transaction():
                waiting = asyncio.create_task(transact())
                await asyncio.sleep(2)  # of its time
            another.execute("BEGIN IMMEDIATE")  # before it comes to that
            later = asyncio.create_task(other.append("thread", [said("later")]))
            done, _ = await asyncio.wait([waiting, later], return_when=asyncio.FIRST_COMPLETED)
            assert done == {waiting}  # it has two seconds left, and that one three
            assert isinstance(waiting.exception(), CheckpointerLockTimeoutError)
            another.execute("COMMIT")
            await later
        # And the next may wait as long as ever.
        async with cp.transaction() as tx:
            await tx.append("thread", [said("next")])
        connections: Any = cp._opened.get().connections
        (worker,) = connections._idle
        assert await worker.run(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout").scalar_one()) == 4000
        assert await texts(cp, "thread") == ["later", "next"]


# ---- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["", "a\0b", Path("a\0b"), b""])
def test_what_is_no_path_is_refused_before_anything_is_opened(odd: Any) -> None:
    with pytest.raises(ValueError, match="is no path"):
        SQLiteCheckpointer(odd)


def test_a_database_that_cannot_be_written_ahead_is_refused() -> None:
    """As one without a name, which is a temporary one."""
    with pytest.raises(sqlite3.Error, match="stays delete"):
        connect("", 60)
