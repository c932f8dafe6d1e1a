"""An agent whose tools have side effects is killed at any moment and started again, until its work is done.

No side effect is lost, and none happens twice, unless its outcome was unknown and its tool may be run again. The
transcript and the checkpoints come out as if nothing had happened.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

import threadkeep
from crash.processes import Worker
from crash.side_effects import lines_of
from crash.worker import (
    COST,
    EMAIL,
    LOOK_UP,
    PAY,
    SURFACED,
    TRANSFER,
    Call,
    Job,
    answering,
    outcome_of,
    transcript,
)
from racing import SIZE
from threadkeep import CallState, Completed
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

pytestmark = pytest.mark.stress

KILLS = 8 * SIZE
SEED = int(os.environ.get("THREADKEEP_CRASH_SEED", "21"))
"""Of the moments. What the server and the system make of them is another matter: no two runs are the same."""
MOST_LINES = 24
"""A life is at most so many lines long: about four turns."""
CALLS_PER_THREAD = 12


@dataclass
class Figures:
    kills: int = 0
    threads: int = 0
    calls: int = 0
    side_effects: int = 0
    unknown: int = 0
    unknown_that_had_happened: int = 0
    run_again_although_it_had_happened: int = 0
    seconds: float = 0


def calls_of(thread: int) -> list[Call]:
    tools = (PAY, EMAIL, LOOK_UP, TRANSFER)
    return [
        Call(tools[number % len(tools)], f"call {number}", {"thread": thread, "number": number})
        for number in range(CALLS_PER_THREAD)
    ]


def owners(moments: Random) -> Iterator[str]:
    """Mostly the same host comes back under its name. Now and then it is another, for which calls have to expire."""
    owner = 0
    while True:
        yield f"host {owner}"
        owner += moments.random() < 1 / 8


def live_and_die(worker: Worker, job: Job, moments: Random) -> int:
    """Start the worker and kill it at some moment. How it ended: it may have been faster."""
    worker.start(job)
    lines = moments.randrange(MOST_LINES)
    # Half of them die around a side effect, where it matters most; the others anywhere.
    word = moments.choice(("", "", "running", "happened"))
    while lines > 0 or word:
        line = worker.next_line()
        if line is None:
            return worker.end()
        lines -= 1
        if lines <= 0 and line.startswith(word):
            break
    # Between two lines there is a statement or two, a side effect, a commit.
    time.sleep(moments.choice((0, moments.uniform(0, 0.003), moments.uniform(0, 0.02))))
    worker.kill()
    return worker.end()


class Person:
    """Looks at a thread after a crash, and settles the calls that no program may settle."""

    def __init__(self, cp: Any, thread_id: str, calls: list[Call], effects: str) -> None:
        self._cp = cp
        self._thread_id = thread_id
        self._calls = {call.id: call for call in calls}
        self._expected = transcript(calls)
        self._effects = effects
        self.unknown: set[tuple[str, int]] = set()
        self.unknown_that_had_happened = 0
        self.settled_by_hand: set[str] = set()

    async def look(self) -> None:
        # A write waits for a commit that the dead worker has sent and the server is still busy with.
        await self._cp.save_extra(self._thread_id, {})
        await self._see_that_the_transcript_is_whole()
        for entry in await self._cp.ledger.interrupted(self._thread_id):
            call = self._calls[entry.call_id]
            outcome = outcome_of(call, self._effects)
            if (call.id, entry.attempt) not in self.unknown:
                self.unknown.add((call.id, entry.attempt))
                self.unknown_that_had_happened += isinstance(outcome, Completed)
            if call.tool in (PAY, TRANSFER):
                await self._cp.ledger.resolve(self._thread_id, call.id, outcome, owner=entry.owner)
                self.settled_by_hand.add(call.id)

    async def _see_that_the_transcript_is_whole(self) -> None:
        said = (await self._cp.load(self._thread_id)).messages
        assert said == self._expected[: len(said)]
        for entry in await self._cp.ledger.list(self._thread_id):
            call = self._calls[entry.call_id]
            is_answered = answering(call) in said
            is_completed = entry.state is CallState.COMPLETED
            assert is_completed or not is_answered
            if call.tool == TRANSFER and call.id not in self.settled_by_hand:
                assert is_completed == is_answered, "they were one transaction"


async def see_that_all_is_done(cp: Any, job: Job, person: Person) -> None:
    """Side effects, transcript, ledger and checkpoints are those of a worker that nobody has killed."""
    counts = Counter(lines_of(job.effects))
    entries = {entry.call_id: entry for entry in await cp.ledger.list(job.thread_id)}
    for call in job.calls:
        times_unknown = sum(call_id == call.id for call_id, _ in person.unknown)
        most = 1 + times_unknown if call.tool == LOOK_UP else 1
        assert 1 <= counts.pop(call.effect, 0) <= most, call
        entry = entries.pop(call.id)
        assert (entry.state, entry.result) == (CallState.COMPLETED, call.result)
    assert (counts, entries) == ({}, {})

    assert (await cp.load(job.thread_id)).messages == transcript(job.calls)
    where = tables.messages.c.thread_id == job.thread_id
    rows = await on_connection(job.url, lambda conn: conn.execute(sa.select(tables.messages.c.seq).where(where)).all())
    assert sorted(row.seq for row in rows) == list(range(1, 2 * len(job.calls) + 2))

    turns = range(1, len(job.calls) + 1)
    checkpoints = await cp.checkpoints.list(job.thread_id)
    assert [(each.version, each.state["turns"], each.seq) for each in checkpoints] == [
        (turn, turn, 2 * turn + 1) for turn in turns
    ]
    assert checkpoints[-1].budget_spent_usd == COST * len(job.calls)


async def test_no_side_effect_is_lost_or_happens_twice(
    url: str, worker: Worker, effects: str, request: pytest.FixtureRequest
) -> None:
    moments = Random(SEED)  # noqa: S311 - nothing secret
    figures = Figures()
    began = time.monotonic()
    owner = owners(moments)
    cp: Any
    async with threadkeep.open_checkpointer(url) as cp:
        while figures.kills < KILLS:
            calls, thread_id = calls_of(figures.threads), f"thread {figures.threads}"
            thread_effects = f"{effects} {figures.threads}"
            person = Person(cp, thread_id, calls, thread_effects)
            code: int | None = None
            while code != 0:
                job = Job(url, thread_id, next(owner), thread_effects, calls, ttl=1.0)
                if figures.kills < KILLS:
                    code = live_and_die(worker, job, moments)
                else:
                    worker.start(job)
                    code = worker.end()
                assert code in (0, -signal.SIGKILL, SURFACED)
                figures.kills += code == -signal.SIGKILL
                await person.look()
            await see_that_all_is_done(cp, job, person)
            figures.threads += 1
            figures.calls += len(calls)
            figures.side_effects += len(lines_of(thread_effects))
            figures.unknown += len(person.unknown)
            figures.unknown_that_had_happened += person.unknown_that_had_happened
    figures.run_again_although_it_had_happened = figures.side_effects - figures.calls
    figures.seconds = round(time.monotonic() - began, 1)
    print(request.node.callspec.id, figures)
