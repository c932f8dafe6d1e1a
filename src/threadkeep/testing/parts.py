"""cp.parts: what is streamed, kept before its message is whole."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from threadkeep.errors import (
    ImmutableFieldError,
    InvalidIdError,
    MessageTooLargeError,
    PartNotFoundError,
    UnstorableValueError,
)
from threadkeep.testing.forks import run_of
from threadkeep.testing.messages import ids, named
from threadkeep.testing.samples import BAD_IDS, STORABLE_VALUES, UNSTORABLE_VALUES, said, same

TIME = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
ELSEWHERE = datetime(2024, 3, 1, 5, 29, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30)))
"""The same moment."""


async def contents(checkpointer: Any, thread_id: str, *message_ids: str) -> list[list[Any]]:
    """What the parts of these messages hold."""
    parts = await checkpointer.parts.of(thread_id, message_ids)
    return [[part.content for part in parts[message_id]] for message_id in message_ids]


class PartsContract:
    """parts.append, update_status, of, discard; drafts and forks."""

    pytestmark = pytest.mark.asyncio

    async def test_parts_are_numbered_within_their_message(self, checkpointer: Any) -> None:
        for message_id, content in (("b", 1), ("a", 2), ("b", 3), ("B", 4), ("b", 5)):
            await checkpointer.parts.append("thread", message_id, "text", content)
        await checkpointer.parts.append("other", "b", "text", 6)
        parts = await checkpointer.parts.of("thread", ["b", "nobody's", "a", "B", "b"])
        assert list(parts) == ["b", "nobody's", "a", "B"]
        assert {message_id: [(part.index, part.content) for part in of] for message_id, of in parts.items()} == {
            "b": [(0, 1), (1, 3), (2, 5)],
            "nobody's": [],
            "a": [(0, 2)],
            "B": [(0, 4)],
        }
        assert await contents(checkpointer, "other", "b") == [[6]]
        assert await checkpointer.parts.of("nobody", ["b"]) == {"b": []}
        assert await checkpointer.parts.of("thread", []) == {}

    async def test_a_part_comes_back_as_it_was_appended(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        plain = await checkpointer.parts.append("thread", "message", "text", "…")
        whole = await checkpointer.parts.append(
            "thread",
            "message",
            "tool call",
            {"city": "Paris"},
            tool_name="weather",
            tool_call_id="call",
            tool_state="running",
            started_at=ELSEWHERE,
            token_estimate=2**53 - 1,
        )
        assert (plain.thread_id, plain.message_id, plain.index, plain.type) == ("thread", "message", 0, "text")
        assert (plain.content, plain.token_estimate) == ("…", 0)
        assert (plain.tool_name, plain.tool_call_id, plain.tool_state, plain.started_at) == (None, None, None, None)
        assert (whole.index, whole.type, whole.content) == (1, "tool call", {"city": "Paris"})
        assert (whole.tool_name, whole.tool_call_id, whole.tool_state) == ("weather", "call", "running")
        assert (whole.token_estimate, whole.started_at) == (2**53 - 1, TIME)
        for part in (plain, whole):
            assert (part.completed_at, part.compacted_at, part.output, part.error) == (None, None, None, None)
            assert before <= part.created_at <= datetime.now(UTC)
        assert await checkpointer.parts.of("thread", ["message"]) == {"message": [plain, whole]}
        stored = (await checkpointer.parts.of("thread", ["message"]))["message"][1]
        assert stored.started_at.tzinfo is stored.created_at.tzinfo is UTC

    async def test_any_json_is_content(self, checkpointer: Any) -> None:
        for value in STORABLE_VALUES:
            part = await checkpointer.parts.append("thread", "message", "json", value)
            assert same(part.content, value)
        stored = (await checkpointer.parts.of("thread", ["message"]))["message"]
        assert same([part.content for part in stored], STORABLE_VALUES)

    async def test_a_draft_is_completed_by_its_message(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("hi")])
        for message_id, content in (("second", 1), ("first", 2), ("second", 3)):
            await checkpointer.parts.append("thread", message_id, "text", content)
        await checkpointer.parts.append("other", "elsewhere", "text", 4)
        report = await checkpointer.resume("thread")
        assert not report.is_clean
        drafts = await checkpointer.parts.of("thread", ["first", "second"])
        assert [(draft.message_id, draft.parts) for draft in report.drafts] == list(drafts.items())
        await checkpointer.append("thread", [named("second")])
        report = await checkpointer.resume("thread")
        assert ids(report.drafts) == ["first"]
        assert not report.is_clean
        # A summary is a message, too.
        await checkpointer.context.swap("thread", ["second"], said("short"), summary_id="first")
        report = await checkpointer.resume("thread")
        assert (report.drafts, report.is_clean) == ([], True)
        assert await contents(checkpointer, "thread", "first", "second") == [[2], [1, 3]]
        assert (await checkpointer.parts.append("thread", "second", "text", "late")).index == 2
        assert (await checkpointer.resume("thread")).is_clean

    async def test_the_first_write_of_a_thread_may_be_a_part(self, checkpointer: Any) -> None:
        await checkpointer.parts.append("thread", "message", "text", "…")
        assert (await checkpointer.load("thread")).messages == []
        assert (await checkpointer.threads.get("thread")).last_seq == 0
        await checkpointer.append("thread", [named("message")])
        (record,) = await checkpointer.messages.list("thread", with_parts=True)
        assert (record.seq, [part.content for part in record.parts]) == (1, ["…"])
        assert (await checkpointer.context.items("thread"))[0].message_id == "message"

    async def test_a_draft_can_be_discarded(self, checkpointer: Any) -> None:
        for message_id in ("gone", "kept", "whole", "gone"):
            await checkpointer.parts.append("thread", message_id, "text", message_id)
        await checkpointer.append("thread", [named("whole"), named("a")])
        await checkpointer.parts.append("thread", "summary", "text", "summary")
        await checkpointer.context.swap("thread", ["a"], said("short"), summary_id="summary")
        assert await checkpointer.parts.discard("thread", "gone") is True
        assert await checkpointer.parts.discard("thread", "gone") is False
        for thread_id in ("nobody", "thread"):
            assert await checkpointer.parts.discard(thread_id, "nobody's") is False
        assert await checkpointer.load("nobody") is None
        for message_id in ("whole", "summary"):
            with pytest.raises(ImmutableFieldError):
                await checkpointer.parts.discard("thread", message_id)
        assert await contents(checkpointer, "thread", "gone", "kept", "whole", "summary") == [
            [],
            ["kept"],
            ["whole"],
            ["summary"],
        ]
        assert (await checkpointer.parts.append("thread", "gone", "text", "again")).index == 0

    async def test_the_status_of_a_part_changes_and_nothing_else(self, checkpointer: Any) -> None:
        expected = await checkpointer.parts.append("thread", "message", "call", {"a": 1}, tool_state="pending")
        others = [await checkpointer.parts.append(thread, "message", "call", 1) for thread in ("thread", "other")]
        changes: list[dict[str, Any]] = [
            {"tool_state": "running"},
            {"started_at": TIME},
            {"completed_at": TIME + timedelta(microseconds=1)},
            {"compacted_at": TIME + timedelta(days=1)},
            {"output": {"values": STORABLE_VALUES}},
            {"output": False},
            {"error": "no \0 money 🙂"},
            {},
            *({name: None} for name in ("tool_state", "started_at", "completed_at", "compacted_at", "output", "error")),
            {"tool_state": "done", "completed_at": TIME, "output": [1, 1.0, True], "error": ""},
        ]
        for change in changes:
            expected = replace(expected, **change)
            part = await checkpointer.parts.update_status("thread", "message", 0, **change)
            assert part == expected
            assert same(part.output, expected.output)
            assert (await checkpointer.parts.of("thread", ["message"]))["message"] == [expected, others[0]]
        for time, in_utc in ((ELSEWHERE, TIME), (FIRST, FIRST), (LAST, LAST)):
            await checkpointer.parts.update_status("thread", "message", 0, started_at=time)
            part = (await checkpointer.parts.of("thread", ["message"]))["message"][0]
            assert (part.started_at, part.started_at.tzinfo) == (in_utc, UTC)
        assert (await checkpointer.parts.of("other", ["message"]))["message"] == [others[1]]
        await checkpointer.append("thread", [named("message")])
        await checkpointer.parts.update_status("thread", "message", 1, error="also when the message is there")

    async def test_nothing_else_of_a_part_can_be_changed_and_none_that_is_not_there(self, checkpointer: Any) -> None:
        part = await checkpointer.parts.append("thread", "message", "text", "…")
        for name in ("content", "type", "part_type", "tool_name", "tool_call_id", "token_estimate", "created_at"):
            with pytest.raises(ImmutableFieldError) as caught:
                await checkpointer.parts.update_status("thread", "message", 0, tool_state="done", **{name: "new"})
            assert caught.value.name == name
        with pytest.raises(TypeError, match="colour"):
            await checkpointer.parts.update_status("thread", "message", 0, colour="red")
        for place in (("thread", "message", 1), ("thread", "Message", 0), ("nobody", "message", 0)):
            for change in ({}, {"tool_state": "done"}):
                with pytest.raises(PartNotFoundError) as missing:
                    await checkpointer.parts.update_status(*place, **change)
                assert (missing.value.thread_id, missing.value.message_id, missing.value.index) == place
        assert await checkpointer.load("nobody") is None
        assert await checkpointer.parts.of("thread", ["message"]) == {"message": [part]}

    async def test_bad_parts_are_refused(self, checkpointer: Any) -> None:
        for value, path in UNSTORABLE_VALUES:
            with pytest.raises(UnstorableValueError) as caught:
                await checkpointer.parts.append("thread", "message", "json", value)
            assert caught.value.path == f"content{path}"
        with pytest.raises(MessageTooLargeError):
            await checkpointer.parts.append("thread", "message", "text", "x" * 8 * 1024 * 1024)
        for bad in BAD_IDS:
            for place in ((bad, "message", "text"), ("thread", bad, "text"), ("thread", "message", bad)):
                with pytest.raises(InvalidIdError):
                    await checkpointer.parts.append(*place, "…")
            with pytest.raises(InvalidIdError):
                await checkpointer.parts.of("thread", ["message", bad])
            with pytest.raises(InvalidIdError):
                await checkpointer.parts.discard("thread", bad)
            if bad is not None:
                for name in ("tool_name", "tool_call_id", "tool_state"):
                    with pytest.raises(InvalidIdError, match=name):
                        await checkpointer.parts.append("thread", "message", "text", "…", **{name: bad})
        with pytest.raises(InvalidIdError, match="no id of their own"):
            await checkpointer.parts.append("thread", "#1", "text", "…")
        with pytest.raises(InvalidIdError, match="message_ids"):
            await checkpointer.parts.of("thread", "message")
        for count in (-1, 1.0, True, "1", None, 2**53):
            with pytest.raises(UnstorableValueError, match="token_estimate"):
                await checkpointer.parts.append("thread", "message", "text", "…", token_estimate=count)
        naive = TIME.replace(tzinfo=None)
        nowhere = [
            FIRST.replace(tzinfo=timezone(timedelta(hours=1))),
            LAST.replace(tzinfo=timezone(-timedelta(hours=1))),
        ]
        for time in (naive, TIME.date(), TIME.isoformat(), TIME.timestamp(), *nowhere):
            with pytest.raises(UnstorableValueError, match="started_at"):
                await checkpointer.parts.append("thread", "message", "text", "…", started_at=time)
        assert await checkpointer.load("thread") is None

        await checkpointer.parts.append("thread", "message", "text", "…")
        for change in (
            {"started_at": naive},
            {"completed_at": naive},
            {"compacted_at": naive},
            {"output": (1, 2)},
            {"error": 7},
            {"error": "\ud800"},
        ):
            with pytest.raises(UnstorableValueError, match=next(iter(change))):
                await checkpointer.parts.update_status("thread", "message", 0, **change)
        with pytest.raises(InvalidIdError, match="tool_state"):
            await checkpointer.parts.update_status("thread", "message", 0, tool_state="")
        for index in (-1, True, "0", None, 2**31):
            with pytest.raises(ValueError, match="index"):
                await checkpointer.parts.update_status("thread", "message", index, tool_state="done")

    async def test_the_parts_of_many_messages_are_read_at_once(self, checkpointer: Any) -> None:
        records = [named(f"{number}") for number in range(2_500)]
        await checkpointer.append("thread", records)
        async with checkpointer.transaction() as tx:
            for number in (0, 1_249, 2_499):
                for content in (number, -number):
                    await tx.parts.append("thread", f"{number}", "number", content)
        listed = await checkpointer.messages.list("thread", with_parts=True)
        parts = await checkpointer.parts.of(
            "thread", [*listed[:2_000], *(f"{number}" for number in range(1_000, 2_500))]
        )
        assert list(parts) == [f"{number}" for number in range(2_500)]
        assert list(parts.values()) == [record.parts for record in listed]
        with_parts = {message_id: [part.content for part in of] for message_id, of in parts.items() if of}
        assert with_parts == {"0": [0, 0], "1249": [1249, -1249], "2499": [2499, -2499]}

    async def test_parts_that_come_at_once_get_an_index_each(self, checkpointer: Any) -> None:
        parts = await asyncio.gather(
            *(checkpointer.parts.append("thread", "message", "text", number) for number in range(10))
        )
        assert sorted(part.index for part in parts) == list(range(10))
        stored = (await checkpointer.parts.of("thread", ["message"]))["message"]
        assert stored == sorted(parts, key=lambda part: part.index)

    async def test_parts_are_part_of_a_transaction(self, checkpointer: Any) -> None:
        part = await checkpointer.parts.append("thread", "message", "text", "…")
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.parts.append("thread", "message", "text", "more")
                await tx.parts.update_status("thread", "message", 0, tool_state="done")
                with pytest.raises(PartNotFoundError):
                    await tx.parts.update_status("thread", "message", 7, tool_state="done")
                await tx.parts.append("new", "message", "text", "…")
                assert await contents(tx, "thread", "message") == [["…", "more"]]
                assert await tx.parts.discard("thread", "message")
                raise ZeroDivisionError
        assert await checkpointer.parts.of("thread", ["message"]) == {"message": [part]}
        assert await checkpointer.load("new") is None
        async with checkpointer.transaction() as tx:
            assert (await tx.parts.append("thread", "message", "text", "more")).index == 1
            await tx.append("thread", [named("message")])
        assert await contents(checkpointer, "thread", "message") == [["…", "more"]]

    async def test_a_fork_has_the_parts_of_its_messages(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        (message_id,) = ids(await checkpointer.messages.list("thread"))
        await checkpointer.append("thread", [named("legacy"), named("left", run_id="open")])
        for content in (1, 2):
            await checkpointer.parts.append("thread", message_id, "call", content)
        await checkpointer.parts.update_status(
            "thread", message_id, 1, tool_state="done", output=[1], completed_at=TIME
        )
        await checkpointer.context.swap("thread", ["legacy"], named("whole"))
        await checkpointer.context.swap("thread", ["left"], named("broken"))
        for other in ("legacy", "left", "draft", "whole", "broken"):
            await checkpointer.parts.append("thread", other, "text", other)
        await checkpointer.fork("thread", "fork", after_run_id="run")
        parts = await checkpointer.parts.of("thread", [message_id])
        copied = await checkpointer.parts.of("fork", [message_id])
        assert copied[message_id] == [replace(part, thread_id="fork") for part in parts[message_id]]
        assert await contents(checkpointer, "fork", "legacy", "left", "draft") == [["legacy"], [], []]
        assert await contents(checkpointer, "fork", "whole", "broken") == [["whole"], []]  # as the summaries themselves
        assert (await checkpointer.resume("fork")).drafts == []
        await checkpointer.parts.update_status("fork", message_id, 0, error="only here")
        assert (await checkpointer.parts.append("fork", message_id, "text", 3)).index == 2
        assert await checkpointer.parts.of("thread", [message_id]) == parts
        await checkpointer.threads.delete("thread")
        assert await contents(checkpointer, "thread", message_id, "draft") == [[], []]
        assert await contents(checkpointer, "fork", message_id) == [[1, 2, 3]]
        assert (await checkpointer.parts.append("thread", message_id, "text", "anew")).index == 0
