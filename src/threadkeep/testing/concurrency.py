"""Many callers at once, in one process. (Races between processes need a database to meet in: see our own tests.)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from threadkeep.errors import RunAlreadyClaimedError, RunAlreadyCompletedError, ThreadAlreadyExistsError
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import asking, said, texts


async def outcomes(*calls: Any) -> list[Any]:
    """What each of the calls returned or raised, all made at once."""
    return await asyncio.gather(*calls, return_exceptions=True)


class ConcurrencyContract:
    """Nothing is lost, doubled or half done."""

    pytestmark = pytest.mark.asyncio

    async def test_one_of_many_claims_wins(self, checkpointer: Any) -> None:
        results = await outcomes(*(checkpointer.claim_run("thread", "run") for _ in range(20)))
        assert results.count(None) == 1
        assert {type(result) for result in results if result is not None} == {RunAlreadyClaimedError}

    async def test_appends_are_kept_whole_and_lose_nothing(self, checkpointer: Any) -> None:
        await asyncio.gather(
            *(checkpointer.append("thread", [said(f"{number}:{part}") for part in range(3)]) for number in range(30))
        )
        stored = texts((await checkpointer.load("thread")).messages)
        assert sorted(stored) == sorted(f"{number}:{part}" for number in range(30) for part in range(3))
        for start in range(0, 90, 3):
            number = stored[start].partition(":")[0]
            assert stored[start : start + 3] == [f"{number}:{part}" for part in range(3)]

    async def test_merges_of_different_keys_all_survive(self, checkpointer: Any) -> None:
        await asyncio.gather(*(checkpointer.save_extra("thread", {f"key {n}": n}) for n in range(30)))
        assert (await checkpointer.load("thread")).extra == {f"key {n}": n for n in range(30)}

    async def test_completions_are_numbered_without_gaps(self, checkpointer: Any) -> None:
        names = [f"run {number}" for number in range(20)]
        await asyncio.gather(*(checkpointer.claim_run("thread", name) for name in names))
        await asyncio.gather(*(checkpointer.mark_run_complete("thread", name) for name in names * 2))
        numbers = sorted(run.completion_seq for run in await checkpointer.runs.list("thread"))
        assert numbers == list(range(1, 21))

    async def test_no_message_lands_after_the_completion(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        results = await outcomes(
            *(checkpointer.append("thread", [said(str(number), "run")]) for number in range(10)),
            checkpointer.mark_run_complete("thread", "run"),
            *(checkpointer.append("thread", [said(str(number), "run")]) for number in range(10, 20)),
        )
        assert {type(result) for result in results if result is not None} <= {RunAlreadyCompletedError}
        appended = results[:10] + results[11:]
        assert len((await checkpointer.load("thread")).messages) == appended.count(None)

    async def test_one_of_many_forks_gets_the_id(self, checkpointer: Any) -> None:
        for name in ("left", "right"):
            await run_of(checkpointer, name, "run", name)
        results = await outcomes(
            *(checkpointer.fork(name, "copy", after_run_id="run") for name in ["left", "right"] * 5)
        )
        assert results.count(None) == 1
        assert {type(result) for result in results if result is not None} == {ThreadAlreadyExistsError}
        winner = ["left", "right"][results.index(None) % 2]
        data = await checkpointer.load("copy")
        assert (texts(data.messages), data.parent_thread_id) == ([winner], winner)

    async def test_one_of_many_answers_clears_the_question(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking("q"), run_id="run")
        results = await outcomes(
            *(checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run") for _ in range(10))
        )
        assert sorted(results) == [False] * 9 + [True]

    async def test_a_load_is_one_snapshot(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {"count": 0})

        async def write() -> None:
            for number in range(1, 21):
                async with checkpointer.transaction() as tx:
                    await tx.append("thread", [said(str(number))])
                    await tx.save_extra("thread", {"count": number})

        writing = asyncio.create_task(write())
        while not writing.done():
            data = await checkpointer.load("thread")
            assert len(data.messages) == data.extra["count"]
            await asyncio.sleep(0)  # a backend that never waits would keep the writer from its turn
        await writing
        assert (await checkpointer.load("thread")).extra == {"count": 20}
