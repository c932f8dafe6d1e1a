"""A host's own message and request classes, which come back as those very classes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from threadkeep.errors import RunAlreadyCompletedError, UnstorableValueError
from threadkeep.testing.samples import said


class Human(BaseModel):
    """A message class of a host."""

    role: Literal["human"] = "human"
    words: tuple[str, ...]
    at: datetime
    run_id: str | None = None


class Machine(BaseModel):
    """Another one, without metadata or run_id."""

    role: Literal["machine"] = "machine"
    raw: bytes
    scores: dict[int, float]
    notes: dict[str, Any] = {}


@dataclass
class Note:
    """A message that is no pydantic model."""

    text: str
    tags: frozenset[int]
    run_id: str | None = None


class Loose(TypedDict, total=False):
    """A message that is a dict of certain keys."""

    role: Literal["a"]
    text: str
    anything: Any


class Secretive(BaseModel):
    """A message that does not tell all."""

    password: SecretStr


class Approval(BaseModel):
    """A request class of a host."""

    question_id: str
    tool: str


HUMAN = Human(words=("a", "b"), at=datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
MACHINE = Machine(raw=b"bytes", scores={1: 0.5}, notes={"n": [1, 1.0, True]})


class TypesContract:
    """`message_type=` and `request_type=`. `make_checkpointer` is a fixture: options to an unopened checkpointer."""

    pytestmark = pytest.mark.asyncio

    async def test_a_hosts_classes_come_back(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Human | Machine) as checkpointer:
            await checkpointer.append("thread", [HUMAN, MACHINE])
            assert (await checkpointer.load("thread")).messages == [HUMAN, MACHINE]

    async def test_one_class_will_do(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Human) as checkpointer:
            await checkpointer.append("thread", [HUMAN])
            assert (await checkpointer.load("thread")).messages == [HUMAN]

    async def test_dataclasses_will_do(self, make_checkpointer: Any) -> None:
        note = Note("x", frozenset({1, 2}))
        async with make_checkpointer(message_type=Note) as checkpointer:
            await checkpointer.append("thread", [note])
            assert (await checkpointer.load("thread")).messages == [note]

    async def test_plain_dicts_will_do(self, make_checkpointer: Any) -> None:
        messages = [{"role": "user", "content": "hi", "n": [1, 1.0, True, None]}, {}]
        async with make_checkpointer(message_type=dict) as checkpointer:
            await checkpointer.append("thread", messages)
            assert (await checkpointer.load("thread")).messages == messages
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.append("thread", [{"content": (1, 2)}])
            assert caught.value.path == "messages[0].content"

    @pytest.mark.parametrize("kind", ["attribute", "key"])
    async def test_run_ids_are_read_as_attributes_or_keys(self, make_checkpointer: Any, kind: str) -> None:
        def message(run_id: str | None) -> Any:
            return Note("x", frozenset(), run_id) if kind == "attribute" else {"text": "x", "run_id": run_id}

        async with make_checkpointer(message_type=Note if kind == "attribute" else dict) as checkpointer:
            await checkpointer.claim_run("thread", "run")
            await checkpointer.append("thread", [message("run"), message(None)])
            await checkpointer.mark_run_complete("thread", "run")
            assert await checkpointer.snapshot("thread", after_run_id="run") == [
                message("run"),
                message(None),
            ]
            with pytest.raises(RunAlreadyCompletedError):
                await checkpointer.append("thread", [message("run")])

    async def test_free_form_parts_of_a_hosts_class_must_be_json(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Human | Machine) as checkpointer:
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.append("thread", [MACHINE.model_copy(update={"notes": {"n": (1,)}})])
            assert caught.value.path == "messages[0].notes.n"

    async def test_a_typed_dict_may_leave_its_role_out(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Loose) as checkpointer:
            await checkpointer.append("thread", [{"text": "x"}, {"role": "a", "anything": [1]}])
            assert (await checkpointer.load("thread")).messages == [{"text": "x"}, {"role": "a", "anything": [1]}]
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.append("thread", [{"anything": {"t": (1, 2)}}])
            assert caught.value.path == "messages[0].anything.t"

    async def test_what_would_come_back_as_something_else_is_refused(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Secretive) as checkpointer:
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.append("thread", [Secretive(password=SecretStr("hidden when it is dumped"))])
            assert caught.value.path == "messages[0]"
            assert await checkpointer.load("thread") is None

    async def test_a_message_of_another_class_is_refused(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(message_type=Human | Machine) as checkpointer:
            with pytest.raises(UnstorableValueError):
                await checkpointer.append("thread", [said("ours, not theirs")])

    async def test_a_hosts_request_comes_back(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(request_type=Approval) as checkpointer:
            await checkpointer.save_pending_request("thread", Approval(question_id="q", tool="t"), run_id="run")
            assert await checkpointer.load_pending("thread") == (Approval(question_id="q", tool="t"), "run")
            assert await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run")

    @pytest.mark.parametrize("request_", [{"question_id": "q", "x": 1}, {"x": 1}])
    async def test_a_request_may_be_a_dict_with_or_without_a_question_id(
        self, make_checkpointer: Any, request_: dict[str, Any]
    ) -> None:
        async with make_checkpointer(request_type=dict[str, Any]) as checkpointer:
            await checkpointer.save_pending_request("thread", request_, run_id="run")
            assert await checkpointer.load_pending("thread") == (request_, "run")
            matched = await checkpointer.clear_pending_request_if_matches("thread", question_id="q", run_id="run")
            assert matched == ("question_id" in request_)
