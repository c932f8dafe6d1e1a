"""cp.messages: the log by the ids of its messages, and hosts' own message classes in all that knows those ids."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import DuplicateIdError, InvalidIdError, MessageNotFoundError, RunAlreadyCompletedError
from threadkeep.messages import TextContent, UserMessage
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import BAD_IDS, DIFFERENT_IDS, GOOD_IDS, one_of_each, said, texts


def named(message_id: str | None, text: str = "", run_id: str | None = None) -> UserMessage:
    """A user's message with an id of its own, which it also says unless there is something else to say."""
    return UserMessage(content=[TextContent(text=text or str(message_id))], run_id=run_id, message_id=message_id)


def ids(records: list[Any]) -> list[str]:
    """Those of records or items, for short comparisons."""
    return [record.message_id for record in records]


class MessagesContract:
    """messages.append, get, list; and forks."""

    pytestmark = pytest.mark.asyncio

    async def test_a_message_without_an_id_gets_one(self, checkpointer: Any) -> None:
        """Ids sort in the order of their making, and the message itself comes back as it was."""
        first = await checkpointer.messages.append("thread", one_of_each())
        await checkpointer.append("thread", [said("one more")])
        last = await checkpointer.messages.append("other", [said("elsewhere")])
        listed = await checkpointer.messages.list("thread")
        assert ids(listed)[:4] == first
        made = [*ids(listed), *last]
        assert made == sorted(set(made))
        assert (await checkpointer.load("thread")).messages == [*one_of_each(), said("one more")]
        assert [record.message for record in listed] == [*one_of_each(), said("one more")]

    async def test_a_host_gives_ids_as_it_likes(self, checkpointer: Any) -> None:
        """By the messages' own field, or beside them; then the messages say nothing of it."""
        assert await checkpointer.messages.append("thread", [named("own")]) == ["own"]
        await checkpointer.append("thread", [named("own too")])
        messages = [said("1"), named("said"), named("overruled"), said("4")]
        given = await checkpointer.messages.append("thread", messages, message_ids=["beside", None, "ruling", None])
        assert given[:3] == ["beside", "said", "ruling"]
        assert ids(await checkpointer.messages.list("thread")) == ["own", "own too", *given]
        assert (await checkpointer.load("thread")).messages == [named("own"), named("own too"), *messages]
        assert await checkpointer.messages.append("thread", []) == []
        assert await checkpointer.messages.append("nobody", [], message_ids=[]) == []
        assert await checkpointer.load("nobody") is None

    async def test_a_record_tells_of_the_message(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [*one_of_each("run"), named("last")])
        after = datetime.now(UTC)
        listed = await checkpointer.messages.list("thread")
        assert [record.role for record in listed] == ["user", "assistant", "tool_result", "assistant", "user"]
        assert [record.run_id for record in listed] == ["run"] * 4 + [None]
        assert [record.seq for record in listed] == [1, 2, 3, 4, 5]
        assert [record.message for record in listed] == [*one_of_each("run"), named("last")]
        assert all(before <= record.created_at <= after for record in listed)
        assert {record.created_at.tzinfo for record in listed} == {UTC}
        assert {(record.thread_id, record.is_summary, record.parts) for record in listed} == {("thread", False, None)}
        for record in listed:
            assert await checkpointer.messages.get("thread", record.message_id) == record

    async def test_an_id_that_is_unknown_is_an_error(self, checkpointer: Any) -> None:
        """Also that of another thread, and what a message would be called if it had no id."""
        await checkpointer.append("thread", [named("a")])
        await checkpointer.append("other", [named("b")])
        for thread_id, message_id in (("thread", "b"), ("thread", "A"), ("thread", "#1"), ("nobody", "a")):
            with pytest.raises(MessageNotFoundError) as caught:
                await checkpointer.messages.get(thread_id, message_id)
            assert (caught.value.thread_id, caught.value.message_id) == (thread_id, message_id)
            for side in ("since", "before"):
                with pytest.raises(MessageNotFoundError) as caught:
                    await checkpointer.messages.list(thread_id, **{side: message_id})
                assert (caught.value.thread_id, caught.value.message_id) == (thread_id, message_id)
        # A summary is not in the log.
        await checkpointer.context.swap("thread", ["a"], said("short"), summary_id="summary")
        assert ids(await checkpointer.messages.list("thread")) == ["a"]
        for side in ("since", "before"):
            with pytest.raises(MessageNotFoundError):
                await checkpointer.messages.list("thread", **{side: "summary"})
        assert await checkpointer.messages.list("nobody") == []
        assert await checkpointer.messages.list("nobody", since=1, before=9, reverse=True, with_parts=True) == []
        assert await checkpointer.load("nobody") is None

    async def test_an_id_is_taken_once(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [named("a"), named("b")])
        await checkpointer.context.swap("thread", ["a"], said("short"), summary_id="summary")
        for taken in ("b", "summary", "a"):
            for messages in ([named(taken)], [said("fine"), named("new"), named(taken)]):
                with pytest.raises(DuplicateIdError) as caught:
                    await checkpointer.append("thread", messages)
                assert (caught.value.thread_id, caught.value.message_id) == ("thread", taken)
            with pytest.raises(DuplicateIdError):
                await checkpointer.messages.append("thread", [said("x")], message_ids=[taken])
        # Of several the first.
        for several in (["b", "summary", "a"], ["summary", "a", "b"], ["a", "b", "summary"]):
            with pytest.raises(DuplicateIdError) as caught:
                await checkpointer.append("thread", [named("new"), *map(named, several)])
            assert caught.value.message_id == several[0]
        assert (await checkpointer.threads.get("thread")).last_seq == 2
        await checkpointer.append("thread", [named("new")])
        assert [(record.message_id, record.seq) for record in await checkpointer.messages.list("thread")] == [
            ("a", 1),
            ("b", 2),
            ("new", 3),
        ]
        await checkpointer.append("other", [named("a"), named("summary")])
        assert (await checkpointer.messages.get("other", "a")).thread_id == "other"
        # Nor twice in one append; and a run that is completed is told first.
        for messages, given in (([named("x"), said("y"), named("x")], None), ([named("x"), said("y")], [None, "x"])):
            with pytest.raises(DuplicateIdError) as caught:
                await checkpointer.messages.append("nobody", messages, message_ids=given)
            assert (caught.value.thread_id, caught.value.message_id) == ("nobody", "x")
        assert await checkpointer.load("nobody") is None
        await run_of(checkpointer, "other", "run", "1")
        with pytest.raises(RunAlreadyCompletedError):
            await checkpointer.append("other", [named("a", run_id="run")])

    async def test_of_many_appends_of_one_id_at_once_one_is_kept(self, checkpointer: Any) -> None:
        results = await asyncio.gather(
            *(checkpointer.messages.append("thread", [named("same", f"{n}")]) for n in range(6)), return_exceptions=True
        )
        assert results.count(["same"]) == 1
        assert {type(result) for result in results if result != ["same"]} == {DuplicateIdError}
        (record,) = await checkpointer.messages.list("thread")
        assert (record.seq, texts([record.message])) == (1, [f"{results.index(['same'])}"])
        assert (await checkpointer.threads.get("thread")).last_seq == 1

    async def test_a_page_lies_between_two_messages(self, checkpointer: Any) -> None:
        """They are named by id or by seq, and are not in it themselves, whichever end it begins at."""
        letters = list("abcdefg")
        await checkpointer.append("thread", [named(letter) for letter in letters])
        for since in (None, "b", 2, "g", 7, 0, 10, 2**63 - 1):
            for before in (None, "f", 6, "a", 1, 8, 2**63 - 1):
                lower = letters.index(since) + 1 if isinstance(since, str) else since or 0
                upper = letters.index(before) + 1 if isinstance(before, str) else before or 8
                expected = [letter for seq, letter in enumerate(letters, 1) if lower < seq < upper]
                page = await checkpointer.messages.list("thread", since=since, before=before)
                assert ids(page) == expected
        for limit in (1, 3, 7, 100, 2**63 - 1):
            some = {"limit": limit}
            assert ids(await checkpointer.messages.list("thread", **some)) == letters[:limit]
            assert ids(await checkpointer.messages.list("thread", reverse=True, **some)) == letters[::-1][:limit]
            inner = await checkpointer.messages.list("thread", since="b", before=6, **some)
            assert ids(inner) == ["c", "d", "e"][:limit]
            inner = await checkpointer.messages.list("thread", since=2, before="f", reverse=True, **some)
            assert ids(inner) == ["e", "d", "c"][:limit]

    async def test_a_stream_brings_what_a_list_does(self, checkpointer: Any) -> None:
        """Whatever the size of its chunks; and what is appended while it runs is not in it."""
        await checkpointer.append("thread", [named(name) for name in "abcdefg"])
        listed = await checkpointer.messages.list("thread")
        for size in (1, 2, 7, 8, 1_000):
            assert [record async for record in checkpointer.messages.stream("thread", chunk_size=size)] == listed
        between = checkpointer.messages.stream("thread", since="b", before=6, chunk_size=2)
        assert [record.message_id async for record in between] == ["c", "d", "e"]
        assert [record async for record in checkpointer.messages.stream("nobody")] == []
        seen = []
        async for record in checkpointer.messages.stream("thread", chunk_size=3):
            seen.append(record)
            await checkpointer.append("thread", [said("one more")])
        assert seen == listed
        with pytest.raises(MessageNotFoundError):
            [record async for record in checkpointer.messages.stream("thread", since="z")]
        for wrong in (0, -1, True, "2", 1.5, None):
            with pytest.raises(ValueError, match="chunk_size"):
                checkpointer.messages.stream("thread", chunk_size=wrong)
        with pytest.raises(InvalidIdError):
            checkpointer.messages.stream(" ")

    async def test_messages_are_listed_with_their_parts(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [named("a"), named("b"), named("c")])
        for message_id, content in (("c", 1), ("a", 2), ("a", 3), ("draft", 4)):
            await checkpointer.parts.append("thread", message_id, "text", content)
        listed = await checkpointer.messages.list("thread", with_parts=True)
        assert [(one.message_id, [part.content for part in one.parts]) for one in listed] == [
            ("a", [2, 3]),
            ("b", []),
            ("c", [1]),
        ]
        page = await checkpointer.messages.list("thread", since="a", limit=1, reverse=True, with_parts=True)
        assert [(one.message_id, [part.index for part in one.parts]) for one in page] == [("c", [0])]

    async def test_a_copied_message_keeps_its_id(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [named("open", run_id="open"), named("a")])
        await run_of(checkpointer, "thread", "run", "made")
        (made,) = ids(await checkpointer.messages.list("thread", since="a"))
        await checkpointer.fork("thread", "fork", after_run_id="run")
        copied = await checkpointer.messages.list("fork")
        assert [(record.message_id, record.seq) for record in copied] == [("a", 1), (made, 2)]
        assert (await checkpointer.messages.get("fork", made)).message == said("made", "run")
        with pytest.raises(DuplicateIdError):
            await checkpointer.append("fork", [named("a")])
        await checkpointer.append("fork", [named("open")])
        await checkpointer.threads.delete("thread")
        await checkpointer.append("thread", [named(made)])
        assert ids(await checkpointer.messages.list("thread")) == [made]

    async def test_a_record_of_another_thread_is_not_taken_for_one_of_this(self, checkpointer: Any) -> None:
        """Whatever its id: a fork has the same ones."""
        await run_of(checkpointer, "thread", "run", "1", "2")
        await checkpointer.fork("thread", "fork", after_run_id="run")
        record = (await checkpointer.messages.list("thread"))[0]
        item = (await checkpointer.context.items("thread"))[0]
        assert record.message_id == item.message_id == ids(await checkpointer.messages.list("fork"))[0]
        for foreign in (record, item):
            for call in (
                checkpointer.messages.list("fork", since=foreign),
                checkpointer.messages.list("fork", before=foreign),
                checkpointer.usage.record("fork", foreign, input_tokens=1),
                checkpointer.usage.get("fork", foreign),
                checkpointer.parts.of("fork", [record.message_id, foreign]),
            ):
                with pytest.raises(MessageNotFoundError) as caught:
                    await call
                assert (caught.value.thread_id, caught.value.message_id) == ("fork", record.message_id)
            with pytest.raises(MessageNotFoundError):
                checkpointer.messages.stream("fork", since=foreign)
            assert len(await checkpointer.messages.list("thread", since=foreign)) == 1
        assert await checkpointer.usage.get("fork", record.message_id) is None

    async def test_a_made_id_names_its_message_wherever_it_was_copied(self, checkpointer: Any) -> None:
        """In copies of copies, each of which leaves something out; and nowhere else."""
        await checkpointer.append("thread", [named("first"), said("abandoned", "abandoned")])
        await run_of(checkpointer, "thread", "one", "1", "2")
        await checkpointer.append("thread", [said("open", "open")])
        await run_of(checkpointer, "thread", "two", "3")
        await checkpointer.fork("thread", "fork", after_run_id="two")
        await checkpointer.append("fork", [said("left behind", "open")])
        await run_of(checkpointer, "fork", "three", "4")
        await checkpointer.fork("fork", "copy", after_run_id="three")
        await checkpointer.fork("copy", "whole", after_run_id="three")
        listed = {name: await checkpointer.messages.list(name) for name in ("thread", "fork", "copy", "whole")}
        assert ids(listed["copy"]) == ids(listed["whole"])
        assert texts([record.message for record in listed["copy"]]) == ["first", "1", "2", "3", "4"]
        in_thread = {record.message_id for record in listed["thread"]}
        assert [one.message_id in in_thread for one in listed["copy"]] == [True] * 4 + [False]
        made = {record.message_id for records in listed.values() for record in records}
        for name, records in listed.items():
            assert [record.seq for record in records] == [*range(1, len(records) + 1)]
            for record in records:
                assert await checkpointer.messages.get(name, record.message_id) == record
                after = await checkpointer.messages.list(name, since=record.message_id)
                assert after == records[record.seq :]
            for foreign in made - {record.message_id for record in records}:
                with pytest.raises(MessageNotFoundError):
                    await checkpointer.messages.get(name, foreign)

    async def test_a_host_cannot_give_an_id_that_was_made(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("left behind", "open"), said("stays")])
        await run_of(checkpointer, "thread", "run", "1", "2")
        await checkpointer.fork("thread", "fork", after_run_id="run")
        for thread_id in ("thread", "fork"):
            for taken in ids(await checkpointer.messages.list(thread_id)):
                with pytest.raises(DuplicateIdError) as caught:
                    await checkpointer.append(thread_id, [said("fine"), named(taken)])
                assert (caught.value.thread_id, caught.value.message_id) == (thread_id, taken)
        (left_behind, *_) = ids(await checkpointer.messages.list("thread"))
        await checkpointer.append("fork", [named(left_behind)])
        assert (await checkpointer.messages.get("fork", left_behind)).seq == 4

    async def test_each_of_many_appends_at_once_is_told_its_own_ids(self, checkpointer: Any) -> None:
        def message(call: int, place: int) -> UserMessage:
            return named("given" if call == 7 and place == 0 else None, f"{call} {place}")

        calls = [[message(call, place) for place in range(1 + call % 3)] for call in range(40)]
        for thread_id in "abc":
            await checkpointer.claim_run(thread_id, "run")
        told = await asyncio.gather(
            *(checkpointer.messages.append("abc"[call % 3 - 1], messages) for call, messages in enumerate(calls))
        )
        assert len({message_id for some in told for message_id in some}) == sum(map(len, calls))
        for call, (messages, message_ids) in enumerate(zip(calls, told, strict=True)):
            records = [await checkpointer.messages.get("abc"[call % 3 - 1], one) for one in message_ids]
            assert [record.message for record in records] == messages
            first = records[0].seq
            assert [record.seq for record in records] == [*range(first, first + len(records))]

    async def test_an_id_is_free_again_when_its_append_was_undone(self, checkpointer: Any) -> None:
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.append("thread", [named("a")])
                assert (await tx.messages.get("thread", "a")).seq == 1
                with pytest.raises(DuplicateIdError):
                    await tx.append("thread", [named("b"), named("a")])
                assert ids(await tx.messages.list("thread")) == ["a"]
                raise ZeroDivisionError
        assert await checkpointer.messages.list("thread") == []
        await checkpointer.append("thread", [named("a"), named("b")])
        assert ids(await checkpointer.messages.list("thread", reverse=True)) == ["b", "a"]

    async def test_ids_of_messages_are_ids_like_any(self, checkpointer: Any) -> None:
        good = list(
            dict.fromkeys([*GOOD_IDS, *(one for pair in DIFFERENT_IDS for one in pair), "#", "#0", "#x", "##1"])
        )
        await checkpointer.append("thread", [named(message_id) for message_id in good])
        for seq, message_id in enumerate(good, 1):
            assert (await checkpointer.messages.get("thread", message_id)).seq == seq
            assert ids(await checkpointer.messages.list("thread", since=message_id, limit=1)) == good[seq : seq + 1]

    async def test_bad_ids_and_places_are_refused(self, checkpointer: Any) -> None:
        for bad in BAD_IDS:
            with pytest.raises(InvalidIdError):
                await checkpointer.messages.get("thread", bad)
            for call in (checkpointer.messages.get(bad, "a"), checkpointer.messages.list(bad)):
                with pytest.raises(InvalidIdError, match="thread_id"):
                    await call
            if bad is not None:
                with pytest.raises(InvalidIdError) as caught:
                    await checkpointer.messages.append("thread", [said("x"), said("y")], message_ids=[None, bad])
                assert caught.value.name == "messages[1].message_id"
            if bad is not None and bad != 7:
                with pytest.raises(InvalidIdError, match="since"):
                    await checkpointer.messages.list("thread", since=bad)
        for name in ("#1", "#23"):
            with pytest.raises(InvalidIdError, match="no id of their own"):
                await checkpointer.append("thread", [named(name)])
        with pytest.raises(InvalidIdError, match="message_ids"):
            await checkpointer.messages.append("thread", [said("x")], message_ids="a")
        with pytest.raises(InvalidIdError, match="it is a set where a list of ids belongs"):
            await checkpointer.messages.append("thread", [said("x"), said("y")], message_ids={"a", "b"})
        with pytest.raises(ValueError, match="1 messages and 2 message_ids"):
            await checkpointer.messages.append("thread", [said("x")], message_ids=["a", "b"])
        for limit in (0, -1, 1.5, "1", True, 2**63):
            with pytest.raises(ValueError, match="limit"):
                await checkpointer.messages.list("thread", limit=limit)
        for side in ("since", "before"):
            for place in (-1, 2**63, True, 1.5):
                with pytest.raises(ValueError, match=side):
                    await checkpointer.messages.list("thread", **{side: place})
        assert await checkpointer.load("thread") is None


