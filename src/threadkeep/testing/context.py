"""cp.context: the window over the log, and the summaries that stand in it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import (
    DuplicateIdError,
    InvalidIdError,
    MessageNotFoundError,
    StaleContextError,
    SummaryNotFoundError,
    ThreadNotFoundError,
    UnstorableValueError,
)
from threadkeep.records import ContextItem
from threadkeep.testing.messages import ids, named
from threadkeep.testing.samples import BAD_IDS, one_of_each, said, texts


async def a_thread_of(checkpointer: Any, names: str, thread_id: str = "thread") -> None:
    """A thread whose messages have a letter each, as id and as text."""
    await checkpointer.append(thread_id, [named(name) for name in names])


async def swapped(checkpointer: Any, remove: str, name: str, thread_id: str = "thread") -> ContextItem:
    """A summary of this name in the place of these letters."""
    item: ContextItem = await checkpointer.context.swap(thread_id, list(remove), named(name))
    return item


async def window(checkpointer: Any, thread_id: str = "thread") -> str:
    """The letters in the window. Also that its items, its messages and what is known of each say the same."""
    items = await checkpointer.context.items(thread_id)
    records = [await checkpointer.messages.get(thread_id, item.message_id) for item in items]
    assert await checkpointer.context.load(thread_id) == [record.message for record in records]
    assert await checkpointer.context.records(thread_id) == records
    assert [item.is_summary for item in items] == [record.is_summary for record in records]
    assert [item.position for item in items] == sorted({item.position for item in items})
    return "".join(texts([record.message for record in records]))


async def under(checkpointer: Any, name: str, thread_id: str = "thread") -> tuple[str, str]:
    """What a summary stands for, and in the end."""
    expand = checkpointer.context.expand
    return "".join(ids(await expand(thread_id, name))), "".join(ids(await expand(thread_id, name, deep=True)))


async def run_with(checkpointer: Any, run_id: str, names: str, thread_id: str = "thread") -> None:
    """A whole run of such messages."""
    await checkpointer.claim_run(thread_id, run_id)
    await checkpointer.append(thread_id, [named(name, run_id=run_id) for name in names])
    await checkpointer.mark_run_complete(thread_id, run_id)


class ContextContract:
    """context.items, load, records, swap, expand; messages.last_summary; and forks."""

    pytestmark = pytest.mark.asyncio

    # ---- the window -----------------------------------------------------------------------------------------

    async def test_at_first_the_window_is_the_log(self, checkpointer: Any) -> None:
        assert await checkpointer.context.items("nobody") == []
        assert await checkpointer.context.load("nobody") == []
        assert await checkpointer.messages.last_summary("nobody") is None
        assert await checkpointer.load("nobody") is None
        await checkpointer.threads.create("thread")
        assert await checkpointer.context.items("thread") == []
        appended = await checkpointer.messages.append("thread", one_of_each())
        assert await checkpointer.context.items("thread") == [
            ContextItem("thread", message_id, position) for position, message_id in enumerate(appended, 1)
        ]
        assert await checkpointer.context.load("thread") == one_of_each()
        assert await checkpointer.messages.last_summary("thread") is None

    async def test_a_summary_takes_the_place_of_what_it_stands_for(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcdef")
        await a_thread_of(checkpointer, "abc", "other")
        before = await checkpointer.load("thread"), await checkpointer.messages.list("thread")
        record = await checkpointer.threads.get("thread")
        assert await swapped(checkpointer, "bcd", "S") == ContextItem("thread", "S", 2, is_summary=True)
        assert await window(checkpointer) == "aSef"
        assert await checkpointer.context.items("thread") == [
            ContextItem("thread", "a", 1),
            ContextItem("thread", "S", 2, is_summary=True),
            ContextItem("thread", "e", 5),
            ContextItem("thread", "f", 6),
        ]
        assert await under(checkpointer, "S") == ("bcd", "bcd")
        # The log has not changed, and goes on where it was.
        assert (await checkpointer.load("thread"), await checkpointer.messages.list("thread")) == before
        after = await checkpointer.threads.get("thread")
        assert (after.last_seq, after.last_completion_seq) == (record.last_seq, record.last_completion_seq)
        await a_thread_of(checkpointer, "gh")
        assert await window(checkpointer) == "aSefgh"
        assert texts((await checkpointer.load("thread")).messages) == list("abcdefgh")
        assert await window(checkpointer, "other") == "abc"

    async def test_a_summary_may_stand_for_summaries(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcdefghi")
        await swapped(checkpointer, "bc", "S")
        await swapped(checkpointer, "ef", "T")
        assert await window(checkpointer) == "aSdTghi"
        # One before a summary, one between two, one after; and in whatever order they are named.
        assert await swapped(checkpointer, "gTSda", "U") == ContextItem("thread", "U", 1, is_summary=True)
        assert await window(checkpointer) == "Uhi"
        assert await under(checkpointer, "U") == ("aSdTg", "abcdefg")
        await swapped(checkpointer, "U", "V")
        assert await window(checkpointer) == "Vhi"
        assert await under(checkpointer, "V") == ("U", "abcdefg")
        await swapped(checkpointer, "Vhi", "W")
        assert await window(checkpointer) == "W"
        assert await under(checkpointer, "W") == ("Vhi", "abcdefghi")
        assert await under(checkpointer, "S") == ("bc", "bc")
        await a_thread_of(checkpointer, "j")
        assert await window(checkpointer) == "Wj"

    async def test_what_a_summary_stands_for_need_not_be_neighbours(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcdefgh")
        await swapped(checkpointer, "bdf", "S")
        assert await window(checkpointer) == "aScegh"
        assert await under(checkpointer, "S") == ("bdf", "bdf")
        await swapped(checkpointer, "ceh", "T")
        assert await window(checkpointer) == "aSTg"
        assert await under(checkpointer, "T") == ("ceh", "ceh")
        await swapped(checkpointer, "aT", "U")
        assert await window(checkpointer) == "USg"
        assert await under(checkpointer, "U") == ("aT", "aceh")
        await swapped(checkpointer, "Sg", "V")
        assert await window(checkpointer) == "UV"
        assert await under(checkpointer, "V") == ("Sg", "bdfg")
        await swapped(checkpointer, "UV", "W")
        assert await under(checkpointer, "W") == ("UV", "abcdefgh")

    async def test_a_summary_may_stand_for_thousands(self, checkpointer: Any) -> None:
        appended = await checkpointer.messages.append("thread", [said(f"{number}") for number in range(2_500)])
        await checkpointer.context.swap("thread", appended[::2], said("even"))
        odd = await checkpointer.context.items("thread")
        assert ids(odd[1:]) == appended[1::2]
        item = await checkpointer.context.swap("thread", odd, said("all"), summary_id="all")
        assert await checkpointer.context.items("thread") == [item]
        assert ids(await checkpointer.context.expand("thread", item)) == ids(odd)
        assert ids(await checkpointer.context.expand("thread", item, deep=True)) == appended

    async def test_the_windows_records_bring_their_parts(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abc")
        for name in "cbb":
            await checkpointer.parts.append("thread", name, "text", name)
        await swapped(checkpointer, "a", "S")
        records = await checkpointer.context.records("thread", with_parts=True)
        assert [(record.message_id, record.seq, len(record.parts)) for record in records] == [
            ("S", None, 0),
            ("b", 2, 2),
            ("c", 3, 1),
        ]
        # The records themselves, which were looked at, are what is removed.
        await checkpointer.context.swap("thread", records[:2], named("T"))
        assert await window(checkpointer) == "Tc"
        with pytest.raises(SummaryNotFoundError, match="no summary 'c'"):
            await checkpointer.context.expand("thread", "c")

    async def test_items_are_named_as_one_likes(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcd")
        first, second, third, _ = await checkpointer.context.items("thread")
        record = await checkpointer.messages.get("thread", "d")
        item = await checkpointer.context.swap("thread", iter([first, "b", second, "a"]), said("S"), summary_id="S")
        assert await window(checkpointer) == "Scd"
        await checkpointer.context.swap("thread", (item, third, record), said("T"), summary_id="T")
        assert await window(checkpointer) == "T"
        expanded = await checkpointer.context.expand("thread", "T")
        assert ids(expanded) == ["S", "c", "d"]
        for summary in ("S", item, expanded[0]):
            assert ids(await checkpointer.context.expand("thread", summary)) == ["a", "b"]

    async def test_what_is_appended_meanwhile_is_not_lost(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abc")
        items = await checkpointer.context.items("thread")
        await a_thread_of(checkpointer, "d")
        await checkpointer.context.swap("thread", items, named("S"))
        assert await window(checkpointer) == "Sd"
        await asyncio.gather(
            swapped(checkpointer, "Sd", "T"), *(a_thread_of(checkpointer, letter) for letter in "efghij")
        )
        shown = await window(checkpointer)
        assert (shown[0], sorted(shown[1:])) == ("T", list("efghij"))

    # ---- summaries ------------------------------------------------------------------------------------------

    async def test_a_summary_gets_an_id(self, checkpointer: Any) -> None:
        """That beside it, or its own, or a new one; and it comes back as it was."""
        await a_thread_of(checkpointer, "abcd")
        given = await checkpointer.context.swap("thread", ["a"], named("own"), summary_id="given")
        own = await checkpointer.context.swap("thread", ["b"], named("own"))
        made = await checkpointer.context.swap("thread", ["c"], said("made"))
        newer = await checkpointer.context.swap("thread", ["d"], said("made"))
        assert (given.message_id, own.message_id) == ("given", "own")
        assert made.message_id < newer.message_id
        shown = [named("own"), named("own"), said("made"), said("made")]
        assert await checkpointer.context.load("thread") == shown
        for message, item in zip(one_of_each("run"), await checkpointer.context.items("thread"), strict=True):
            summary = await checkpointer.context.swap("thread", [item], message)
            assert (await checkpointer.messages.get("thread", summary.message_id)).message == message
        assert await checkpointer.context.load("thread") == one_of_each("run")

    async def test_a_summary_has_a_record_and_the_last_is_the_newest(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcde")
        await checkpointer.claim_run("thread", "run")
        await checkpointer.mark_run_complete("thread", "run")
        before = datetime.now(UTC)
        # The log takes no more messages of the run; the window does.
        await checkpointer.context.swap("thread", ["d"], named("S", run_id="run"))
        record = await checkpointer.messages.last_summary("thread")
        assert (record.thread_id, record.message_id, record.seq, record.is_summary) == ("thread", "S", None, True)
        assert (record.role, record.run_id, record.message) == ("user", "run", named("S", run_id="run"))
        assert before <= record.created_at <= datetime.now(UTC)
        assert (record.created_at.tzinfo, record.parts) == (UTC, None)
        assert await checkpointer.messages.get("thread", "S") == record
        for remove, name in (("b", "T"), ("TS", "U"), ("a", "V")):
            await swapped(checkpointer, remove, name)
            assert (await checkpointer.messages.last_summary("thread")).message_id == name
        expanded = await checkpointer.context.expand("thread", "U")
        assert expanded == [await checkpointer.messages.get("thread", name) for name in "TS"]
        deep = await checkpointer.context.expand("thread", "U", deep=True)
        assert deep == [await checkpointer.messages.get("thread", name) for name in "bd"]
        # Nothing but a summary stands for anything.
        for thread_id, name in (("thread", "a"), ("thread", "s"), ("thread", "#1"), ("nobody", "S")):
            for is_deep in (False, True):
                with pytest.raises(MessageNotFoundError) as caught:
                    await checkpointer.context.expand(thread_id, name, deep=is_deep)
                assert (caught.value.thread_id, caught.value.message_id) == (thread_id, name)

    # ---- what is refused ------------------------------------------------------------------------------------

    async def test_what_is_not_in_the_window_changes_nothing(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcde")
        await a_thread_of(checkpointer, "xyz", "other")
        await swapped(checkpointer, "bc", "S")
        await swapped(checkpointer, "Sd", "T")
        before = await checkpointer.context.items("thread")
        for remove, stale in (
            (["a", "b"], ["b"]),
            (["S"], ["S"]),
            (["a", "x", "T", "nobody's", "S"], ["x", "nobody's", "S"]),
            (["#1"], ["#1"]),
            (["A"], ["A"]),
        ):
            # It is told before an id that is taken, too.
            for summary_id in (None, "new", "a"):
                with pytest.raises(StaleContextError) as caught:
                    await checkpointer.context.swap("thread", remove, said("late"), summary_id=summary_id)
                assert (caught.value.thread_id, caught.value.message_ids) == ("thread", stale)
                assert all(name in str(caught.value) for name in stale)
        for thread_id in ("nobody", "Thread"):
            with pytest.raises(ThreadNotFoundError) as missing:
                await checkpointer.context.swap(thread_id, ["a"], said("late"))
            assert missing.value.thread_id == thread_id
            assert await checkpointer.load(thread_id) is None
        assert await checkpointer.context.items("thread") == before
        assert (await checkpointer.messages.last_summary("thread")).message_id == "T"
        with pytest.raises(MessageNotFoundError):
            await checkpointer.messages.get("thread", "new")
        assert await window(checkpointer, "other") == "xyz"

    async def test_what_is_of_another_thread_is_told_apart(self, checkpointer: Any) -> None:
        """By what it says of itself: two threads may have messages of the same id."""
        for thread_id in ("thread", "other"):
            await a_thread_of(checkpointer, "ab", thread_id)
        summary = await swapped(checkpointer, "a", "S", "other")
        items = await checkpointer.context.items("other")
        for foreign in (items, await checkpointer.context.records("other"), ["a", items[1]]):
            with pytest.raises(StaleContextError) as caught:
                await checkpointer.context.swap("thread", foreign, named("T"))
            assert "b" in caught.value.message_ids
        await swapped(checkpointer, "a", "S")
        with pytest.raises(SummaryNotFoundError):
            await checkpointer.context.expand("thread", summary)
        assert await window(checkpointer) == await window(checkpointer, "other") == "Sb"
        with pytest.raises(StaleContextError, match=r"'3', '4'\] and 95 more\."):
            await checkpointer.context.swap("thread", [f"{number}" for number in range(100)], named("T"))

    async def test_a_summary_needs_an_id_of_its_own(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcd")
        await swapped(checkpointer, "ab", "S")
        await swapped(checkpointer, "S", "T")
        before = await checkpointer.context.items("thread")
        for taken in ("a", "c", "d", "S", "T"):
            for message, given in ((named(taken), None), (said("late"), taken)):
                with pytest.raises(DuplicateIdError) as caught:
                    await checkpointer.context.swap("thread", ["c", "T"], message, summary_id=given)
                assert (caught.value.thread_id, caught.value.message_id) == ("thread", taken)
        assert await checkpointer.context.items("thread") == before
        assert (await checkpointer.messages.last_summary("thread")).message_id == "T"

    async def test_bad_swaps_are_refused(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "ab")
        before = await checkpointer.context.items("thread")
        empty: list[Any] = [[], (), iter(())]
        for nothing in empty:
            with pytest.raises(ValueError, match="remove is empty"):
                await checkpointer.context.swap("thread", nothing, said("S"))
        with pytest.raises(InvalidIdError, match="remove"):
            await checkpointer.context.swap("thread", "ab", said("S"))
        for bad in BAD_IDS:
            with pytest.raises(InvalidIdError, match="remove"):
                await checkpointer.context.swap("thread", ["a", bad], said("S"))
            with pytest.raises(InvalidIdError, match="summary"):
                await checkpointer.context.expand("thread", bad)
            for call in (
                checkpointer.context.items(bad),
                checkpointer.context.load(bad),
                checkpointer.context.swap(bad, ["a"], said("S")),
                checkpointer.context.expand(bad, "S"),
                checkpointer.messages.last_summary(bad),
            ):
                with pytest.raises(InvalidIdError, match="thread_id"):
                    await call
            if bad is not None:
                with pytest.raises(InvalidIdError):
                    await checkpointer.context.swap("thread", ["a"], said("S"), summary_id=bad)
        with pytest.raises(InvalidIdError, match="no id of their own"):
            await checkpointer.context.swap("thread", ["a"], said("S"), summary_id="#1")
        for wrong in ("text", None, {"role": "nobody"}, said("x", bad=float("nan"))):
            with pytest.raises(UnstorableValueError):
                await checkpointer.context.swap("thread", ["a"], wrong)
        assert await checkpointer.context.items("thread") == before

    async def test_of_two_that_remove_the_same_one_wins(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcdef")
        results = await asyncio.gather(
            *(swapped(checkpointer, letters, name) for letters, name in zip(["abc", "bcd", "cde"], "STU", strict=True)),
            return_exceptions=True,
        )
        (winner,) = [result for result in results if isinstance(result, ContextItem)]
        assert [type(result) for result in results if result is not winner] == [StaleContextError] * 2
        expected = {"S": "Sdef", "T": "aTef", "U": "abUf"}
        assert await window(checkpointer) == expected[winner.message_id]
        assert (await checkpointer.messages.last_summary("thread")).message_id == winner.message_id

    async def test_those_that_remove_different_items_all_succeed(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcdefgh")
        await asyncio.gather(
            *(swapped(checkpointer, *pair) for pair in (("gh", "S"), ("ac", "T"), ("e", "U"), ("bd", "V")))
        )
        assert await window(checkpointer) == "TVUfS"
        assert [(await under(checkpointer, name))[1] for name in "STUV"] == ["gh", "ac", "e", "bd"]

    # ---- with the rest --------------------------------------------------------------------------------------

    async def test_a_compaction_is_part_of_a_transaction(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abc")
        await swapped(checkpointer, "a", "S")
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await a_thread_of(tx, "d")
                await swapped(tx, "Scd", "T")
                with pytest.raises(StaleContextError):
                    await swapped(tx, "bc", "U")
                with pytest.raises(DuplicateIdError):
                    await swapped(tx, "b", "T")
                assert await window(tx) == "Tb"
                assert await under(tx, "T") == ("Scd", "acd")
                raise ZeroDivisionError
        assert await window(checkpointer) == "Sbc"
        assert (await checkpointer.messages.last_summary("thread")).message_id == "S"
        async with checkpointer.transaction() as tx:
            await swapped(tx, "bc", "T")
            await a_thread_of(tx, "d")
            await swapped(tx, "T", "U")
        assert await window(checkpointer) == "SUd"

    async def test_a_deleted_thread_takes_its_window_along(self, checkpointer: Any) -> None:
        await a_thread_of(checkpointer, "abcd")
        await a_thread_of(checkpointer, "abcd", "other")
        for thread_id in ("thread", "other"):
            await swapped(checkpointer, "bc", "S", thread_id)
        await checkpointer.threads.delete("thread")
        assert await checkpointer.context.items("thread") == []
        assert await checkpointer.messages.last_summary("thread") is None
        await a_thread_of(checkpointer, "bSc")
        assert await window(checkpointer) == "bSc"
        with pytest.raises(MessageNotFoundError):
            await checkpointer.context.expand("thread", "S")
        await swapped(checkpointer, "Sb", "T")
        assert await window(checkpointer) == "Tc"
        assert await window(checkpointer, "other") == "aSd"

    async def test_a_fork_takes_whole_summaries_along(self, checkpointer: Any) -> None:
        await run_with(checkpointer, "first", "abc")
        await checkpointer.append("thread", [named("x", run_id="open")])
        await run_with(checkpointer, "second", "defg")
        await swapped(checkpointer, "bc", "S")
        await swapped(checkpointer, "eg", "T")
        await swapped(checkpointer, "ST", "U")
        assert await window(checkpointer) == "aUxdf"
        summary = await checkpointer.messages.get("thread", "U")
        await checkpointer.fork("thread", "fork", after_run_id="second")
        assert await window(checkpointer, "fork") == "aUdf"
        assert await checkpointer.context.items("fork") == [
            ContextItem("fork", "a", 1),
            ContextItem("fork", "U", 2, is_summary=True),
            ContextItem("fork", "d", 4),
            ContextItem("fork", "f", 6),
        ]
        assert await under(checkpointer, "U", "fork") == ("ST", "bceg")
        copied = await checkpointer.messages.last_summary("fork")
        assert (copied.message_id, copied.message) == ("U", summary.message)
        assert (copied.thread_id, copied.role, copied.created_at) == ("fork", "user", summary.created_at)
        with pytest.raises(DuplicateIdError):
            await a_thread_of(checkpointer, "S", "fork")
        # The two go separate ways from here on.
        await a_thread_of(checkpointer, "h", "fork")
        await swapped(checkpointer, "dUh", "V", "fork")
        assert await window(checkpointer, "fork") == "aVf"
        assert await under(checkpointer, "V", "fork") == ("Udh", "bcdegh")
        assert await window(checkpointer) == "aUxdf"
        await checkpointer.threads.delete("thread")
        assert await under(checkpointer, "U", "fork") == ("ST", "bceg")

    async def test_a_fork_has_the_messages_of_the_summaries_it_cannot_take(self, checkpointer: Any) -> None:
        await run_with(checkpointer, "first", "abcd")
        await run_with(checkpointer, "second", "efgh")
        await run_with(checkpointer, "third", "ijkl")
        await swapped(checkpointer, "bc", "S")
        await swapped(checkpointer, "ef", "T")
        await swapped(checkpointer, "SdT", "U")
        await swapped(checkpointer, "gi", "V")
        await swapped(checkpointer, "UV", "W")
        assert await window(checkpointer) == "aWhjkl"
        for run_id, shown, last in (("first", "aSd", "S"), ("second", "aUgh", "U"), ("third", "aWhjkl", "W")):
            await checkpointer.fork("thread", run_id, after_run_id=run_id)
            assert await window(checkpointer, run_id) == shown
            assert (await checkpointer.messages.last_summary(run_id)).message_id == last
            for name in "STUVW":
                if name > last:
                    with pytest.raises(MessageNotFoundError):
                        await checkpointer.messages.get(run_id, name)
        # An id that stayed behind is free, and so is a place in the window.
        await swapped(checkpointer, "dS", "T", "first")
        await a_thread_of(checkpointer, "e", "first")
        assert await window(checkpointer, "first") == "aTe"
        assert await under(checkpointer, "T", "first") == ("Sd", "bcd")
        await swapped(checkpointer, "ah", "V", "second")
        assert await window(checkpointer, "second") == "VUg"
        # A fork of a fork, and one of which nothing was compacted.
        await checkpointer.fork("third", "of third", after_run_id="second")
        assert await window(checkpointer, "of third") == "aUgh"
        assert await under(checkpointer, "U", "of third") == ("SdT", "bcdef")
        await run_with(checkpointer, "fourth", "mn", "of third")
        await checkpointer.fork("of third", "again", after_run_id="fourth")
        assert await window(checkpointer, "again") == "aUghmn"
        await checkpointer.fork("of third", "at first", after_run_id="first")
        assert await window(checkpointer, "at first") == "aSd"

    async def test_a_fork_of_which_nothing_was_compacted_shows_all(self, checkpointer: Any) -> None:
        await run_with(checkpointer, "first", "ab")
        await run_with(checkpointer, "second", "cd")
        await swapped(checkpointer, "bd", "S")
        await swapped(checkpointer, "aSc", "T")
        await checkpointer.fork("thread", "fork", after_run_id="first")
        assert await checkpointer.context.items("fork") == [ContextItem("fork", "a", 1), ContextItem("fork", "b", 2)]
        assert await checkpointer.messages.last_summary("fork") is None
        await swapped(checkpointer, "b", "S", "fork")
        await a_thread_of(checkpointer, "T", "fork")
        assert await window(checkpointer, "fork") == "aST"
