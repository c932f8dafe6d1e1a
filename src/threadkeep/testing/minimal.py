"""The minimal contract: load, append, save_extra."""

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.messages import TextContent
from threadkeep.testing.samples import one_of_each, said, texts


class MinimalContract:
    """What every backend promises. `checkpointer` is a fixture that the subclass provides."""

    pytestmark = pytest.mark.asyncio

    async def test_an_unknown_thread_loads_as_none(self, checkpointer: Any) -> None:
        assert await checkpointer.load("nobody") is None

    async def test_messages_come_back_in_append_order(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("one"), said("two")])
        await checkpointer.append("thread", [said("three")])
        data = await checkpointer.load("thread")
        assert texts(data.messages) == ["one", "two", "three"]

    async def test_every_field_of_every_message_comes_back(self, checkpointer: Any) -> None:
        messages = one_of_each()
        await checkpointer.append("thread", messages)
        data = await checkpointer.load("thread")
        assert data.messages == messages
        assert [type(message) for message in data.messages] == [type(message) for message in messages]

    async def test_appending_nothing_makes_no_thread(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [])
        assert await checkpointer.load("thread") is None

    async def test_appending_nothing_to_a_thread_changes_nothing(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("one")])
        await checkpointer.append("thread", [])
        assert texts((await checkpointer.load("thread")).messages) == ["one"]

    async def test_loading_twice_gives_the_same(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", one_of_each())
        await checkpointer.save_extra("thread", {"a": [1, {"b": None}]})
        assert await checkpointer.load("thread") == await checkpointer.load("thread")

    async def test_threads_do_not_mix(self, checkpointer: Any) -> None:
        await checkpointer.append("left", [said("for left")])
        await checkpointer.append("right", [said("for right")])
        await checkpointer.save_extra("left", {"side": "left"})
        left, right = await checkpointer.load("left"), await checkpointer.load("right")
        assert (texts(left.messages), left.extra) == (["for left"], {"side": "left"})
        assert (texts(right.messages), right.extra) == (["for right"], {})

    async def test_a_thread_without_extra_has_an_empty_one_and_no_parent(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("one")])
        data = await checkpointer.load("thread")
        assert data.extra == {}
        assert data.parent_thread_id is None

    async def test_extra_is_merged_one_level_deep(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {"a": {"old": 1}, "b": 2})
        await checkpointer.save_extra("thread", {"a": {"new": 1}, "c": 3})
        assert (await checkpointer.load("thread")).extra == {"a": {"new": 1}, "b": 2, "c": 3}

    async def test_an_extra_key_set_to_none_is_kept(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {"a": 1, "b": 2})
        await checkpointer.save_extra("thread", {"a": None})
        assert (await checkpointer.load("thread")).extra == {"a": None, "b": 2}

    @pytest.mark.parametrize("extra", [{}, {"a": 1}])
    async def test_saving_extra_makes_the_thread(self, checkpointer: Any, extra: dict[str, Any]) -> None:
        await checkpointer.save_extra("thread", extra)
        data = await checkpointer.load("thread")
        assert (data.messages, data.extra) == ([], extra)

    async def test_saving_an_empty_extra_keeps_what_is_there(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {"a": 1})
        await checkpointer.save_extra("thread", {})
        assert (await checkpointer.load("thread")).extra == {"a": 1}

    async def test_what_is_loaded_is_the_callers_to_change(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("one", topic=["weather"])])
        await checkpointer.save_extra("thread", {"list": [1]})
        data = await checkpointer.load("thread")
        data.messages[0].content[0].text = "changed"
        data.messages[0].metadata["topic"].append("changed")
        data.messages.clear()
        data.extra["list"].append(2)
        data.extra["more"] = True
        again = await checkpointer.load("thread")
        assert again.messages == [said("one", topic=["weather"])]
        assert again.extra == {"list": [1]}

    async def test_what_was_appended_can_be_changed_afterwards(self, checkpointer: Any) -> None:
        message, extra = said("one", topic=["weather"]), {"list": [1]}
        await checkpointer.append("thread", [message])
        await checkpointer.save_extra("thread", extra)
        message.content[0] = TextContent(text="changed")
        message.metadata["topic"].append("changed")
        extra["list"].append(2)
        data = await checkpointer.load("thread")
        assert data.messages == [said("one", topic=["weather"])]
        assert data.extra == {"list": [1]}

    async def test_many_messages_in_one_append(self, checkpointer: Any) -> None:
        messages = [said(f"number {number}") for number in range(2_345)]
        await checkpointer.append("thread", messages)
        assert (await checkpointer.load("thread")).messages == messages

    async def test_the_same_message_twice_is_two_messages(self, checkpointer: Any) -> None:
        message = said("again")
        await checkpointer.append("thread", [message, message])
        await checkpointer.append("thread", [message])
        assert texts((await checkpointer.load("thread")).messages) == ["again"] * 3