class HostMessagesContract:
    """Messages of a host's own class. `make_checkpointer` is a fixture: options to a new, unopened checkpointer."""

    pytestmark = pytest.mark.asyncio

    async def test_plain_dicts_have_ids_windows_and_usage(self, make_checkpointer: Any) -> None:
        first = {"message_id": "a", "role": "user", "content": "hi"}
        second = {"run_id": "run", "usage": {"input_tokens": 3}, "model_id": "model", "stop_reason": "end"}
        async with make_checkpointer(message_type=dict) as checkpointer:
            first_id, second_id = await checkpointer.messages.append("thread", [first, second])
            assert first_id == "a"
            assert (await checkpointer.load("thread")).messages == [first, second]
            record = await checkpointer.messages.get("thread", second_id)
            assert (record.role, record.run_id, record.message) == ("", "run", second)
            with pytest.raises(DuplicateIdError):
                await checkpointer.append("thread", [first])
            summary = {"summary": ["of", 2]}
            item = await checkpointer.context.swap("thread", ["a", record], summary)
            assert await checkpointer.context.load("thread") == [summary]
            assert [one.message for one in await checkpointer.context.expand("thread", item)] == [first, second]
            used = await checkpointer.usage.record("thread", {**second, "message_id": second_id})
            assert (used.input_tokens, used.model_id, used.run_id, used.finish_reason) == (3, "model", "run", "end")
            assert await checkpointer.usage.record("thread", record) == used
