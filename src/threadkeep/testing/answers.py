"""The answers ledger: what humans answered, for replay on resume."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from threadkeep.errors import InvalidIdError, UnstorableValueError
from threadkeep.testing.samples import STORABLE_VALUES, UNSTORABLE_VALUES, same


class Decision(BaseModel):
    """An answer that a host has as a model."""

    decision: str
    edited: dict[str, Any] | None = None


class AnswersContract:
    """save_hitl_answer, load_hitl_answer, has_hitl_answer, clear_hitl_answers."""

    pytestmark = pytest.mark.asyncio

    async def test_there_is_no_answer_at_first(self, checkpointer: Any) -> None:
        assert await checkpointer.load_hitl_answer("thread", "q") is None
        assert await checkpointer.has_hitl_answer("thread", "q") is False
        assert await checkpointer.load("thread") is None

    async def test_an_answer_comes_back(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "q", {"decision": "approve"}, run_id="run")
        assert await checkpointer.load_hitl_answer("thread", "q", run_id="run") == {"decision": "approve"}
        assert await checkpointer.has_hitl_answer("thread", "q", run_id="run") is True

    async def test_any_json_answer_comes_back_as_it_went_in(self, checkpointer: Any) -> None:
        for answer in STORABLE_VALUES:
            await checkpointer.save_hitl_answer("thread", "q", answer)
            loaded = await checkpointer.load_hitl_answer("thread", "q")
            assert same(loaded, answer), f"{answer!r:.50} came back as {loaded!r:.50}"

    async def test_a_stored_none_can_be_told_from_none(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "q", None)
        assert await checkpointer.load_hitl_answer("thread", "q") is None
        assert await checkpointer.has_hitl_answer("thread", "q") is True

    async def test_an_answer_that_is_not_json_is_refused_with_its_path(self, checkpointer: Any) -> None:
        for answer, path in UNSTORABLE_VALUES:
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.save_hitl_answer("thread", "q", answer)
            assert caught.value.path == f"answer{path}"
        assert await checkpointer.load("thread") is None

    async def test_a_model_is_stored_as_the_json_it_dumps_to(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "q", Decision(decision="edit", edited={"a": 1}))
        assert await checkpointer.load_hitl_answer("thread", "q") == {"decision": "edit", "edited": {"a": 1}}

    async def test_a_second_answer_replaces_the_first(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "q", "first", run_id="run")
        await checkpointer.save_hitl_answer("thread", "q", "second", run_id="run")
        assert await checkpointer.load_hitl_answer("thread", "q", run_id="run") == "second"

    async def test_an_answer_makes_the_thread(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "q", "yes")
        assert (await checkpointer.load("thread")).messages == []

    async def test_runs_questions_and_threads_are_kept_apart(self, checkpointer: Any) -> None:
        keys = [
            ("thread", "q", "run"),
            ("thread", "q", "Run"),
            ("thread", "q", None),
            ("thread", "Q", "run"),
            ("other", "q", "run"),
        ]
        for number, (thread_id, question_id, run_id) in enumerate(keys):
            await checkpointer.save_hitl_answer(thread_id, question_id, number, run_id=run_id)
        for number, (thread_id, question_id, run_id) in enumerate(keys):
            assert await checkpointer.load_hitl_answer(thread_id, question_id, run_id=run_id) == number

    async def test_clearing_takes_just_the_named_questions(self, checkpointer: Any) -> None:
        for question_id in ("a", "b", "c"):
            await checkpointer.save_hitl_answer("thread", question_id, question_id, run_id="run")
        await checkpointer.clear_hitl_answers("thread", iter(["a", "c", "a", "unknown"]), run_id="run")
        left = [name for name in "abc" if await checkpointer.has_hitl_answer("thread", name, run_id="run")]
        assert left == ["b"]

    async def test_clearing_without_questions_takes_the_whole_run_and_no_other(self, checkpointer: Any) -> None:
        for run_id in ("run", "other", None):
            await checkpointer.save_hitl_answer("thread", "a", 1, run_id=run_id)
            await checkpointer.save_hitl_answer("thread", "b", 2, run_id=run_id)
        await checkpointer.clear_hitl_answers("thread", run_id="run")
        assert not await checkpointer.has_hitl_answer("thread", "a", run_id="run")
        assert not await checkpointer.has_hitl_answer("thread", "b", run_id="run")
        assert await checkpointer.has_hitl_answer("thread", "a", run_id="other")
        assert await checkpointer.has_hitl_answer("thread", "b")
        await checkpointer.clear_hitl_answers("thread")
        assert not await checkpointer.has_hitl_answer("thread", "b")
        assert await checkpointer.has_hitl_answer("thread", "a", run_id="other")

    async def test_clearing_no_questions_clears_nothing(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "a", 1)
        await checkpointer.clear_hitl_answers("thread", [])
        assert await checkpointer.has_hitl_answer("thread", "a")

    async def test_many_questions_can_be_cleared_at_once(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "number 1999", 1)
        await checkpointer.clear_hitl_answers("thread", [f"number {number}" for number in range(2_000)])
        assert not await checkpointer.has_hitl_answer("thread", "number 1999")

    async def test_clearing_answers_makes_no_thread(self, checkpointer: Any) -> None:
        await checkpointer.clear_hitl_answers("thread", run_id="run")
        assert await checkpointer.load("thread") is None

    async def test_one_string_is_not_a_list_of_questions(self, checkpointer: Any) -> None:
        await checkpointer.save_hitl_answer("thread", "a", 1)
        with pytest.raises(InvalidIdError):
            await checkpointer.clear_hitl_answers("thread", "a")
        assert await checkpointer.has_hitl_answer("thread", "a")
