"""Runs: claimed once, completed once, and then closed to messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import RunAlreadyClaimedError, RunAlreadyCompletedError, RunNotClaimedError
from threadkeep.testing.samples import said, texts


class RunsContract:
    """claim_run and mark_run_complete."""

    pytestmark = pytest.mark.asyncio

    async def test_claiming_makes_the_thread(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        data = await checkpointer.load("thread")
        assert (data.messages, data.extra) == ([], {})

    async def test_an_open_run_cannot_be_claimed_again(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        with pytest.raises(RunAlreadyClaimedError) as caught:
            await checkpointer.claim_run("thread", "run")
        assert (caught.value.thread_id, caught.value.run_id) == ("thread", "run")

    async def test_a_completed_run_cannot_be_claimed_again(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.mark_run_complete("thread", "run")
        with pytest.raises(RunAlreadyCompletedError):
            await checkpointer.claim_run("thread", "run")

    async def test_the_same_run_id_in_two_threads_is_two_runs(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("left", "run")
        await checkpointer.claim_run("right", "run")
        await checkpointer.mark_run_complete("left", "run")
        await checkpointer.append("right", [said("still open", "run")])
        assert texts((await checkpointer.load("right")).messages) == ["still open"]

    async def test_completing_twice_changes_nothing(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "first")
        await checkpointer.claim_run("thread", "second")
        await checkpointer.append("thread", [said("1", "first"), said("2", "second")])
        await checkpointer.mark_run_complete("thread", "first")
        await checkpointer.mark_run_complete("thread", "second")
        await checkpointer.mark_run_complete("thread", "first")
        # Had the first run been completed anew, it would now come after the second.
        assert texts(await checkpointer.snapshot("thread", after_run_id="first")) == ["1"]

    async def test_a_run_nobody_claimed_cannot_be_completed(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        with pytest.raises(RunNotClaimedError) as caught:
            await checkpointer.mark_run_complete("thread", "other")
        assert (caught.value.thread_id, caught.value.run_id) == ("thread", "other")

    async def test_completing_in_an_unknown_thread_makes_no_thread(self, checkpointer: Any) -> None:
        with pytest.raises(RunNotClaimedError):
            await checkpointer.mark_run_complete("thread", "run")
        assert await checkpointer.load("thread") is None

    async def test_a_failed_claim_leaves_the_run_as_it_was(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        with pytest.raises(RunAlreadyClaimedError):
            await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [said("on it", "run")])
        await checkpointer.mark_run_complete("thread", "run")
        assert texts(await checkpointer.snapshot("thread", after_run_id="run")) == ["on it"]

    async def test_messages_keep_their_run_id(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [said("1", "run"), said("2")])
        assert [message.run_id for message in (await checkpointer.load("thread")).messages] == ["run", None]

    async def test_a_completed_run_takes_no_more_messages(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [said("in time", "run")])
        await checkpointer.mark_run_complete("thread", "run")
        with pytest.raises(RunAlreadyCompletedError) as caught:
            await checkpointer.append("thread", [said("late", "run")])
        assert (caught.value.thread_id, caught.value.run_id) == ("thread", "run")
        assert texts((await checkpointer.load("thread")).messages) == ["in time"]

    async def test_one_late_message_keeps_the_whole_append_out(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "done")
        await checkpointer.mark_run_complete("thread", "done")
        await checkpointer.claim_run("thread", "open")
        with pytest.raises(RunAlreadyCompletedError):
            await checkpointer.append("thread", [said("a"), said("b", "open"), said("late", "done"), said("c")])
        await checkpointer.append("thread", [said("d", "open")])
        assert texts((await checkpointer.load("thread")).messages) == ["d"]

    async def test_of_several_completed_runs_the_first_in_the_append_is_told(self, checkpointer: Any) -> None:
        for run_id in ("x", "y", "z"):
            await checkpointer.claim_run("thread", run_id)
            await checkpointer.mark_run_complete("thread", run_id)
        for run_ids in (["z", "y", "x"], ["x", "y", "z"], ["y", "z", "x"]):
            with pytest.raises(RunAlreadyCompletedError) as caught:
                await checkpointer.append("thread", [said("late", run_id) for run_id in ("open", *run_ids)])
            assert caught.value.run_id == run_ids[0]

    async def test_a_run_nobody_claimed_takes_messages(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("unclaimed", "run")])
        assert texts((await checkpointer.load("thread")).messages) == ["unclaimed"]
        await checkpointer.claim_run("thread", "run")
        await checkpointer.mark_run_complete("thread", "run")
        assert texts(await checkpointer.snapshot("thread", after_run_id="run")) == ["unclaimed"]

    async def test_several_runs_may_be_open_at_once(self, checkpointer: Any) -> None:
        for run_id in ("one", "two", "three"):
            await checkpointer.claim_run("thread", run_id)
        for run_id in ("two", "three", "one"):
            await checkpointer.mark_run_complete("thread", run_id)


class RunListContract:
    """cp.runs."""

    pytestmark = pytest.mark.asyncio

    async def test_runs_are_listed_in_the_order_they_were_claimed(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        for run_id in ("z", "a", "m"):
            await checkpointer.claim_run("thread", run_id)
        await checkpointer.mark_run_complete("thread", "m")
        await checkpointer.mark_run_complete("thread", "z")
        after = datetime.now(UTC)
        listed = await checkpointer.runs.list("thread")
        assert [(run.run_id, run.completion_seq) for run in listed] == [("z", 2), ("a", None), ("m", 1)]
        z, a, m = listed
        assert before <= z.claimed_at <= a.claimed_at <= m.claimed_at <= m.completed_at <= z.completed_at <= after
        assert a.completed_at is None
        assert {run.claimed_at.tzinfo for run in listed} == {UTC}

    async def test_completing_again_changes_no_time(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.mark_run_complete("thread", "run")
        once = await checkpointer.runs.list("thread")
        await checkpointer.mark_run_complete("thread", "run")
        assert await checkpointer.runs.list("thread") == once

    async def test_an_unknown_thread_has_no_runs(self, checkpointer: Any) -> None:
        assert await checkpointer.runs.list("nobody") == []
