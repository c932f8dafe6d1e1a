"""SQLite's writes that wait share a transaction, and nobody notices but the disk. (Only SQLite's do.)"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backends import migrated_file
from sql.full_disk import leave_little_room
from threadkeep import (
    CheckpointerError,
    CheckpointerLockTimeoutError,
    DuplicateIdError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    SQLiteCheckpointer,
    TextContent,
    ThreadDeletedError,
    UserMessage,
)
from threadkeep.sql import tables
from threadkeep.sql.dialects import SQLITE
from threadkeep.sql.operations import runs

MOST_TOGETHER = 100


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return migrated_file(tmp_path)


@pytest.fixture
async def cp(path: Path) -> AsyncIterator[Any]:
    async with SQLiteCheckpointer(path) as checkpointer:
        yield checkpointer


@pytest.fixture
def another(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is none of ours: what it sees is committed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def seqs_seen_by(another: sqlite3.Connection, thread_id: str) -> list[int]:
    statement = "SELECT seq FROM cubepi_messages WHERE thread_id = ? ORDER BY seq"
    return [seq for (seq,) in another.execute(statement, [thread_id])]


async def texts(cp: Any, thread_id: str) -> list[str] | None:
    data = await cp.load(thread_id)
    return [message.content[0].text for message in data.messages] if data else None


# ---- the writer, seen from outside ------------------------------------------------------------------------


async def on_writer(cp: Any, work: Callable[[sa.Connection], Any]) -> Any:
    return await cp._opened.get().connections._writer.run(work)


async def as_a_write(cp: Any, work: Callable[[sa.Connection], Any]) -> Any:
    """Work of the test's own, in the place of an operation."""
    return await cp._opened.get().write(work)


class Statements(list[str]):
    """What SQLite has executed for the writer."""

    def transactions(self) -> list[int]:
        """How many writes each transaction had a part in, whatever became of it. A write alone has no savepoint."""
        sizes: list[int] = []
        for statement in self:
            if statement.startswith("BEGIN"):
                sizes.append(0)
            elif statement.startswith("SAVEPOINT"):
                sizes[-1] += 1
        return [size or 1 for size in sizes]


async def statements_of_writer(cp: Any) -> Statements:
    statements = Statements()

    def listen(conn: sa.Connection) -> None:
        driver: Any = conn.connection.driver_connection
        driver.set_trace_callback(statements.append)

    await on_writer(cp, listen)
    return statements


class Blocking:
    """A write that does not go on before it is told to."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._may_go_on = threading.Event()

    def __call__(self, conn: sa.Connection) -> None:
        self._began.set()
        assert self._may_go_on.wait(10)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self._began.wait, 10)

    def go_on(self) -> None:
        self._may_go_on.set()


async def started(writes: list[Awaitable[Any]]) -> list[asyncio.Future[Any]]:
    """Tasks for these, each as far as it gets without waiting: in the queue."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)
    return tasks


