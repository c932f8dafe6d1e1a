"""Several processes append, stream and compact at once. (Memory is left out: it lives in one process.)"""

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import racing
from racing import RACERS, SIZE, killed_in_the_middle, open_untyped, race, rows
from threadkeep.sql import tables

pytestmark = pytest.mark.stress


async def what_the_window_stands_for(cp: Any) -> list[int]:
    """The seqs of all messages in the window, and under the summaries in it."""
    seqs: list[int] = []
    for item in await cp.context.items("thread"):
        if item.is_summary:
            seqs += [record.seq for record in await cp.context.expand("thread", item, deep=True)]
        else:
            seqs.append(item.position)
    return sorted(seqs)


async def test_each_message_id_goes_to_one_process(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        won = race(racers, url, racing.append_same_ids, rounds)
        assert sorted(number for each in won for number in each) == list(range(rounds))
        stored = {record.message_id: record.message for record in await cp.messages.list("thread")}
    for racer, numbers in enumerate(won):
        for number in numbers:
            assert stored[f"message {number}"].content[0].text == f"{racer}"


async def test_indexes_of_parts_have_no_gaps(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        indexes = race(racers, url, racing.stream_parts, rounds)
        parts = (await cp.parts.of("thread", ["message"]))["message"]
    assert sorted(index for each in indexes for index in each) == list(range(RACERS * rounds))
    for racer, own in enumerate(indexes):
        assert [part.index for part in parts if part.content == racer] == own


async def test_compactions_at_once_lose_no_message(url: str, racers: ProcessPoolExecutor) -> None:
    rounds = 10 * SIZE
    async with open_untyped(url) as cp:
        outcomes = race(racers, url, racing.append_and_compact, rounds)
        log = await cp.messages.list("thread")
        assert await what_the_window_stands_for(cp) == [record.seq for record in log] == list(range(1, len(log) + 1))
        assert len(log) == RACERS * rounds
        assert len(await cp.context.load("thread")) < len(log)
    summaries = await rows(url, tables.summaries.c.number, thread_id="thread")
    assert sorted(row.number for row in summaries) == list(range(1, sum(won for won, _ in outcomes) + 1))


async def test_a_killed_compaction_happened_whole_or_not_at_all(url: str) -> None:
    async with open_untyped(url, lock_timeout=30) as cp:
        for _ in range(2 * SIZE):
            before = await cp.threads.get("thread")
            seen = before.last_seq if before else 0
            with killed_in_the_middle(url, racing.compact_forever) as writer:
                while (record := await cp.threads.get("thread")) is None or record.last_seq < seen + 12:
                    assert writer.poll() is None
            # The next write has to get the lock that the dead process may have held.
            await cp.append("thread", [racing.said("alive")])
            assert await what_the_window_stands_for(cp) == list(range(1, (await cp.threads.get("thread")).last_seq + 1))
