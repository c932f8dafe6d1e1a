"""Workers that hold a lease are killed and paused. Another takes over, and the first never writes again."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

import racing
import threadkeep
from crash.processes import Worker
from crash.side_effects import lines_of
from crash.worker import PAY, WRITES, Call, Job, append, complete_the_run, save_checkpoint, save_extra
from racing import RACERS, SIZE, race
from threadkeep import CallState, CheckpointerLockTimeoutError, Failed, LeaseHeldError, ToolCallInFlightError
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

pytestmark = pytest.mark.stress

TTL = 1.0
"""Long enough for heartbeats to get through on a busy machine. Where one does not, the lease is lost a bit earlier."""
LONG = 300.0
"""Longer than any test."""


def holder(url: str, effects: str, thread_id: str = "thread", ttl: float = TTL, seed: int = 0) -> Job:
    return Job(url, thread_id, "first", effects, ttl=ttl, run_id="run", only_hold=True, seed=seed)


async def contents(cp: Any, thread_id: str) -> tuple[Any, ...]:
    """Everything that a worker can write to a thread."""
    calls = await cp.ledger.list(thread_id)
    return (
        await cp.load(thread_id),
        await cp.load_pending(thread_id),
        await cp.runs.list(thread_id),
        await cp.checkpoints.list(thread_id),
        # Without their state: the clock alone makes a call unknown.
        [(call.call_id, call.attempt, call.owner, call.result, call.error, call.ended_at) for call in calls],
    )


async def take_over(cp: Any, stack: AsyncExitStack, thread_id: str, when_locked: Callable[[], None]) -> Any:
    """The run's lease, as soon as it can be had."""
    while True:
        try:
            return await stack.enter_async_context(cp.runs.lease(thread_id, "run", ttl=LONG))
        except LeaseHeldError:
            await asyncio.sleep(0.02)
        except CheckpointerLockTimeoutError:
            when_locked()


async def test_a_paused_worker_never_writes_again(url: str, worker: Worker, effects: str) -> None:
    moments = Random(21)  # noqa: S311 - nothing secret
    cp: Any
    async with threadkeep.open_checkpointer(url, lock_timeout=1) as cp:
        for number in range(2 * SIZE):
            thread_id = f"thread {number}"
            worker.start(holder(url, effects, thread_id, seed=number))

            def pause_it_somewhere() -> None:
                worker.wait_for(f"wrote {moments.randrange(1, 20)}", "lost")
                time.sleep(moments.uniform(0, 0.02))
                worker.stop()

            def pause_it_elsewhere() -> None:
                # It was stopped inside of a transaction, whose lock keeps everybody away, with or without a lease.
                worker.go_on()
                worker.next_line()
                time.sleep(moments.uniform(0, 0.02))
                worker.stop()

            pause_it_somewhere()
            async with AsyncExitStack() as stack:
                lease = await take_over(cp, stack, thread_id, pause_it_elsewhere)
                for write in (append, save_extra, save_checkpoint):
                    await write(lease, Job(url, thread_id, "second", effects), 0)
                before = await contents(cp, thread_id)
                worker.go_on()
                while worker.next_line() is not None:
                    assert await contents(cp, thread_id) == before
                assert worker.end() == 0
                assert not lease.is_lost
            refused = [f"refused: {write.__name__}" for write in (*WRITES, complete_the_run)]
            assert worker.lines[-len(refused) - 1 :] == ["lost", *refused]


async def test_a_killed_worker_loses_its_lease_when_it_expires(url: str, worker: Worker, effects: str) -> None:
    cp: Any
    async with threadkeep.open_checkpointer(url) as cp, AsyncExitStack() as stack:
        worker.start(holder(url, effects))
        word, token = (worker.next_line() or "").split()
        assert word == "leased"
        worker.wait_for("wrote 3", "lost")
        worker.kill()
        worker.end()
        lease = await take_over(cp, stack, "thread", lambda: None)
        assert lease.token > int(token)
        written = len((await cp.load("thread")).messages)
        await append(lease, Job(url, "thread", "second", effects), 0)
        assert len((await cp.load("thread")).messages) == written + 1


async def test_a_killed_worker_keeps_its_lease_until_it_expires(url: str, worker: Worker, effects: str) -> None:
    cp: Any
    async with threadkeep.open_checkpointer(url) as cp:
        worker.start(holder(url, effects, ttl=LONG))
        worker.wait_for("wrote 3")
        worker.kill()
        worker.end()
        for run_id, exclusive in (("run", False), ("another", True)):
            with pytest.raises(LeaseHeldError):
                async with cp.runs.lease("thread", run_id, ttl=LONG, exclusive=exclusive):
                    pass
        (run,) = (await cp.resume("thread")).open_runs
        assert (run.state, run.owner) == ("leased", "first")


async def test_what_a_living_worker_holds_lasts_longer_than_its_time(url: str, worker: Worker, effects: str) -> None:
    """Its lease, and the call that it executes: heartbeats renew both."""
    ttl = timedelta(seconds=3)  # a machine that stands still for two of them is not what this is about
    pay = Call(PAY, "call", {})
    job = Job(url, "thread", "first", effects, [pay], ttl=ttl.total_seconds(), run_id="run", wait_at="running call")

    async def ends_of_time() -> list[datetime]:
        lease = sa.select(tables.leases.c.expires_at)
        (row,) = await on_connection(url, lambda conn: conn.execute(lease).all())
        return [row.expires_at, (await cp.ledger.get("thread", "call")).expires_at]

    cp: Any
    async with threadkeep.open_checkpointer(url) as cp:
        worker.start(job)
        assert worker.wait_for(job.wait_at)
        first = max(await ends_of_time())
        # Renewed at a moment when, without heartbeats, both would have been over.
        while min(await ends_of_time()) < first + ttl:
            await asyncio.sleep(0.1)
        with pytest.raises(LeaseHeldError):
            async with cp.runs.lease("thread", "run", ttl=LONG):
                pass
        issued = await cp.ledger.issue("thread", "another id", PAY, {})
        assert (issued.execute, issued.entry.state) == (False, CallState.IN_FLIGHT)
        with pytest.raises(ToolCallInFlightError):
            await cp.ledger.resolve("thread", "call", Failed("somebody is impatient"))


async def test_an_exclusive_lease_is_held_by_one_worker_at_a_time(
    url: str, racers: ProcessPoolExecutor, effects: str
) -> None:
    rounds = 4 * SIZE
    async with threadkeep.open_checkpointer(url):
        tokens = race(racers, url, racing.take_turns, rounds, effects)
    lines = [line.split() for line in lines_of(effects)]
    entered, left = lines[::2], lines[1::2]
    # Nobody enters before the one inside has left.
    assert {word for word, *_ in entered} == {"in"}
    assert left == [["out", *who] for _, *who in entered]
    assert len(entered) == RACERS * rounds
    # Each acquisition has a greater token than the one before.
    assert [int(token) for _, _, token in entered] == sorted(token for each in tokens for token in each)
    assert len({token for _, _, token in entered}) == RACERS * rounds
