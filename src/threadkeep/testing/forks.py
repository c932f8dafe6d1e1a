"""Snapshots and forks: the completed part of a thread, up to and including one run."""

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.errors import (
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    UnstorableValueError,
)
from threadkeep.testing.samples import asking, one_of_each, said, texts


async def run_of(checkpointer: Any, thread_id: str, run_id: str, *said_in_it: str) -> None:
    """A whole run: claimed, its messages, completed."""
    await checkpointer.claim_run(thread_id, run_id)
    await checkpointer.append(thread_id, [said(text, run_id) for text in said_in_it])
    await checkpointer.mark_run_complete(thread_id, run_id)


class ForksContract:
    """snapshot and fork."""

    pytestmark = pytest.mark.asyncio

    async def test_a_snapshot_ends_after_its_run(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "first", "1", "2")
        await run_of(checkpointer, "thread", "second", "3")
        assert texts(await checkpointer.snapshot("thread", after_run_id="first")) == ["1", "2"]
        assert texts(await checkpointer.snapshot("thread", after_run_id="second")) == ["1", "2", "3"]

    async def test_runs_count_in_the_order_of_their_completion(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "slow")
        await checkpointer.append("thread", [said("slow 1", "slow")])
        await run_of(checkpointer, "thread", "quick", "quick 1")
        await checkpointer.append("thread", [said("slow 2", "slow")])
        await checkpointer.mark_run_complete("thread", "slow")
        assert texts(await checkpointer.snapshot("thread", after_run_id="quick")) == ["quick 1"]
        everything = ["slow 1", "quick 1", "slow 2"]
        assert texts(await checkpointer.snapshot("thread", after_run_id="slow")) == everything

    async def test_open_and_unclaimed_runs_are_left_out(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "open")
        await checkpointer.append("thread", [said("open", "open"), said("unclaimed", "unclaimed")])
        await run_of(checkpointer, "thread", "done", "done")
        assert texts(await checkpointer.snapshot("thread", after_run_id="done")) == ["done"]
        await checkpointer.fork("thread", "copy", after_run_id="done")
        assert texts((await checkpointer.load("copy")).messages) == ["done"]

    async def test_legacy_messages_are_in_every_slice(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("before")])
        await run_of(checkpointer, "thread", "run", "in it")
        await checkpointer.append("thread", [said("after")])
        assert texts(await checkpointer.snapshot("thread", after_run_id="run")) == [
            "before",
            "in it",
            "after",
        ]
        await checkpointer.fork("thread", "copy", after_run_id="run")
        copied = (await checkpointer.load("copy")).messages
        assert [message.run_id for message in copied] == [None, "run", None]

    async def test_a_thread_of_legacy_messages_alone_cannot_be_forked(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("legacy")])
        with pytest.raises(RunNotCompletedError):
            await checkpointer.fork("thread", "copy", after_run_id="any")
        with pytest.raises(RunNotCompletedError):
            await checkpointer.snapshot("thread", after_run_id="any")
        assert await checkpointer.load("copy") is None

    async def test_an_unknown_source_is_an_error(self, checkpointer: Any) -> None:
        with pytest.raises(ThreadNotFoundError) as caught:
            await checkpointer.snapshot("nobody", after_run_id="run")
        assert caught.value.thread_id == "nobody"
        with pytest.raises(ThreadNotFoundError):
            await checkpointer.fork("nobody", "copy", after_run_id="run")
        assert await checkpointer.load("copy") is None

    @pytest.mark.parametrize("run_id", ["open", "unknown", "elsewhere"])
    async def test_only_a_completed_run_of_this_thread_can_be_forked_from(self, checkpointer: Any, run_id: str) -> None:
        await checkpointer.claim_run("thread", "open")
        await run_of(checkpointer, "other", "elsewhere", "x")
        with pytest.raises(RunNotCompletedError) as caught:
            await checkpointer.fork("thread", "copy", after_run_id=run_id)
        assert (caught.value.thread_id, caught.value.run_id) == ("thread", run_id)
        with pytest.raises(RunNotCompletedError):
            await checkpointer.snapshot("thread", after_run_id=run_id)
        assert await checkpointer.load("copy") is None

    async def test_a_fork_copies_every_field(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", one_of_each("run"))
        await checkpointer.mark_run_complete("thread", "run")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        assert (await checkpointer.load("copy")).messages == one_of_each("run")
        assert await checkpointer.snapshot("thread", after_run_id="run") == one_of_each("run")

    async def test_a_fork_leaves_the_source_untouched(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.save_extra("thread", {"a": 1})
        before = await checkpointer.load("thread")
        await checkpointer.fork("thread", "copy", after_run_id="run", metadata={"label": "x"})
        await checkpointer.append("copy", [said("only here")])
        await checkpointer.save_extra("copy", {"a": 2})
        assert await checkpointer.load("thread") == before

    async def test_a_fork_remembers_its_parent(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        assert (await checkpointer.load("copy")).parent_thread_id == "thread"

    async def test_a_fork_takes_extra_along_and_adds_its_metadata(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.save_extra("thread", {"a": [1], "fork": "old"})
        await checkpointer.fork("thread", "plain", after_run_id="run")
        await checkpointer.fork("thread", "labelled", after_run_id="run", metadata={"label": "x", "n": None})
        await checkpointer.fork("thread", "empty", after_run_id="run", metadata={})
        assert (await checkpointer.load("plain")).extra == {"a": [1], "fork": "old"}
        assert (await checkpointer.load("labelled")).extra == {"a": [1], "fork": {"label": "x", "n": None}}
        assert (await checkpointer.load("empty")).extra == {"a": [1], "fork": {}}

    async def test_fork_metadata_must_be_json(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.fork("thread", "copy", after_run_id="run", metadata={"at": {1, 2}})
        assert caught.value.path == "metadata.at"
        assert await checkpointer.load("copy") is None

    async def test_a_fork_of_a_run_without_messages_is_empty(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        data = await checkpointer.load("copy")
        assert (data.messages, data.parent_thread_id) == ([], "thread")

    async def test_a_taken_id_is_refused_and_keeps_its_thread(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.append("taken", [said("mine")])
        before = await checkpointer.load("taken")
        with pytest.raises(ThreadAlreadyExistsError) as caught:
            await checkpointer.fork("thread", "taken", after_run_id="run")
        assert caught.value.thread_id == "taken"
        assert await checkpointer.load("taken") == before

    async def test_a_thread_cannot_be_forked_onto_itself(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        with pytest.raises(ThreadAlreadyExistsError):
            await checkpointer.fork("thread", "thread", after_run_id="run")
        assert texts((await checkpointer.load("thread")).messages) == ["1"]

    @pytest.mark.parametrize("write", ["claim", "extra"])
    async def test_a_thread_without_messages_takes_its_id_too(self, checkpointer: Any, write: str) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        if write == "claim":
            await checkpointer.claim_run("taken", "run")
        else:
            await checkpointer.save_extra("taken", {})
        with pytest.raises(ThreadAlreadyExistsError):
            await checkpointer.fork("thread", "taken", after_run_id="run")

    async def test_copied_runs_are_completed_runs(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.claim_run("thread", "open")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        with pytest.raises(RunAlreadyCompletedError):
            await checkpointer.claim_run("copy", "run")
        with pytest.raises(RunAlreadyCompletedError):
            await checkpointer.append("copy", [said("late", "run")])
        # The open run stayed behind: here its id is free.
        await checkpointer.claim_run("copy", "open")
        with pytest.raises(RunAlreadyClaimedError):
            await checkpointer.claim_run("thread", "open")

    async def test_a_fork_can_go_on_and_be_forked_again(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("legacy")])
        await run_of(checkpointer, "thread", "one", "1")
        await run_of(checkpointer, "thread", "two", "2")
        await run_of(checkpointer, "thread", "three", "3")
        await checkpointer.fork("thread", "copy", after_run_id="two")
        await run_of(checkpointer, "copy", "own", "own")
        assert texts(await checkpointer.snapshot("copy", after_run_id="two")) == ["legacy", "1", "2"]
        assert texts(await checkpointer.snapshot("copy", after_run_id="own")) == ["legacy", "1", "2", "own"]
        await checkpointer.fork("copy", "copy of copy", after_run_id="one")
        again = await checkpointer.load("copy of copy")
        assert (texts(again.messages), again.parent_thread_id) == (["legacy", "1"], "copy")

    async def test_pending_request_and_answers_stay_behind(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.save_pending_request("thread", asking(), run_id="run")
        await checkpointer.save_hitl_answer("thread", "question-1", "yes", run_id="run")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        assert await checkpointer.load_pending("copy") is None
        assert not await checkpointer.has_hitl_answer("copy", "question-1", run_id="run")
        assert await checkpointer.load_pending("thread") == (asking(), "run")


class ForkRecordContract:
    """What cp.threads and cp.runs tell of a fork."""

    pytestmark = pytest.mark.asyncio

    async def test_a_fork_has_gapless_seqs_and_says_where_it_was_cut(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "open")
        await checkpointer.append("thread", [said("left out", "open"), said("legacy")])
        await run_of(checkpointer, "thread", "one", "1", "2")
        await checkpointer.append("thread", [said("left out too", "open")])
        await run_of(checkpointer, "thread", "two", "3")
        await checkpointer.fork("thread", "copy", after_run_id="one")
        record = await checkpointer.threads.get("copy")
        assert (record.parent_thread_id, record.forked_at_seq) == ("thread", 4)
        assert (record.last_seq, record.last_completion_seq) == (3, 1)
        await checkpointer.append("copy", [said("next")])
        assert (await checkpointer.threads.get("copy")).last_seq == 4

    async def test_a_fork_of_nothing_was_cut_at_zero(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        record = await checkpointer.threads.get("copy")
        assert (record.forked_at_seq, record.last_seq) == (0, 0)

    async def test_the_next_completion_seq_of_a_fork_goes_on(self, checkpointer: Any) -> None:
        for run_id in ("one", "two", "three"):
            await run_of(checkpointer, "thread", run_id, run_id)
        await checkpointer.fork("thread", "copy", after_run_id="two")
        await run_of(checkpointer, "copy", "own", "own")
        copied, original = await checkpointer.runs.list("copy"), await checkpointer.runs.list("thread")
        assert [(run.run_id, run.completion_seq) for run in copied] == [("one", 1), ("two", 2), ("own", 3)]
        assert copied[:2] == original[:2]

    async def test_the_source_keeps_its_time_of_change(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        before = await checkpointer.threads.get("thread")
        await checkpointer.fork("thread", "copy", after_run_id="run")
        assert await checkpointer.threads.get("thread") == before
