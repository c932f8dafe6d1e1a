"""Several processes want to execute the same call, hold the same run, or save the next version."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import racing
import threadkeep
from crash.side_effects import lines_of
from racing import RACERS, SIZE, race
from threadkeep import CallState

pytestmark = pytest.mark.stress


def open_checkpointer(url: str, **options: Any) -> Any:
    """Untyped: here a missing thread is a failure, not a case."""
    return threadkeep.open_checkpointer(url, **options)


async def test_each_key_is_executed_by_one_process(url: str, racers: ProcessPoolExecutor, effects: str) -> None:
    rounds = 25 * SIZE
    async with open_checkpointer(url) as cp:
        seen = race(racers, url, racing.issue_all, rounds, effects)
        entries = await cp.ledger.list("thread")
    assert Counter(lines_of(effects)) == Counter(f"key {number}" for number in range(rounds))
    for number in range(rounds):
        states = Counter(each[number] for each in seen)
        # The others were told that it was in flight, or given the result.
        assert states.pop("executed") == 1
        assert set(states) <= {CallState.IN_FLIGHT, CallState.COMPLETED}
    assert [entry.state for entry in entries] == [CallState.COMPLETED] * rounds


async def test_once_runs_a_function_in_one_process(url: str, racers: ProcessPoolExecutor, effects: str) -> None:
    rounds = 25 * SIZE
    async with open_checkpointer(url):
        seen = race(racers, url, racing.run_once_all, rounds, effects)
    lines = Counter(lines_of(effects))
    for number in range(rounds):
        # What all got back, unless it was in flight, is what the one that ran it has made.
        results = {each[number] for each in seen} - {"in flight"}
        assert len(results) == 1
        assert lines.pop(results.pop()) == 1
    assert lines == {}


async def test_each_run_is_leased_by_one_process(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_checkpointer(url) as cp:
        won = race(racers, url, racing.lease_all, rounds)
        messages = (await cp.load("thread")).messages
        runs = await cp.runs.list("thread")
    assert sorted(number for each in won for number in each) == list(range(rounds))
    assert sorted(message.run_id for message in messages) == sorted(f"run {number}" for number in range(rounds))
    assert sorted(run.completion_seq for run in runs) == list(range(1, rounds + 1))


async def test_versions_of_checkpoints_have_no_gaps(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_checkpointer(url) as cp:
        versions = race(racers, url, racing.save_checkpoints, rounds)
        stored = await cp.checkpoints.list("thread")
    assert sorted(version for each in versions for version in each) == list(range(1, RACERS * rounds + 1))
    assert [checkpoint.version for checkpoint in stored] == list(range(1, RACERS * rounds + 1))
    # Each process has its versions in the order it saved them, each with what it had to say.
    for racer, its in enumerate(versions):
        assert its == sorted(its)
        assert [stored[version - 1].state for version in its] == [f"{racer}:{number}" for number in range(rounds)]
        # The transcript goes at least as far as the message that it appended before.
        assert all(stored[version - 1].seq >= number for number, version in enumerate(its, 1))
