"""The resume report, and mending a transcript that a crash cut short."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from threadkeep.errors import ThreadDeletedError
from threadkeep.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage
from threadkeep.testing.forks import run_of
from threadkeep.testing.ledger import interrupted_call
from threadkeep.testing.samples import asking, said


def calling(*call_ids: str, run_id: str | None = None) -> AssistantMessage:
    """The model asks for a tool, so often, with other arguments each time."""
    calls = [ToolCall(id=id_, name="pay", arguments={"amount": number}) for number, id_ in enumerate(call_ids, 1)]
    return AssistantMessage(content=[TextContent(text="one moment"), *calls], run_id=run_id)


def answered(call_id: str, run_id: str | None = None) -> ToolResultMessage:
    """The tool's result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="pay", content=[TextContent(text="paid")], run_id=run_id)


class ResumeContract:
    """resume and repair."""

    pytestmark = pytest.mark.asyncio

    async def test_an_unknown_thread_has_no_report(self, checkpointer: Any) -> None:
        assert await checkpointer.resume("nobody") is None
        assert await checkpointer.repair("nobody") == []
        assert await checkpointer.load("nobody") is None

    async def test_a_thread_that_ended_well_is_clean(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.append("thread", [calling("call"), answered("call")])
        report = await checkpointer.resume("thread")
        assert report.is_clean
        assert (report.thread_id, report.status, report.checkpoint) == ("thread", "active", None)
        assert (report.pending_request, report.pending_run_id) == (None, None)
        assert (report.open_runs, report.calls_in_doubt, report.unanswered_calls) == ([], [], [])

    async def test_it_tells_everything(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "done", "1")
        await checkpointer.claim_run("thread", "claimed")
        async with checkpointer.runs.lease("thread", "left", ttl=600):
            pass
        await checkpointer.checkpoints.save("thread", state=1)
        await checkpointer.checkpoints.save("thread", plan=["next"], budget_spent_usd=0.5)
        await checkpointer.save_pending_request("thread", asking("question"), run_id="claimed")
        await checkpointer.append("thread", [calling("answered", "call", run_id="claimed")])
        await checkpointer.append("thread", [answered("answered", "claimed"), said("hello?")])
        await interrupted_call(checkpointer)
        issued = await checkpointer.ledger.issue("thread", "in flight", "search", {"q": 1})
        await checkpointer.threads.set_status("thread", "failed")
        async with checkpointer.runs.lease("thread", "held", ttl=600):
            report = await checkpointer.resume("thread")

        assert not report.is_clean
        assert report.status == "failed"
        assert (report.checkpoint.version, report.checkpoint.seq, report.checkpoint.plan) == (2, 1, ["next"])
        assert (report.pending_request.question_id, report.pending_run_id) == ("question", "claimed")
        runs = {run.run_id: (run.state, run.owner is None) for run in report.open_runs}
        assert runs == {"claimed": ("claimed", True), "left": ("abandoned", False), "held": ("leased", False)}
        assert all(timedelta(0) <= run.age < timedelta(minutes=10) for run in report.open_runs)
        calls = {entry.call_id: (entry.tool_name, entry.state) for entry in report.calls_in_doubt}
        assert calls == {"call": ("pay", "unknown"), "in flight": ("search", "in_flight")}
        assert issued.entry in report.calls_in_doubt
        (unanswered,) = report.unanswered_calls
        assert (unanswered.call_id, unanswered.tool_name) == ("call", "pay")
        assert (unanswered.seq, unanswered.run_id) == (2, "claimed")

    async def test_other_threads_do_not_show(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("1")])
        await checkpointer.append("Thread", [calling("call")])
        await checkpointer.claim_run("Thread", "run")
        await checkpointer.checkpoints.save("Thread")
        await checkpointer.ledger.issue("Thread", "call", "pay", {})
        assert (await checkpointer.resume("thread")).is_clean

    async def test_a_repair_appends_what_is_missing(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.ledger.once("thread", "known", "pay", {"amount": 1}, lambda amount: {"paid": amount})
        before = [said("hi", "run"), calling("known", "lost", "has one", run_id="run"), answered("has one", "run")]
        await checkpointer.append("thread", before)
        appended = await checkpointer.repair("thread")
        assert (await checkpointer.load("thread")).messages == [*before, *appended]
        known, lost = appended
        assert (known.tool_call_id, known.is_error, known.content[0].text) == ("known", False, '{"paid":1}')
        assert (lost.tool_call_id, lost.is_error, lost.tool_name, lost.run_id) == ("lost", True, "pay", "run")
        assert (await checkpointer.resume("thread")).unanswered_calls == []
        assert await checkpointer.repair("thread") == []

    async def test_a_repair_finds_the_result_of_the_same_call_under_another_id(self, checkpointer: Any) -> None:
        await checkpointer.ledger.once("thread", "first", "pay", {"amount": 1}, lambda amount: "paid")
        await checkpointer.append("thread", [calling("asked again")])
        (result,) = await checkpointer.repair("thread")
        assert (result.tool_call_id, result.content[0].text, result.is_error) == ("asked again", "paid", False)

    async def test_a_call_in_flight_is_left_to_its_worker(self, checkpointer: Any) -> None:
        """Also one that asks for the same under another id: it will get the same result."""
        await checkpointer.append("thread", [calling("in flight", "lost"), calling("the same")])
        await checkpointer.ledger.issue("thread", "in flight", "pay", {"amount": 1})
        (result,) = await checkpointer.repair("thread")
        assert result.tool_call_id == "lost"
        left = [call.call_id for call in (await checkpointer.resume("thread")).unanswered_calls]
        assert left == ["in flight", "the same"]

    async def test_a_thread_that_was_put_away_is_not_repaired(self, checkpointer: Any) -> None:
        """Also where there is nothing to append."""
        for thread_id, call_id in (("in flight", "call"), ("lost", "another")):
            await checkpointer.append(thread_id, [calling("call")])
            await checkpointer.ledger.issue(thread_id, call_id, "other", {})
            await checkpointer.threads.soft_delete(thread_id)
            with pytest.raises(ThreadDeletedError):
                await checkpointer.repair(thread_id)

    async def test_an_id_that_is_used_again_does_not_get_the_other_calls_result(self, checkpointer: Any) -> None:
        await checkpointer.ledger.once("thread", "call", "pay", {"amount": 7}, lambda amount: "a receipt")
        await checkpointer.append("thread", [calling("call")])
        (result,) = await checkpointer.repair("thread")
        assert (result.is_error, result.content[0].text == "a receipt") == (True, False)

    async def test_a_repair_tells_why_a_call_failed(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", {"amount": 1})
        await checkpointer.ledger.fail("thread", "call", "no money")
        await checkpointer.append("thread", [calling("call")])
        (result,) = await checkpointer.repair("thread")
        assert (result.is_error, result.content[0].text) == (True, "This tool call failed: no money")

    async def test_a_completed_run_can_be_repaired(self, checkpointer: Any) -> None:
        """It takes no more messages, so the result belongs to no run, and every fork has it."""
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [calling("call", run_id="run")])
        await checkpointer.mark_run_complete("thread", "run")
        (result,) = await checkpointer.repair("thread")
        assert result.run_id is None
        assert len(await checkpointer.snapshot("thread", after_run_id="run")) == 2

    async def test_repairs_at_once_append_it_once(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [calling("call")])
        repairs = await asyncio.gather(*(checkpointer.repair("thread") for _ in range(4)))
        assert sorted(map(len, repairs)) == [0, 0, 0, 1]
        assert len((await checkpointer.load("thread")).messages) == 2
