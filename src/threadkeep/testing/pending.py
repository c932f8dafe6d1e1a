"""The pending request: one a thread, together with the run that waits on it."""

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.testing.samples import REQUESTS, asking, said, texts


class PendingContract:
    """save_pending_request, clear_pending_request_if_matches, load_pending and its two halves."""

    pytestmark = pytest.mark.asyncio

    async def test_nothing_is_pending_at_first(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("one")])
        for thread_id in ("thread", "nobody"):
            assert await checkpointer.load_pending(thread_id) is None
            assert await checkpointer.load_pending_request(thread_id) is None
            assert await checkpointer.load_pending_run_id(thread_id) is None

    @pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.payload.kind)
    async def test_request_and_run_come_back_together(self, checkpointer: Any, request_: Any) -> None:
        await checkpointer.save_pending_request("thread", request_, run_id="run")
        assert await checkpointer.load_pending("thread") == (request_, "run")
        assert await checkpointer.load_pending_request("thread") == request_
        assert await checkpointer.load_pending_run_id("thread") == "run"

    async def test_a_request_needs_no_run(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking())
        assert await checkpointer.load_pending("thread") == (asking(), None)
        assert await checkpointer.load_pending_run_id("thread") is None

    async def test_a_request_makes_the_thread(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking())
        data = await checkpointer.load("thread")
        assert (data.messages, data.extra) == ([], {})

    async def test_a_second_request_replaces_the_first_whole(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking("one"), run_id="run")
        await checkpointer.save_pending_request("thread", asking("two"))
        assert await checkpointer.load_pending("thread") == (asking("two"), None)

    async def test_none_clears_request_and_run(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking(), run_id="run")
        await checkpointer.save_pending_request("thread", None, run_id="ignored")
        assert await checkpointer.load_pending("thread") is None
        assert await checkpointer.load_pending_run_id("thread") is None

    async def test_clearing_a_request_makes_no_thread(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", None)
        assert await checkpointer.load("thread") is None
        assert not await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run")
        assert await checkpointer.load("thread") is None

    async def test_a_match_is_cleared_once(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking("q"), run_id="run")
        assert await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run") is True
        assert await checkpointer.load_pending("thread") is None
        assert await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run") is False

    @pytest.mark.parametrize(("question_id", "run_id"), [("q", "other"), ("other", "run"), ("Q", "run"), ("q", "Run")])
    async def test_without_a_match_nothing_is_cleared(self, checkpointer: Any, question_id: str, run_id: str) -> None:
        await checkpointer.save_pending_request("thread", asking("q"), run_id="run")
        assert not await checkpointer.clear_pending_request_if_matches("thread", question_id=question_id, run_id=run_id)
        assert await checkpointer.load_pending("thread") == (asking("q"), "run")

    async def test_a_request_without_a_run_matches_no_run(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("thread", asking("q"))
        assert not await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run")
        assert await checkpointer.load_pending("thread") == (asking("q"), None)

    async def test_pending_requests_do_not_mix(self, checkpointer: Any) -> None:
        await checkpointer.save_pending_request("left", asking("l"), run_id="run-l")
        await checkpointer.save_pending_request("right", asking("r"), run_id="run-r")
        await checkpointer.save_pending_request("left", None)
        assert await checkpointer.load_pending("left") is None
        assert await checkpointer.load_pending("right") == (asking("r"), "run-r")

    async def test_a_pending_request_outlives_messages_and_runs(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.save_pending_request("thread", asking(), run_id="run")
        await checkpointer.append("thread", [said("while waiting", "run")])
        await checkpointer.mark_run_complete("thread", "run")
        assert await checkpointer.load_pending("thread") == (asking(), "run")
        assert texts((await checkpointer.load("thread")).messages) == ["while waiting"]
