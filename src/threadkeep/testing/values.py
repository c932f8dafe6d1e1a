"""Ids and values: one fate on every backend, decided before a connection is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from threadkeep.errors import InvalidIdError, MessageTooLargeError, UnstorableValueError
from threadkeep.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage
from threadkeep.testing.samples import (
    BAD_IDS,
    DIFFERENT_IDS,
    GOOD_IDS,
    HOSTILE_TEXTS,
    STORABLE_VALUES,
    UNSTORABLE_VALUES,
    asking,
    nested,
    said,
    same,
    texts,
)

# Every id that any method takes, by the name of the argument.
IDS_OF_METHODS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "load thread_id": lambda cp, bad: cp.load(bad),
    "append thread_id": lambda cp, bad: cp.append(bad, [said("x")]),
    "append nothing thread_id": lambda cp, bad: cp.append(bad, []),
    "save_extra thread_id": lambda cp, bad: cp.save_extra(bad, {}),
    "claim_run thread_id": lambda cp, bad: cp.claim_run(bad, "run"),
    "claim_run run_id": lambda cp, bad: cp.claim_run("thread", bad),
    "mark_run_complete thread_id": lambda cp, bad: cp.mark_run_complete(bad, "run"),
    "mark_run_complete run_id": lambda cp, bad: cp.mark_run_complete("thread", bad),
    "snapshot thread_id": lambda cp, bad: cp.snapshot(bad, after_run_id="run"),
    "snapshot after_run_id": lambda cp, bad: cp.snapshot("thread", after_run_id=bad),
    "fork src_thread_id": lambda cp, bad: cp.fork(bad, "new", after_run_id="run"),
    "fork new_thread_id": lambda cp, bad: cp.fork("thread", bad, after_run_id="run"),
    "fork after_run_id": lambda cp, bad: cp.fork("thread", "new", after_run_id=bad),
    "save_pending_request thread_id": lambda cp, bad: cp.save_pending_request(bad, asking()),
    "save_pending_request None thread_id": lambda cp, bad: cp.save_pending_request(bad, None),
    "clear_pending_request_if_matches thread_id": lambda cp, bad: cp.clear_pending_request_if_matches(
        bad, question_id="q", run_id="run"
    ),
    "clear_pending_request_if_matches question_id": lambda cp, bad: cp.clear_pending_request_if_matches(
        "thread", question_id=bad, run_id="run"
    ),
    "load_pending thread_id": lambda cp, bad: cp.load_pending(bad),
    "load_pending_request thread_id": lambda cp, bad: cp.load_pending_request(bad),
    "load_pending_run_id thread_id": lambda cp, bad: cp.load_pending_run_id(bad),
    "save_hitl_answer thread_id": lambda cp, bad: cp.save_hitl_answer(bad, "q", 1),
    "save_hitl_answer question_id": lambda cp, bad: cp.save_hitl_answer("thread", bad, 1),
    "load_hitl_answer thread_id": lambda cp, bad: cp.load_hitl_answer(bad, "q"),
    "load_hitl_answer question_id": lambda cp, bad: cp.load_hitl_answer("thread", bad),
    "has_hitl_answer thread_id": lambda cp, bad: cp.has_hitl_answer(bad, "q"),
    "has_hitl_answer question_id": lambda cp, bad: cp.has_hitl_answer("thread", bad),
    "clear_hitl_answers thread_id": lambda cp, bad: cp.clear_hitl_answers(bad),
    "clear_hitl_answers question_ids": lambda cp, bad: cp.clear_hitl_answers("thread", ["fine", bad]),
}

# Those that may be None, which then means "no run".
OPTIONAL_IDS_OF_METHODS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "append message run_id": lambda cp, bad: cp.append("thread", [said("fine"), {"run_id": bad}]),
    "save_pending_request run_id": lambda cp, bad: cp.save_pending_request("thread", asking(), run_id=bad),
    "save_pending_request question_id": lambda cp, bad: cp.save_pending_request("thread", {"question_id": bad}),
    "clear_pending_request_if_matches run_id": lambda cp, bad: cp.clear_pending_request_if_matches(
        "thread", question_id="q", run_id=bad
    ),
    "save_hitl_answer run_id": lambda cp, bad: cp.save_hitl_answer("thread", "q", 1, run_id=bad),
    "load_hitl_answer run_id": lambda cp, bad: cp.load_hitl_answer("thread", "q", run_id=bad),
    "has_hitl_answer run_id": lambda cp, bad: cp.has_hitl_answer("thread", "q", run_id=bad),
    "clear_hitl_answers run_id": lambda cp, bad: cp.clear_hitl_answers("thread", run_id=bad),
}


class ValuesContract:
    """What may be stored, and that it comes back as it went in."""

    pytestmark = pytest.mark.asyncio

    async def test_a_bad_id_is_refused_by_every_method(self, checkpointer: Any) -> None:
        for name, call in IDS_OF_METHODS.items():
            for bad in BAD_IDS:
                with pytest.raises(InvalidIdError) as caught:
                    await call(checkpointer, bad)
                assert caught.value.name == name.rpartition(" ")[2]
                assert isinstance(caught.value, ValueError)
        assert await checkpointer.load("thread") is None

    async def test_a_bad_optional_id_is_refused_by_every_method(self, checkpointer: Any) -> None:
        for call in OPTIONAL_IDS_OF_METHODS.values():
            for bad in BAD_IDS:
                if bad is not None:
                    with pytest.raises(InvalidIdError):
                        await call(checkpointer, bad)
        assert await checkpointer.load("thread") is None

    async def test_a_good_id_works_everywhere(self, checkpointer: Any) -> None:
        for number, good in enumerate(GOOD_IDS):
            await checkpointer.claim_run(good, good)
            await checkpointer.append(good, [said("x", good)])
            await checkpointer.save_pending_request(good, asking(good), run_id=good)
            await checkpointer.save_hitl_answer(good, good, 1, run_id=good)
            await checkpointer.mark_run_complete(good, good)
            await checkpointer.fork(good, f"fork {number}", after_run_id=good)
            assert (await checkpointer.load(good)).messages == [said("x", good)]
            assert await checkpointer.load_pending(good) == (asking(good), good)
            assert await checkpointer.load_hitl_answer(good, good, run_id=good) == 1
            assert (await checkpointer.load(f"fork {number}")).parent_thread_id == good

    async def test_ids_are_compared_byte_for_byte(self, checkpointer: Any) -> None:
        for number, (one, other) in enumerate(DIFFERENT_IDS):
            await checkpointer.append(one, [said("one")])
            assert await checkpointer.load(other) is None
            await checkpointer.append(other, [said("other")])
            assert texts((await checkpointer.load(one)).messages) == ["one"]
            thread = f"thread {number}"
            await checkpointer.claim_run(thread, one)
            await checkpointer.claim_run(thread, other)
            await checkpointer.mark_run_complete(thread, one)
            await checkpointer.append(thread, [said("still open", other)])
            await checkpointer.save_hitl_answer(thread, one, 1)
            assert not await checkpointer.has_hitl_answer(thread, other)
            await checkpointer.save_pending_request(thread, asking(one), run_id="run")
            assert not await checkpointer.clear_pending_request_if_matches(thread, question_id=other, run_id="run")

    async def test_any_json_comes_back_as_it_went_in(self, checkpointer: Any) -> None:
        values = {f"value {number}": value for number, value in enumerate(STORABLE_VALUES)}
        await checkpointer.save_extra("thread", values)
        messages = [
            said("metadata", **values),
            AssistantMessage(content=[ToolCall(id="call", name="tool", arguments=values)]),
            ToolResultMessage(tool_call_id="call", tool_name="tool", content=[], details=values),
        ]
        await checkpointer.append("thread", messages)
        data = await checkpointer.load("thread")
        user, assistant, result = data.messages
        assert same(data.extra, values)
        assert same(user.metadata, values)
        assert same(assistant.content[0].arguments, values)
        assert same(result.details, values)

    async def test_no_text_is_more_than_a_text(self, checkpointer: Any) -> None:
        """However many are appended at once: a backend may write few and many in other words."""
        messages = [said(text, note=text) for text in HOSTILE_TEXTS]
        for number, message in enumerate(messages):
            await checkpointer.append(f"alone {number}", [message])
            assert (await checkpointer.load(f"alone {number}")).messages == [message]
        await asyncio.gather(*(checkpointer.append(f"alone {number}", [said("x")]) for number in range(len(messages))))
        await asyncio.gather(*(checkpointer.append(f"alone {n}", [each]) for n, each in enumerate(messages)))
        for number, message in enumerate(messages):
            assert (await checkpointer.load(f"alone {number}")).messages == [message, said("x"), message]
        await checkpointer.append("many", messages * 20)
        assert (await checkpointer.load("many")).messages == messages * 20

    async def test_what_would_not_come_back_is_refused_with_its_path(self, checkpointer: Any) -> None:
        for value, path in UNSTORABLE_VALUES:
            inside = {"value": value}
            # One level further down, what is nested too deep is found one level earlier.
            path_inside = path.removesuffix("[0]") if path == "[0]" * 100 else path
            call = ToolCall(id="call", name="tool", arguments=inside)
            result = ToolResultMessage(tool_call_id="call", tool_name="tool", content=[], details=value)
            for attempt, where in (
                (checkpointer.save_extra("thread", inside), f"extra.value{path_inside}"),
                (
                    checkpointer.append("thread", [said("fine"), said("x", value=value)]),
                    f"messages[1].metadata.value{path_inside}",
                ),
                (
                    checkpointer.append("thread", [AssistantMessage(content=[call])]),
                    f"messages[0].content[0].arguments.value{path_inside}",
                ),
                (checkpointer.append("thread", [result]), f"messages[0].details{path}"),
            ):
                with pytest.raises(UnstorableValueError) as caught:
                    await attempt
                assert caught.value.path == where
                assert isinstance(caught.value, ValueError)
        assert await checkpointer.load("thread") is None

    @pytest.mark.parametrize("extra", [None, [], "text", 7, (("a", 1),)])
    async def test_extra_must_be_a_dict(self, checkpointer: Any, extra: Any) -> None:
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.save_extra("thread", extra)
        assert caught.value.path == "extra"
        assert await checkpointer.load("thread") is None

    async def test_metadata_that_a_server_could_not_index_comes_back_too(self, checkpointer: Any) -> None:
        odd: list[dict[str, Any]] = [
            {"model": TextContent(text="NUL \0 inside")},
            {"é" * 40_000: "a key of 80 kB"},
            {"deep": nested(60)},
            {"big": 10**400},
        ]
        await checkpointer.append("thread", [said("x", **metadata) for metadata in odd])
        loaded = [message.metadata for message in (await checkpointer.load("thread")).messages]
        assert loaded == [{"model": {"type": "text", "text": "NUL \0 inside"}}, *odd[1:]]

    async def test_nesting_up_to_the_limit_comes_back(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {"deep": nested(99)})
        await checkpointer.append("thread", [said("x", deep=nested(99))])
        await checkpointer.claim_run("thread", "run")
        await checkpointer.mark_run_complete("thread", "run")
        await checkpointer.fork("thread", "fork", after_run_id="run", metadata={"deep": nested(99)})
        data = await checkpointer.load("fork")
        assert data.extra == {"deep": nested(99), "fork": {"deep": nested(99)}}
        assert data.messages[0].metadata == {"deep": nested(99)}

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
    async def test_a_typed_number_that_json_cannot_say_is_refused(self, checkpointer: Any, number: float) -> None:
        message = said("x")
        message.timestamp = number
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.append("thread", [message])
        assert caught.value.path == "messages[0].timestamp"

    async def test_a_lone_surrogate_in_a_text_is_refused(self, checkpointer: Any) -> None:
        message = said("x")
        message.content = [TextContent(text="fine"), TextContent.model_construct(type="text", text="\ud800")]
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.append("thread", [message])
        assert caught.value.path == "messages[0].content[1].text"

    @pytest.mark.parametrize("wrong", ["text", 7, None, {"role": "nobody"}, ["list"], object()])
    async def test_what_is_no_message_is_refused(self, checkpointer: Any, wrong: Any) -> None:
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.append("thread", [said("fine"), wrong])
        assert caught.value.path.startswith("messages[1]")
        assert await checkpointer.load("thread") is None

    async def test_a_field_that_was_made_wrong_afterwards_is_refused(self, checkpointer: Any) -> None:
        message = said("x")
        message.content = "just text"  # type: ignore[assignment]
        with pytest.raises(UnstorableValueError) as caught:
            await checkpointer.append("thread", [message])
        assert caught.value.path.startswith("messages[0]")
        assert await checkpointer.load("thread") is None

    @pytest.mark.parametrize("wrong", ["text", 7, {"question_id": "q"}, ["list"]])
    async def test_what_is_no_request_is_refused(self, checkpointer: Any, wrong: Any) -> None:
        with pytest.raises(UnstorableValueError):
            await checkpointer.save_pending_request("thread", wrong)
        assert await checkpointer.load("thread") is None


class LimitsContract:
    """How large a value may be. `make_checkpointer` is a fixture: options to a new, unopened checkpointer."""

    pytestmark = pytest.mark.asyncio

    async def test_seven_mebibytes_come_back(self, checkpointer: Any) -> None:
        # Quotes: in JSON, and again in a quoted literal, each takes two bytes.
        text = '"' * (7 * 1024 * 1024 // 2 - 200)
        await checkpointer.append("thread", [said(text)])
        assert texts((await checkpointer.load("thread")).messages) == [text]

    async def test_answers_and_requests_may_be_as_large(self, checkpointer: Any) -> None:
        answer = "'" * (7 * 1024 * 1024 - 100)
        await checkpointer.save_hitl_answer("thread", "q", answer)
        await checkpointer.save_hitl_answer("thread", "q", answer)
        assert await checkpointer.load_hitl_answer("thread", "q") == answer
        request = asking(prompt="\n" * (7 * 1024 * 1024 // 2 - 200))
        await checkpointer.save_pending_request("thread", request)
        assert await checkpointer.load_pending_request("thread") == request

    async def test_more_is_refused_before_anything_is_written(self, checkpointer: Any) -> None:
        text = "x" * (7 * 1024 * 1024)
        for call in (
            checkpointer.append("thread", [said("fine"), said(text)]),
            checkpointer.save_extra("thread", {"text": text}),
            checkpointer.save_pending_request("thread", asking(prompt=text)),
            checkpointer.save_hitl_answer("thread", "q", text),
        ):
            with pytest.raises(MessageTooLargeError) as caught:
                await call
            assert caught.value.size > caught.value.limit == 7 * 1024 * 1024
        assert await checkpointer.load("thread") is None

    async def test_the_limit_counts_bytes_and_can_be_set(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(max_value_bytes=100) as checkpointer:
            await checkpointer.save_hitl_answer("thread", "q", "é" * 49)
            with pytest.raises(MessageTooLargeError) as caught:
                await checkpointer.save_hitl_answer("thread", "q", "é" * 50)
            assert (caught.value.what, caught.value.size, caught.value.limit) == ("answer", 102, 100)
            assert await checkpointer.load_hitl_answer("thread", "q") == "é" * 49

    async def test_extra_cannot_grow_past_the_limit_by_merging(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(max_value_bytes=100) as checkpointer:
            await checkpointer.save_extra("thread", {"a": "x" * 50})
            with pytest.raises(MessageTooLargeError):
                await checkpointer.save_extra("thread", {"b": "x" * 50})
            assert (await checkpointer.load("thread")).extra == {"a": "x" * 50}
