"""Several processes write to one database at once. (Memory is left out: it lives in one process.)"""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from typing import Any

import pytest

import racing
from racing import RACERS, SIZE, killed_in_the_middle, open_untyped, race, race_of, rows, said
from threadkeep.sql import tables

pytestmark = pytest.mark.stress


async def seqs(url: str, thread_id: str = "thread") -> list[int]:
    found = await rows(url, tables.messages.c.seq, thread_id=thread_id)
    return sorted(row.seq for row in found)


async def test_each_run_is_claimed_by_one_process(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 25 * SIZE
    async with open_untyped(url):
        won = race(racers, url, racing.claim_all, rounds)
    assert sorted(number for each in won for number in each) == list(range(rounds))


async def test_seqs_have_no_gaps_and_batches_stay_whole(url: str, racers: ProcessPoolExecutor) -> None:
    async with open_untyped(url) as cp:
        total = sum(race(racers, url, racing.append_batches, 25 * SIZE))
        assert await seqs(url) == list(range(1, total + 1))
        texts = [message.content[0].text.split(":") for message in (await cp.load("thread")).messages]
    for (_, _, size), batch in groupby(texts, key=lambda text: (text[0], text[1], text[3])):
        assert [part for _, _, part, _ in batch] == [str(part) for part in range(int(size))]


async def test_completion_seqs_have_no_gaps(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_untyped(url) as cp:
        race(racers, url, racing.run_and_complete, rounds)
        runs = await cp.runs.list("thread")
        record = await cp.threads.get("thread")
    assert sorted(run.completion_seq for run in runs) == list(range(1, RACERS * rounds + 1))
    assert (record.last_seq, record.last_completion_seq) == (RACERS * rounds * 2, RACERS * rounds)


async def test_no_key_of_extra_is_lost(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 20 * SIZE
    async with open_untyped(url) as cp:
        race(racers, url, racing.add_keys, rounds)
        extra = (await cp.load("thread")).extra
    assert extra == {f"{racer}:{number}": number for racer in range(RACERS) for number in range(rounds)}


async def test_no_message_lands_in_a_completed_run(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        for number in range(rounds):
            await cp.claim_run("thread", f"run {number}")
        appended = [(racing.append_until_completed, (racer, rounds)) for racer in range(1, RACERS)]
        at_completion, *counts = race_of(racers, url, [(racing.complete_each, (0, rounds)), *appended])
        stored = Counter(message.run_id for message in (await cp.load("thread")).messages)
    assert [stored[f"run {number}"] for number in range(rounds)] == at_completion
    assert [sum(of_run) for of_run in zip(*counts, strict=True)] == at_completion
    assert await seqs(url) == list(range(1, sum(at_completion) + 1))


async def test_forks_hold_whole_runs_while_others_append(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 8 * SIZE
    async with open_untyped(url):
        runs = [(racing.run_and_complete, (racer, rounds)) for racer in (0, 1)]
        forks = [(racing.fork_completed, (racer, 2 * rounds)) for racer in (2, 3)]
        *_, first, second = race_of(racers, url, [*runs, *forks])
    # A fork after the n-th completion holds n whole runs of two messages.
    assert first == second == [(number, 2 * number) for number in range(1, 2 * rounds + 1)]
    for racer in (2, 3):
        assert await seqs(url, f"fork {racer} {rounds}") == list(range(1, 2 * (rounds + 1) + 1))


async def prepare_two_threads(cp: Any) -> None:
    for name in ("left", "right"):
        await cp.claim_run(name, "run")
        await cp.append(name, [said(name, "run")])
        await cp.mark_run_complete(name, "run")


async def test_opposite_forks_do_not_block_each_other(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_untyped(url) as cp:
        await prepare_two_threads(cp)
        assert race(racers, url, racing.fork_across, rounds) == [rounds] * RACERS
        assert (await cp.load("left")).messages == [said("left", "run")]


async def test_each_fork_target_goes_to_one_process(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_untyped(url) as cp:
        await prepare_two_threads(cp)
        won = race(racers, url, racing.fork_to_same, rounds)
        assert sorted(number for each in won for number in each) == list(range(rounds))
        for racer, numbers in enumerate(won):
            for number in numbers:
                data = await cp.load(f"copy {number}")
                parent = "left" if racer % 2 else "right"
                assert (data.parent_thread_id, data.messages) == (parent, [said(parent, "run")])


async def test_a_deleted_thread_leaves_nothing_and_starts_anew(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 15 * SIZE
    async with open_untyped(url) as cp:
        writes = [(racing.write_everything, (racer, rounds)) for racer in (0, 1)]
        deletes = [(racing.delete_again_and_again, (racer, 4 * rounds)) for racer in (2, 3)]
        race_of(racers, url, [*writes, *deletes])
        record = await cp.threads.get("thread")
        last_seq = record.last_seq if record else 0
        assert await seqs(url) == list(range(1, last_seq + 1))
        await cp.threads.delete("thread")
    for table in tables.OF_A_THREAD:
        assert await rows(url, table.c.thread_id, thread_id="thread") == []


async def test_a_killed_process_leaves_whole_appends_and_no_lock(url: str) -> None:
    async with open_untyped(url, lock_timeout=30) as cp:
        for _ in range(3 * SIZE):
            with killed_in_the_middle(url, racing.append_forever) as writer:
                before = await cp.threads.get("thread")
                seen = before.last_seq if before else 0
                while (record := await cp.threads.get("thread")) is None or record.last_seq < seen + 9:
                    assert writer.poll() is None
            # The next write has to get the lock that the dead process may have held.
            await cp.append("thread", [said("alive"), said("and"), said("well")])
            stored = await seqs(url)
            assert stored == list(range(1, len(stored) + 1))
            assert len(stored) % 3 == 0
