"""Our message and request classes, held against what the real cubepi 0.7.0 wrote.

`golden/v3/expected.json` is what a reader must get back from a database of that release.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from threadkeep import (
    AssistantMessage,
    HitlRequest,
    MemoryCheckpointer,
    Message,
    TextContent,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from threadkeep.testing.samples import REQUESTS, one_of_each, same

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "v3" / "expected.json").read_text())
MESSAGES: TypeAdapter[list[Any]] = TypeAdapter(list[Message])

each_thread = pytest.mark.parametrize("thread_id", GOLDEN)


def test_it_has_one_of_everything() -> None:
    messages = [message for thread in GOLDEN.values() for message in thread["messages"]]
    assert {message["role"] for message in messages} == {"user", "assistant", "tool_result"}
    blocks = [block for message in messages for block in message["content"]]
    assert {block["type"] for block in blocks} == {"text", "image", "thinking", "tool_call"}
    requests = [thread["pending"][0] for thread in GOLDEN.values() if thread["pending"]]
    assert {request["payload"]["kind"] for request in requests} == {"confirm", "approve", "ask"}


@each_thread
def test_what_cubepi_wrote_validates_and_dumps_back_equal(thread_id: str) -> None:
    written = GOLDEN[thread_id]["messages"]
    read = MESSAGES.validate_python(written)
    younger = {"run_id": None, "message_id": None}  # fields that cubepi 0.7.0 did not have
    assert same(MESSAGES.dump_python(read, mode="json"), [{**message, **younger} for message in written])
    assert MESSAGES.validate_json(MESSAGES.dump_json(read)) == read
    # Nothing has landed among the unknown fields, which are kept too.
    assert [message.model_extra for message in read] == [{}] * len(written)


@each_thread
def test_so_do_its_pending_requests(thread_id: str) -> None:
    pending = GOLDEN[thread_id]["pending"]
    if pending is not None:
        request = HitlRequest.model_validate(pending[0])
        assert same(request.model_dump(mode="json"), pending[0])
        assert request.model_extra == request.payload.model_extra == {}


@each_thread
async def test_a_thread_of_cubepi_is_stored_and_comes_back(thread_id: str) -> None:
    """On memory: that all backends store alike is the conformance kit's to prove."""
    thread = GOLDEN[thread_id]
    checkpointer = MemoryCheckpointer()
    messages = MESSAGES.validate_python(thread["messages"])
    await checkpointer.append(thread_id, messages)
    await checkpointer.save_extra(thread_id, thread["extra"])
    if thread["pending"] is not None:
        request, run_id = thread["pending"]
        await checkpointer.save_pending_request(thread_id, HitlRequest.model_validate(request), run_id=run_id)
        assert await checkpointer.load_pending(thread_id) == (HitlRequest.model_validate(request), run_id)
    data = await checkpointer.load(thread_id)
    assert data is not None
    assert data.messages == messages
    assert same(data.extra, thread["extra"])


def test_fields_of_a_newer_release_are_kept() -> None:
    document = {"role": "user", "content": [{"type": "text", "text": "hi", "cited": [1]}], "priority": {"level": 2}}
    (message,) = MESSAGES.validate_python([document])
    dumped = message.model_dump(mode="json")
    assert dumped["priority"] == {"level": 2}
    assert dumped["content"][0]["cited"] == [1]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"role": "nobody", "content": []},
        {"role": "user"},
        {"role": "user", "content": [{"type": "tool_call", "id": "1", "name": "n", "arguments": {}}]},
        {"role": "assistant", "content": [{"type": "nonsense"}]},
        {"role": "tool_result", "content": [], "tool_name": "n"},
        {"role": "user", "content": [], "metadata": []},
    ],
)
def test_what_is_no_message_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MESSAGES.validate_python([document])


def test_roles_and_defaults() -> None:
    user = UserMessage(content=[TextContent(text="hi")])
    assistant = AssistantMessage(content=[])
    result = ToolResultMessage(tool_call_id="call", tool_name="tool", content=[])
    assert [message.role for message in (user, assistant, result)] == ["user", "assistant", "tool_result"]
    assert [message.run_id for message in (user, assistant, result)] == [None] * 3
    assert (assistant.stop_reason, assistant.usage, result.details, result.is_error) == ("stop", None, None, False)
    assert Usage().model_dump() == dict.fromkeys(Usage.model_fields, 0)
    user.metadata["a"] = 1
    assert UserMessage(content=[]).metadata == {}, "a default is shared"


def test_samples_come_back_from_their_json() -> None:
    messages = one_of_each("run")
    assert MESSAGES.validate_json(MESSAGES.dump_json(messages)) == messages
    for request in REQUESTS:
        assert HitlRequest.model_validate_json(request.model_dump_json()) == request