async def in_one_transaction(cp: Any, *writes: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Have the writer make these together, and wait until it is about to: they have come while it was busy."""
    busy = Blocking()
    (first,) = await started([as_a_write(cp, busy)])
    await busy.has_begun()
    tasks = await started([*writes])
    busy.go_on()
    await first
    return tasks


async def outcomes_of(tasks: list[asyncio.Future[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def file_that_is_locked(another: sqlite3.Connection) -> Iterator[None]:
    another.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        another.execute("ROLLBACK")


# ---- they share -------------------------------------------------------------------------------------------


async def test_writes_that_wait_share_transactions(cp: Any) -> None:
    statements = await statements_of_writer(cp)
    count = 2 * MOST_TOGETHER + 50
    await asyncio.gather(*(cp.append(f"thread {number % 5}", [said(f"{number}")]) for number in range(count)))
    sizes = statements.transactions()
    assert sum(sizes) == count
    assert len(sizes) < 10
    assert max(sizes) == MOST_TOGETHER  # other processes wait for all of one
    assert sum(statement.startswith("COMMIT") for statement in statements) == len(sizes)
    for number in range(5):
        data = await cp.load(f"thread {number}")
        assert sorted(int(message.content[0].text) for message in data.messages) == list(range(number, count, 5))
        assert (await cp.threads.get(f"thread {number}")).last_seq == count // 5


async def test_a_write_that_need_not_wait_has_its_own(cp: Any) -> None:
    statements = await statements_of_writer(cp)
    for number in range(3):
        await cp.append("thread", [said(f"{number}")])
    assert statements.transactions() == [1, 1, 1]


async def test_nobody_is_answered_before_the_commit(cp: Any, another: sqlite3.Connection) -> None:
    statements = await statements_of_writer(cp)

    async def write(number: int) -> None:
        await cp.append(f"thread {number}", [said("1")])
        assert seqs_seen_by(another, f"thread {number}") == [1]

    await asyncio.gather(*(write(number) for number in range(50)))
    assert len(statements.transactions()) < 10


async def test_they_are_made_in_the_order_in_which_they_came(cp: Any) -> None:
    """Each sees what those before it have done."""
    statements = await statements_of_writer(cp)
    tasks = await in_one_transaction(
        cp,
        cp.claim_run("thread", "run"),
        cp.claim_run("thread", "run"),
        cp.append("thread", [said("1", "run")]),
        cp.mark_run_complete("thread", "run"),
        cp.append("thread", [said("2", "run")]),
        cp.append("thread", [said("3")]),
        cp.threads.soft_delete("thread"),
        cp.append("thread", [said("4")]),
    )
    outcomes = await outcomes_of(tasks)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        RunAlreadyClaimedError,
        type(None),
        type(None),
        RunAlreadyCompletedError,
        type(None),
        type(None),
        ThreadDeletedError,
    ]
    assert statements.transactions() == [1, 8]
    assert await texts(cp, "thread") == ["1", "3"]
    assert (await cp.threads.get("thread")).last_seq == 2


# ---- one fails --------------------------------------------------------------------------------------------


async def prepare(cp: Any) -> None:
    for run_id in ("done", "open"):
        await cp.claim_run("thread", run_id)
    await cp.mark_run_complete("thread", "done")
    await cp.messages.append("thread", [said("0")], message_ids=["taken"])
    await cp.append("put away", [said("0")])
    await cp.threads.soft_delete("put away")


def writes_and_raises(conn: sa.Connection) -> None:
    runs.claim_run(conn, SQLITE, "half", "run")
    conn.execute(sa.update(tables.threads).values(extra='{"half": true}', last_seq=1000))
    raise ZeroDivisionError


async def test_one_that_fails_fails_alone(cp: Any, another: sqlite3.Connection) -> None:
    await prepare(cp)
    statements = await statements_of_writer(cp)
    failing = {
        RunAlreadyCompletedError: cp.append("thread", [said("late", "done")]),
        RunAlreadyClaimedError: cp.claim_run("thread", "open"),
        DuplicateIdError: cp.messages.append("thread", [said("new"), said("twice")], message_ids=[None, "taken"]),
        ThreadDeletedError: cp.append("put away", [said("late")]),
        RunNotClaimedError: cp.mark_run_complete("thread", "nobody's"),
        ZeroDivisionError: as_a_write(cp, writes_and_raises),
        CheckpointerError: as_a_write(cp, lambda conn: runs.claim(conn, "nobody", "run")),
    }
    # Each of them between two that are all right.
    good = [cp.append("thread", [said(f"{number}")]) for number in range(1, len(failing) + 2)]
    mixed = [write for pair in zip(good, failing.values(), strict=False) for write in pair]
    outcomes = await outcomes_of(await in_one_transaction(cp, *mixed, good[-1]))

    assert outcomes[::2] == [None] * len(good)
    assert [type(outcome) for outcome in outcomes[1::2]] == [*failing]
    assert statements.transactions() == [1, len(outcomes)]  # and not because each was made again alone
    assert await texts(cp, "thread") == [f"{number}" for number in range(len(good) + 1)]
    assert seqs_seen_by(another, "thread") == list(range(1, len(good) + 2))
    record = await cp.threads.get("thread")
    assert (record.last_seq, record.last_completion_seq) == (len(good) + 1, 1)
    assert (await cp.load("thread")).extra == {}
    assert await cp.load("half") is None
    assert (await cp.threads.get("put away")).last_seq == 1
    assert [(run.run_id, run.completion_seq) for run in await cp.runs.list("thread")] == [("done", 1), ("open", None)]


async def test_threads_that_failed_to_begin_do_not_exist(cp: Any) -> None:
    tasks = await in_one_transaction(
        cp,
        cp.mark_run_complete("never", "run"),
        cp.fork("nobody", "neither", after_run_id="run"),
        as_a_write(cp, writes_and_raises),
        cp.append("thread", [said("1")]),
    )
    *failed, written = await outcomes_of(tasks)
    assert all(isinstance(outcome, Exception) for outcome in failed)
    assert written is None
    assert [record.thread_id for record in await cp.threads.list()] == ["thread"]


# ---- one is cancelled -------------------------------------------------------------------------------------


async def test_one_that_is_cancelled_in_time_never_happens(cp: Any) -> None:
    """While it waits for its transaction, and while that one is busy with others."""
    statements = await statements_of_writer(cp)
    busy, then_busy = Blocking(), Blocking()
    (first,) = await started([as_a_write(cp, busy)])
    await busy.has_begun()
    _, *tasks = group = await started(
        [as_a_write(cp, then_busy), *(cp.append("thread", [said(f"{number}")]) for number in range(5))]
    )
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    busy.go_on()
    await then_busy.has_begun()
    tasks[3].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[3]
    then_busy.go_on()
    await outcomes_of([first, *group])
    assert statements.transactions() == [1, 6]
    assert await texts(cp, "thread") == ["0", "2", "4"]
    assert (await cp.threads.get("thread")).last_seq == 3


@pytest.mark.parametrize("times", [1, 2])
async def test_one_that_is_cancelled_too_late_has_happened(cp: Any, another: sqlite3.Connection, times: int) -> None:
    """Its part is made, but others of the transaction are not: it waits for the commit, also when cancelled again."""
    busy = Blocking()
    tasks = await in_one_transaction(cp, cp.append("thread", [said("1")]), as_a_write(cp, busy))
    await busy.has_begun()
    for _ in range(times):
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=0.05)
    assert not tasks[0].done()
    assert seqs_seen_by(another, "thread") == []
    busy.go_on()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert seqs_seen_by(another, "thread") == [1]
    await tasks[1]


async def test_whoever_is_cancelled_whenever(cp: Any, another: sqlite3.Connection) -> None:
    """What has not happened when CancelledError comes out never will, and the others do not notice."""
    seen: dict[str, list[int]] = {}

    async def write(thread_id: str) -> None:
        try:
            await cp.append(thread_id, [said("1"), said("2")])
        finally:
            seen[thread_id] = seqs_seen_by(another, thread_id)

    for turns in range(40):
        crowd = [f"{turns}:{number}" for number in range(8)]
        tasks = await started([write(thread_id) for thread_id in crowd])
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        outcomes = await outcomes_of(tasks)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        assert outcomes[1::3] + outcomes[2::3] == [None] * 5
        for thread_id, outcome in zip(crowd, outcomes, strict=True):
            assert seen[thread_id] in ([[1, 2]] if outcome is None else [[1, 2], []])
    await cp.append("the last", [said("1")])
    assert {thread_id: seqs_seen_by(another, thread_id) for thread_id in seen} == seen
    assert len(await cp.threads.list(limit=1000)) == sum(map(bool, seen.values())) + 1


# ---- the transaction is lost ------------------------------------------------------------------------------


def fills_the_disk(conn: sa.Connection) -> None:
    """More than fits: SQLite gives up the whole transaction. See `leave_little_room`."""
    runs.claim_run(conn, SQLITE, "lost", "run")
    conn.execute(sa.update(tables.threads).where(tables.threads.c.thread_id == "lost").values(extra="x" * 1_000_000))


def fails_to_commit(conn: sa.Connection) -> None:
    """A run without a thread, which SQLite is asked not to mind before the COMMIT."""
    conn.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    runs.claim(conn, "lost", "run")


LOSING = {"the disk is full": fills_the_disk, "the commit fails": fails_to_commit}


@pytest.fixture(params=LOSING.values(), ids=list(LOSING))
async def losing(request: pytest.FixtureRequest, cp: Any) -> Callable[[sa.Connection], Any]:
    """A write with which the whole transaction is lost."""
    await on_writer(cp, leave_little_room)
    losing: Callable[[sa.Connection], Any] = request.param
    return losing


async def test_when_a_transaction_is_lost_each_gets_its_own(
    cp: Any, another: sqlite3.Connection, losing: Callable[[sa.Connection], Any]
) -> None:
    await cp.claim_run("thread", "run")
    statements = await statements_of_writer(cp)
    tasks = await in_one_transaction(
        cp,
        cp.append("thread", [said("1", "run")]),
        cp.claim_run("thread", "run"),
        cp.append("thread", [said("2"), said("3")]),
        as_a_write(cp, losing),
        cp.append("new", [said("1")]),
        cp.mark_run_complete("thread", "run"),
        cp.append("thread", [said("late", "run")]),
        cp.save_extra("thread", {"a": 1}),
    )
    outcomes = await outcomes_of(tasks)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        RunAlreadyClaimedError,
        type(None),
        CheckpointerError,
        type(None),
        type(None),
        RunAlreadyCompletedError,
        type(None),
    ]
    # The one that blocked the writer, the one that was lost, and each alone.
    busy, lost, *alone = statements.transactions()
    assert (busy, alone) == (1, [1] * len(tasks))
    assert lost > 3
    assert await texts(cp, "thread") == ["1", "2", "3"]
    assert seqs_seen_by(another, "thread") == [1, 2, 3]
    assert seqs_seen_by(another, "new") == [1]
    assert (await cp.load("thread")).extra == {"a": 1}
    record = await cp.threads.get("thread")
    assert (record.last_seq, record.last_completion_seq) == (3, 1)
    assert (await cp.load("lost"), await cp.runs.list("lost")) == (None, [])
    await asyncio.gather(*(cp.append("thread", [said("on")]) for _ in range(10)))
    assert seqs_seen_by(another, "thread") == list(range(1, 14))


async def test_a_lost_transaction_brings_back_nobody_who_was_cancelled(
    cp: Any, another: sqlite3.Connection, losing: Callable[[sa.Connection], Any]
) -> None:
    """One was cancelled in time and stays away; the other was too late, and is made alone before it hears of it."""
    busy = Blocking()
    tasks = await in_one_transaction(
        cp,
        cp.append("too late", [said("1")]),
        as_a_write(cp, busy),
        cp.append("in time", [said("1")]),
        as_a_write(cp, losing),
        cp.append("thread", [said("1")]),
    )
    await busy.has_begun()
    tasks[0].cancel()
    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    busy.go_on()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert seqs_seen_by(another, "too late") == [1]
    await outcomes_of(tasks)
    assert (seqs_seen_by(another, "thread"), seqs_seen_by(another, "in time")) == ([1], [])
    assert sorted(record.thread_id for record in await cp.threads.list()) == ["thread", "too late"]


# ---- others hold the lock, or the checkpointer is closed --------------------------------------------------


async def test_all_give_up_when_another_holds_the_lock_for_too_long(path: Path, another: sqlite3.Connection) -> None:
    async with SQLiteCheckpointer(path, lock_timeout=0.3) as cp:
        await cp.append("thread", [said("1")])
        statements = await statements_of_writer(cp)
        with file_that_is_locked(another):
            writes = [cp.append("thread", [said("never")]) for _ in range(10)]
            outcomes = await outcomes_of(await started([*writes, cp.claim_run("new", "run")]))
        assert {type(outcome) for outcome in outcomes} == {CheckpointerLockTimeoutError}
        assert len(statements.transactions()) <= 2  # not one by one
        assert (await texts(cp, "thread"), await cp.load("new")) == (["1"], None)
        await asyncio.gather(*(cp.append("thread", [said("2")]) for _ in range(10)))
        assert seqs_seen_by(another, "thread") == list(range(1, 12))


async def test_who_came_later_may_wait_for_longer(path: Path, another: sqlite3.Connection) -> None:
    async with SQLiteCheckpointer(path, lock_timeout=1) as cp:
        with file_that_is_locked(another):
            (first,) = await started([cp.append("thread", [said("too late")])])
            await asyncio.wait([first], timeout=0.9)
            (second,) = await started([cp.append("thread", [said("in time")])])
            with pytest.raises(CheckpointerLockTimeoutError):
                await first
        await second
        assert await texts(cp, "thread") == ["in time"]


async def test_all_are_written_when_the_lock_is_free_in_time(path: Path, another: sqlite3.Connection) -> None:
    async with SQLiteCheckpointer(path, lock_timeout=30) as cp:
        with file_that_is_locked(another):
            tasks = await started([cp.append("thread", [said(f"{number}")]) for number in range(10)])
            await asyncio.wait(tasks, timeout=0.1)
            assert not any(task.done() for task in tasks)
        assert await outcomes_of(tasks) == [None] * 10
        assert await texts(cp, "thread") == [f"{number}" for number in range(10)]


async def test_closing_lets_the_writes_that_wait_end(path: Path, another: sqlite3.Connection) -> None:
    cp: Any = SQLiteCheckpointer(path)
    busy = Blocking()
    async with cp:
        (first,) = await started([as_a_write(cp, busy)])
        await busy.has_begun()
        tasks = await started([cp.append("thread", [said(f"{number}")]) for number in range(MOST_TOGETHER + 20)])
        asyncio.get_running_loop().call_later(0.05, busy.go_on)
    assert all(task.done() for task in (first, *tasks))
    assert await outcomes_of(tasks) == [None] * len(tasks)
    assert seqs_seen_by(another, "thread") == list(range(1, len(tasks) + 1))
    with pytest.raises(CheckpointerError, match="not open"):
        await cp.append("thread", [said("too late")])
    async with cp:
        await cp.append("thread", [said("again")])
    assert len(seqs_seen_by(another, "thread")) == len(tasks) + 1


async def test_a_database_in_memory_has_one_connection_and_no_groups() -> None:
    """There callers queue for the connection itself, and one that was cancelled leaves the queue."""
    async with SQLiteCheckpointer(":memory:") as cp:
        statements = await statements_of_writer(cp)
        tasks = await started([cp.append("thread", [said(f"{number}")]) for number in range(10)])
        tasks[4].cancel()
        outcomes = await outcomes_of(tasks)
        assert [type(outcome) for outcome in outcomes].count(asyncio.CancelledError) == 1
        assert statements.transactions() == [1] * 9
        assert await texts(cp, "thread") == [f"{number}" for number in range(10) if number != 4]
