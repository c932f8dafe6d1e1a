"""threads.search: finding titles and messages by what they say, the same on every server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from threadkeep.errors import InvalidIdError, UnstorableValueError
from threadkeep.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from threadkeep.records import SearchHit
from threadkeep.testing.forks import run_of
from threadkeep.testing.messages import ids, named
from threadkeep.testing.samples import BAD_IDS, one_of_each, said

# No one is found by another, unless a server reads something into it.
DIFFERENT_TEXTS = [
    "50%",
    "50 percent",
    "a_b",
    "axb",
    "c\\d",
    "cd",
    "e\\%f",
    "e%f",
    "it's",
    "its",
    '"quoted"',
    "(.*)+",
    "[h-j]",
    "-- ; drop",
    ":name",
    "%(name)s",
    "{name}",
    "?!",
    "café",
    "cafe",
    "øl",
    "ol",
    "ångström",
    "angstrom",
    "日本",
    "👩\u200d💻",
    "👩🏽",
    "tab\there",
    "tab here",
    "two  spaces",
    "two spaces",
    "\x01",
]

# The text, and what finds it.
FOLDED = [
    ("Große Straße", "STRASSE"),
    ("MAẞSTAB", "maßstab"),
    ("ΟΔΥΣΣΕΎΣ", "οδυσσεύς"),
    ("\uff34okyo", "tOKYO"),  # a wide letter
    ("tokyo", "\uff34\uff2f\uff2b"),
    ("\ufb01ne", "FINE"),  # a ligature
    ("cafe\u0301 nero", "CAFÉ N"),
    ("İzmir", "İZM"),
    ("nul\0byte", "LBY"),
    ("lbytes", "l\0by"),
]


async def hits(checkpointer: Any, text: str, **options: Any) -> list[tuple[str, int | None]]:
    """Where it was found: the thread, and the seq of the message."""
    return [(hit.thread_id, hit.seq) for hit in await checkpointer.threads.search(text, **options)]


class SearchContract:
    """threads.search, and `searchable=`. `make_checkpointer` is a fixture: options to a new, unopened checkpointer."""

    pytestmark = pytest.mark.asyncio

    async def test_titles_are_found(self, make_checkpointer: Any) -> None:
        """With any checkpointer; messages only with one that was asked to."""
        async with make_checkpointer() as checkpointer:
            await checkpointer.threads.create("a", title="A trip to Paris")
            await checkpointer.append("a", [said("Paris, please")])
            await checkpointer.append("b", [said("and comparison")])
            assert await checkpointer.threads.search("paris") == [SearchHit("a", "A trip to Paris", None, None)]
            assert await hits(checkpointer, "comparison") == []
            await checkpointer.threads.update("b", title="A comparison")
            assert await hits(checkpointer, "Paris") == [("b", None), ("a", None)]
            await checkpointer.threads.update("a", title="Rome")
            await checkpointer.threads.update("b", agent="the title stays")
            assert await hits(checkpointer, "paris") == [("b", None)]
            assert await hits(checkpointer, "rome") == [("a", None)]
            for title in (None, "", "\0"):
                await checkpointer.threads.update("b", title=title)
                assert await hits(checkpointer, "comparison") == []
            await checkpointer.threads.update("b", title="comparison again")
            await checkpointer.threads.delete("b")
            await checkpointer.append("b", [said("anew")])
            assert await hits(checkpointer, "comparison") == []

    async def test_what_was_said_is_found(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.threads.create("thread", title="sums")
            await checkpointer.append("thread", [named("first", "How much is it?"), *one_of_each()])
            await checkpointer.append("other", [said("much more"), said(""), said("  ")])
            listed = await checkpointer.messages.list("thread")
            assert await checkpointer.threads.search("HOW MUCH", thread_id="thread") == [
                SearchHit("thread", "sums", "first", 1),
                SearchHit("thread", "sums", listed[1].message_id, 2),
            ]
            assert await checkpointer.threads.search("uch m") == [
                SearchHit("other", None, ids(await checkpointer.messages.list("other"))[0], 1)
            ]
            # Only what is text: neither thoughts nor arguments, nor the JSON around them.
            words = AssistantMessage(
                content=[
                    ThinkingContent(thinking="thought"),
                    TextContent(text="one"),
                    ToolCall(id="call", name="tool", arguments={"argument": 1}),
                    TextContent(text="two"),
                ],
                metadata={"label": "labelled"},
            )
            await checkpointer.append("words", [words])
            for text in ("thought", "argument", "tool", "labelled", "assistant", "onetwo", '"', "content"):
                assert await hits(checkpointer, text) == []
            for text in ("one\ntwo", "ONE", "two"):
                assert await hits(checkpointer, text) == [("words", 1)]
            await checkpointer.append("cases", [said("Μαΐου, STRASSE, ﬁn")])
            for text in ("Μαΐου".upper(), "Μαΐου", "straße", "FIN"):
                assert await hits(checkpointer, text) == [("cases", 1)]

    async def test_a_host_says_which_messages_can_be_found(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=lambda message: message.metadata.get("topic")) as checkpointer:
            await checkpointer.append("thread", [said("paris", topic="Weather"), said("rome"), said("oslo", topic="")])
            assert await hits(checkpointer, "weather") == [("thread", 1)]
            for text in ("paris", "rome", "oslo"):
                assert await hits(checkpointer, text) == []
            assert (await checkpointer.load("thread")).messages[0] == said("paris", topic="Weather")
        for wrong in ("yes", 1, None):
            with pytest.raises(TypeError, match="searchable"):
                async with make_checkpointer(searchable=wrong):
                    pass

    async def test_hits_come_in_an_order_and_as_many_as_are_asked_for(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.threads.create("old", title="the word")
            await checkpointer.threads.create("new")
            await checkpointer.append("old", [said("a word"), said("none"), said("word by word"), said("words")])
            await checkpointer.append("new", [said("swords")])
            everything = [("new", 1), ("old", None), ("old", 1), ("old", 3), ("old", 4)]
            assert await hits(checkpointer, "word") == everything
            for limit in (1, 2, 4, 5, 6, 10_000):
                assert await hits(checkpointer, "word", limit=limit) == everything[:limit]
            assert await hits(checkpointer, "word", thread_id="old") == everything[1:]
            assert await hits(checkpointer, "word", thread_id="old", limit=2) == everything[1:3]
            for thread_id in ("nobody", "OLD"):
                assert await hits(checkpointer, "word", thread_id=thread_id) == []
            assert await checkpointer.load("nobody") is None
            async with checkpointer.transaction() as tx:
                for number in range(101):
                    await tx.append("new", [said(f"word {number}")])
            assert len(await checkpointer.threads.search("word")) == 100

    async def test_every_text_finds_itself_and_no_other(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            async with checkpointer.transaction() as tx:
                for number, text in enumerate(DIFFERENT_TEXTS):
                    await tx.threads.create(f"{number}", title=f"<{text}>")
                    await tx.append("thread", [said(f"<{text}>")])
            for number, text in enumerate(DIFFERENT_TEXTS):
                found = await hits(checkpointer, text)
                assert (len(found), set(found)) == (2, {("thread", number + 1), (f"{number}", None)})
                # White space at its ends belongs to it.
                for inside in (f" {text}", f"{text} "):
                    assert await hits(checkpointer, inside) == []
            # Case and width do not.
            for number, (text, wanted) in enumerate(FOLDED):
                thread_id = f"folded {number}"
                await checkpointer.threads.create(thread_id, title=text)
                await checkpointer.append(thread_id, [said(text)])
                assert await hits(checkpointer, wanted, thread_id=thread_id) == [(thread_id, None), (thread_id, 1)]

    async def test_long_texts_are_found_as_far_as_they_are_looked_at(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.append("thread", [said("🙂" * 65_530 + "needle" + "haystack")])
            await checkpointer.append("thread", [said("\ufdfa" * 60_000 + "pin")])  # one character that stands for 18
            await checkpointer.threads.create("titled", title="é" * 70_000 + "end")
            assert await hits(checkpointer, "needle") == [("thread", 1)]
            assert await hits(checkpointer, "🙂" * 994 + "needle") == [("thread", 1)]
            assert await hits(checkpointer, "needleh") == []
            assert await hits(checkpointer, "pin") == [("thread", 2)]
            assert (await checkpointer.threads.get("titled")).title == "é" * 70_000 + "end"

    async def test_a_thread_that_was_put_away_is_found_when_asked_for(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.threads.create("thread", title="words")
            await checkpointer.append("thread", [said("a word")])
            await checkpointer.threads.soft_delete("thread")
            for thread_id in (None, "thread"):
                assert await hits(checkpointer, "word", thread_id=thread_id) == []
                assert await hits(checkpointer, "word", thread_id=thread_id, include_deleted=True) == [
                    ("thread", None),
                    ("thread", 1),
                ]
            await checkpointer.threads.restore("thread")
            assert await hits(checkpointer, "word") == [("thread", None), ("thread", 1)]
            await checkpointer.threads.delete("thread")
            assert await hits(checkpointer, "word", include_deleted=True) == []
            await checkpointer.append("thread", [said("anew")])
            assert await hits(checkpointer, "word") == []

    async def test_what_a_fork_has_copied_is_found_in_it(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.threads.create("thread", title="words")
            await checkpointer.append("thread", [said("a word left behind", "open")])
            await run_of(checkpointer, "thread", "run", "no match", "a word")
            await checkpointer.fork("thread", "fork", after_run_id="run")
            last = (await checkpointer.messages.list("fork"))[-1]
            assert await checkpointer.threads.search("word", thread_id="fork") == [
                SearchHit("fork", "words", None, None),
                SearchHit("fork", "words", last.message_id, 2),
            ]
            await checkpointer.threads.delete("thread")
            await checkpointer.threads.update("fork", title="renamed")
            assert await hits(checkpointer, "word") == [("fork", 2)]

    async def test_a_search_is_part_of_a_transaction(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(searchable=True) as checkpointer:
            await checkpointer.threads.create("thread", title="title")
            with suppress(ZeroDivisionError):
                async with checkpointer.transaction() as tx:
                    await tx.append("thread", [said("a word")])
                    await tx.threads.update("thread", title="words")
                    assert await hits(tx, "word") == [("thread", None), ("thread", 1)]
                    raise ZeroDivisionError
            assert await hits(checkpointer, "word") == []
            assert await hits(checkpointer, "title") == [("thread", None)]
            await asyncio.gather(*(checkpointer.append("thread", [said("word")]) for _ in range(5)))
            assert await hits(checkpointer, "word") == [("thread", seq) for seq in range(1, 6)]

    async def test_bad_searches_are_refused(self, make_checkpointer: Any) -> None:
        async with make_checkpointer() as checkpointer:
            for nothing in ("", " ", "\n\t\u3000", "\0", "\ud800", "x" * 1_001, "\ufdfa" * 100):
                with pytest.raises(ValueError, match="text"):
                    await checkpointer.threads.search(nothing)
            for wrong in (None, 7, b"bytes", ["list"]):
                with pytest.raises(UnstorableValueError, match="text"):
                    await checkpointer.threads.search(wrong)
            for limit in (0, -1, 10_001, "1", 1.5):
                with pytest.raises(ValueError, match="limit"):
                    await checkpointer.threads.search("x", limit=limit)
            for bad in BAD_IDS:
                if bad is not None:
                    with pytest.raises(InvalidIdError, match="thread_id"):
                        await checkpointer.threads.search("x", thread_id=bad)
            assert await hits(checkpointer, "x" * 1_000) == []
