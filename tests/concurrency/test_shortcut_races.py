"""Several processes, and many callers in each, make the writes of every turn: by shortcuts, or in shared transactions.

What `test_races` has is not repeated here. (Memory is left out: it lives in one process.)
"""

import asyncio
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import racing
from concurrency import turns
from crash.side_effects import lines_of
from racing import RACERS, SIZE, open_untyped, race, race_of

pytestmark = pytest.mark.stress


async def texts(cp: Any, thread_id: str = "thread") -> list[str]:
    log = await cp.messages.list(thread_id)
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    return [entry.message.content[0].text for entry in log]


async def test_whole_turns_of_all_in_one_thread(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 5 * SIZE
    async with open_untyped(url) as cp:
        race(racers, url, turns.whole_turns, rounds)
        run_ids = [f"{racer}:{number}" for racer in range(RACERS) for number in range(rounds)]
        assert (await cp.load("thread")).extra == {run_id: int(run_id.split(":")[1]) for run_id in run_ids}
        runs = await cp.runs.list("thread")
        assert sorted(run.completion_seq for run in runs) == list(range(1, len(run_ids) + 1))
        assert Counter(await texts(cp)) == dict.fromkeys(("asked", "thought", "answered"), len(run_ids))
        log = await cp.messages.list("thread")
        for run_id in run_ids:
            said = [(entry.seq, entry.message.content[0].text) for entry in log if entry.run_id == run_id]
            assert [text for _, text in said] == ["asked", "thought", "answered"]
            assert said[1][0] == said[0][0] + 1  # they came together


async def test_no_message_lands_in_a_run_that_came_and_went_meanwhile(url: str, racers: ProcessPoolExecutor) -> None:
    """An append may wait for the lock while the run is claimed and completed, of which its snapshot knows nothing."""
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        appended = [(racing.append_until_completed, (racer, rounds)) for racer in range(1, RACERS)]
        at_completion, *counts = race_of(racers, url, [(turns.claim_and_complete_each, (0, rounds)), *appended])
        stored = Counter(message.run_id for message in (await cp.load("thread")).messages)
        assert [stored[f"run {number}"] for number in range(rounds)] == at_completion
        assert [sum(of_run) for of_run in zip(*counts, strict=True)] == at_completion
        assert len(await texts(cp)) == (await cp.threads.get("thread")).last_seq == sum(at_completion)
        assert sorted(run.completion_seq for run in await cp.runs.list("thread")) == list(range(1, rounds + 1))


async def test_a_run_is_completed_once_however_many_complete_it(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        won = race(racers, url, turns.claim_and_complete_all, rounds)
        assert sorted(number for each in won for number in each) == list(range(rounds))
        runs = await cp.runs.list("thread")
        assert sorted(run.completion_seq for run in runs) == list(range(1, rounds + 1))
        record = await cp.threads.get("thread")
        assert (record.last_seq, record.last_completion_seq) == (0, rounds)


async def test_nothing_lands_in_a_thread_that_was_put_away(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 3 * SIZE
    async with open_untyped(url) as cp:
        writing = [(turns.turns_until_put_away, (racer, rounds)) for racer in range(1, RACERS)]
        held, *written = race_of(racers, url, [(turns.put_away_each, (0, rounds)), *writing])
        for number in range(rounds):
            assert await turns.figures(cp, f"thread {number}") == held[number]
            assert {what: sum(each[number][what] for each in written) for what in held[number]} == held[number]
            record = await cp.threads.get(f"thread {number}")
            assert record.last_seq == held[number]["appended"]
            completed = [run.completion_seq for run in await cp.runs.list(f"thread {number}") if run.completed_at]
            assert sorted(completed) == list(range(1, record.last_completion_seq + 1))


async def test_crowds_in_every_process_lose_nothing(url: str, racers: ProcessPoolExecutor) -> None:
    """Some are cancelled: each has happened whole or not at all, and leaves no gap."""
    async with open_untyped(url) as cp:
        outcomes = race(racers, url, turns.append_in_crowds, 6 * SIZE)
        stored = await texts(cp)
        assert (await cp.threads.get("thread")).last_seq == len(stored)
    answered = {name for names, _ in outcomes for name in names}
    cancelled = {name for _, names in outcomes for name in names}
    assert [f"{name} too" for name in stored[::2]] == stored[1::2]
    assert len(set(stored)) == len(stored)
    assert answered <= set(stored[::2]) <= answered | cancelled


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_was_answered_is_there_after_kill_9(url: str, tmp_path: Path) -> None:
    """SQLite alone has transactions that callers share: a server answers a write when it has committed it."""
    async with open_untyped(url, lock_timeout=30) as cp:
        for life in range(SIZE):
            noted = str(tmp_path / f"{life}")
            process = get_context("spawn").Process(target=turns.append_in_crowds_forever, args=(url, f"{life}", noted))
            process.start()
            try:
                while len(lines_of(noted)) < 50:
                    assert process.is_alive()
                    await asyncio.sleep(0.01)
            finally:
                process.kill()
                process.join()
            # This write has to get the lock that the dead process may have held.
            await cp.append(f"{life}", [racing.said("alive")])
            stored, answered = await texts(cp, f"{life}"), lines_of(noted)
            assert len(set(stored)) == len(stored)
            assert set(answered) <= set(stored)
            assert len(stored) - 1 - len(answered) <= turns.CROWD  # one of each caller that was not answered
