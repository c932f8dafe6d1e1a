"""cp.threads as sessions: made, named, found by what they are, put away and brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import (
    InvalidIdError,
    LeaseLostError,
    MessageTooLargeError,
    ThreadAlreadyExistsError,
    ThreadDeletedError,
    ThreadNotFoundError,
    UnstorableValueError,
)
from threadkeep.records import Failed
from threadkeep.testing.forks import run_of
from threadkeep.testing.messages import named
from threadkeep.testing.resuming import calling
from threadkeep.testing.samples import BAD_IDS, STORABLE_VALUES, UNSTORABLE_VALUES, asking, said, same, texts

WHOLE: dict[str, Any] = {
    "title": "Travel: \0 🙂 '; --",
    "metadata": {f"value {number}": value for number, value in enumerate(STORABLE_VALUES)},
    "model_id": "model",
    "provider_id": "provider",
    "agent": "planner",
    "system_prompt": "Be brief.\n\0" * 1_000,
}
DEFAULTS: dict[str, Any] = {
    "title": None,
    "metadata": {},
    "model_id": "",
    "provider_id": "",
    "agent": "default",
    "system_prompt": "",
}

HOSTILE_KEYS = [
    "'",
    '"',
    "`",
    "\\",
    "$",
    "$.a",
    "a.b",
    "a[0]",
    "$[0]",
    "$**",
    "*",
    "%",
    "_",
    "?",
    ":name",
    "%s",
    "%(x)s",
    "{}",
    "->>",
    "::text",
    "/* */",
    "' OR '1'='1",
    "'); DROP TABLE cubepi_threads; --",
    "",
    " ",
    "  ",
    "a",
    "A",
    "NUL\0",
    "NUL",
    "\n\t\x1b",
    "🙂",
    "é",
    "e\u0301",
    "k" * 5_000,
    "k" * 5_001,
]


async def _leased(checkpointer: Any) -> None:
    async with checkpointer.runs.lease("thread", "late", ttl=600):
        pass


async def _in_transaction(checkpointer: Any) -> None:
    async with checkpointer.transaction() as tx:
        await tx.append("new", [said("late")])
        await tx.append("thread", [said("late")])


# Each of them would be told something else, were the thread not deleted, or change something.
WRITES: list[Callable[[Any], Awaitable[Any]]] = [
    lambda cp: cp.append("thread", [said("late")]),
    lambda cp: cp.append("thread", [named("taken", run_id="done")]),
    lambda cp: cp.messages.append("thread", [said("late")]),
    lambda cp: cp.save_extra("thread", {"late": True}),
    lambda cp: cp.save_extra("thread", {}),
    lambda cp: cp.claim_run("thread", "late"),
    lambda cp: cp.claim_run("thread", "done"),
    lambda cp: cp.mark_run_complete("thread", "open"),
    lambda cp: cp.mark_run_complete("thread", "done"),
    lambda cp: cp.mark_run_complete("thread", "nobody's"),
    lambda cp: cp.save_pending_request("thread", asking("late")),
    lambda cp: cp.save_pending_request("thread", None),
    lambda cp: cp.clear_pending_request_if_matches("thread", question_id="question-1", run_id="open"),
    lambda cp: cp.clear_pending_request_if_matches("thread", question_id="another", run_id="open"),
    lambda cp: cp.save_hitl_answer("thread", "question-1", "late"),
    lambda cp: cp.clear_hitl_answers("thread"),
    lambda cp: cp.clear_hitl_answers("thread", ["another"]),
    lambda cp: cp.fork("thread", "late", after_run_id="done"),
    lambda cp: cp.fork("thread", "late", after_run_id="open"),
    lambda cp: cp.fork("thread", "other", after_run_id="done"),
    lambda cp: cp.threads.create("late", parent_thread_id="thread"),
    lambda cp: cp.threads.create("other", parent_thread_id="thread"),
    lambda cp: cp.threads.set_status("thread", "failed"),
    lambda cp: cp.threads.update("thread", title="late", metadata={}),
    lambda cp: cp.threads.update("thread"),
    lambda cp: cp.checkpoints.save("thread"),
    lambda cp: cp.checkpoints.delete("thread", 1),
    lambda cp: cp.checkpoints.delete("thread", 2),
    lambda cp: cp.ledger.issue("thread", "late", "pay", {}),
    lambda cp: cp.ledger.issue("thread", "paid", "pay", {"amount": 7}),
    lambda cp: cp.ledger.once("thread", "late", "pay", {}, lambda: None),
    lambda cp: cp.ledger.complete("thread", "paid", "again"),
    lambda cp: cp.ledger.complete("thread", "nobody's", None),
    lambda cp: cp.ledger.fail("thread", "paid", "late"),
    lambda cp: cp.ledger.resolve("thread", "nobody's", Failed()),
    _leased,
    _in_transaction,
    lambda cp: cp.repair("thread"),
    lambda cp: cp.parts.append("thread", "draft", "text", "late"),
    lambda cp: cp.parts.update_status("thread", "draft", 0, tool_state="late"),
    lambda cp: cp.parts.update_status("thread", "draft", 9, tool_state="late"),
    lambda cp: cp.parts.discard("thread", "draft"),
    lambda cp: cp.parts.discard("thread", "nobody's"),
    lambda cp: cp.usage.record("thread", "taken", cost=9),
    lambda cp: cp.context.swap("thread", ["taken"], said("late")),
    lambda cp: cp.context.swap("thread", ["nobody's"], said("late")),
]


async def _a_full_thread(checkpointer: Any) -> None:
    """A thread with something of everything that a write could change."""
    await checkpointer.threads.create("thread", **WHOLE)
    await run_of(checkpointer, "thread", "done", "1", "2")
    await checkpointer.append("thread", [named("taken"), calling("unanswered")])
    await checkpointer.claim_run("thread", "open")
    await checkpointer.save_extra("thread", {"a": 1})
    await checkpointer.save_pending_request("thread", asking(), run_id="open")
    await checkpointer.save_hitl_answer("thread", "question-1", "yes")
    await checkpointer.ledger.once("thread", "paid", "pay", {"amount": 7}, lambda amount: "receipt")
    await checkpointer.checkpoints.save("thread", state=1)
    await checkpointer.parts.append("thread", "taken", "text", 1)
    await checkpointer.parts.append("thread", "draft", "text", 2)
    await checkpointer.usage.record("thread", "taken", cost=0.5)
    items = await checkpointer.context.items("thread")
    await checkpointer.context.swap("thread", items[:2], said("short"), summary_id="summary")
    await checkpointer.append("other", [said("another thread")])


async def _all_that_is_read(checkpointer: Any) -> list[Any]:
    """What every method that reads says of the thread, but for what it says of time."""
    record = await checkpointer.threads.get("thread")
    report = await checkpointer.resume("thread")
    return [
        replace(record, updated_at=record.created_at, deleted_at=None),
        await checkpointer.load("thread"),
        await checkpointer.snapshot("thread", after_run_id="done"),
        await checkpointer.runs.list("thread"),
        await checkpointer.load_pending("thread"),
        await checkpointer.load_hitl_answer("thread", "question-1"),
        await checkpointer.ledger.list("thread"),
        await checkpointer.checkpoints.list("thread"),
        await checkpointer.checkpoints.latest("thread"),
        await checkpointer.messages.list("thread", with_parts=True),
        await checkpointer.messages.last_summary("thread"),
        await checkpointer.parts.of("thread", ["draft", "taken"]),
        await checkpointer.usage.total("thread"),
        await checkpointer.context.items("thread"),
        await checkpointer.context.load("thread"),
        await checkpointer.context.expand("thread", "summary"),
        [replace(report, open_runs=[], deleted_at=None), [run.run_id for run in report.open_runs]],
        [one.thread_id for one in await checkpointer.threads.list(include_deleted=True)],
        await checkpointer.threads.search("travel", include_deleted=True),
    ]


def described(record: Any) -> dict[str, Any]:
    """What a host says of a thread."""
    return {name: getattr(record, name) for name in DEFAULTS}


async def found(checkpointer: Any, **filters: Any) -> list[str]:
    """The ids of the threads that are listed."""
    return [record.thread_id for record in await checkpointer.threads.list(**filters)]


async def pages_of(checkpointer: Any, limit: int, **filters: Any) -> list[list[Any]]:
    """The pages of a listing, each asked for after the last record of the one before."""
    pages: list[list[Any]] = []
    while page := await checkpointer.threads.list(limit=limit, after=pages[-1][-1] if pages else None, **filters):
        assert page not in pages, "a page came again"
        pages.append(page)
    return pages


class SessionsContract:
    """threads.create, update, list by metadata, soft_delete, restore."""

    pytestmark = pytest.mark.asyncio

    # ---- making and changing --------------------------------------------------------------------------------

    async def test_a_created_thread_is_what_was_said_of_it(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        record = await checkpointer.threads.create("thread", **WHOLE)
        assert before <= record.created_at <= record.updated_at <= datetime.now(UTC)
        assert record.created_at.tzinfo is record.updated_at.tzinfo is UTC
        assert same(described(record), WHOLE)
        assert (record.thread_id, record.parent_thread_id, record.forked_at_seq) == ("thread", None, None)
        assert (record.last_seq, record.last_completion_seq, record.status) == (0, 0, "active")
        assert record.deleted_at is None
        assert await checkpointer.threads.get("thread") == record
        assert await checkpointer.threads.list() == [record]
        data = await checkpointer.load("thread")
        assert (data.messages, data.extra, data.parent_thread_id) == ([], {}, None)
        await checkpointer.append("thread", [said("1")])
        assert same(described(await checkpointer.threads.get("thread")), WHOLE)
        # What is given and returned is the caller's to change.
        metadata: dict[str, Any] = {"list": [1]}
        created = await checkpointer.threads.create("other", metadata=metadata)
        listed = (await checkpointer.threads.list())[0]
        for seen in (metadata, created.metadata, listed.metadata, (await checkpointer.threads.get("other")).metadata):
            seen["list"].append(2)
            seen["more"] = True
        assert (await checkpointer.threads.get("other")).metadata == {"list": [1]}
        assert await found(checkpointer, metadata={"list": [1]}) == ["other"]

    async def test_what_nobody_says_of_a_thread_has_a_default(self, checkpointer: Any) -> None:
        """However the thread came to be."""
        assert same(described(await checkpointer.threads.create("created")), DEFAULTS)
        await checkpointer.append("appended", [said("1")])
        await checkpointer.parts.append("part", "message", "text", "…")
        await checkpointer.usage.record("usage", "message")
        for thread_id in ("created", "appended", "part", "usage"):
            record = await checkpointer.threads.get(thread_id)
            assert same(described(record), DEFAULTS)
            assert record.deleted_at is None
        assert (await checkpointer.threads.create("empty title", title="")).title == ""

    async def test_an_id_that_is_taken_is_not_created(self, checkpointer: Any) -> None:
        await checkpointer.threads.create("created", title="first")
        await checkpointer.append("appended", [said("1")])
        await checkpointer.threads.create("put away")
        await checkpointer.threads.soft_delete("put away")
        for thread_id in ("created", "appended", "put away"):
            before = await checkpointer.threads.get(thread_id)
            with pytest.raises(ThreadAlreadyExistsError) as caught:
                await checkpointer.threads.create(thread_id, **WHOLE)
            assert caught.value.thread_id == thread_id
            assert await checkpointer.threads.get(thread_id) == before
        await run_of(checkpointer, "source", "run", "1")
        for thread_id in ("created", "put away"):
            with pytest.raises(ThreadAlreadyExistsError):
                await checkpointer.fork("source", thread_id, after_run_id="run")
        results = await asyncio.gather(
            *(checkpointer.threads.create("new", title=f"{number}") for number in range(6)), return_exceptions=True
        )
        (winner,) = [result for result in results if not isinstance(result, BaseException)]
        assert {type(result) for result in results if result is not winner} == {ThreadAlreadyExistsError}
        assert await checkpointer.threads.get("new") == winner

    async def test_sub_threads_have_a_parent(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "parent", "run", "1")
        parent = await checkpointer.threads.get("parent")
        first = await checkpointer.threads.create("first", parent_thread_id="parent", title="sub")
        assert await checkpointer.threads.get("parent") == parent
        assert (first.parent_thread_id, first.forked_at_seq) == ("parent", None)
        assert (await checkpointer.load("first")).parent_thread_id == "parent"
        await checkpointer.fork("parent", "fork", after_run_id="run")
        await checkpointer.threads.create("second", parent_thread_id="parent")
        await checkpointer.threads.create("of first", parent_thread_id="first")
        assert await found(checkpointer, parent_thread_id="parent") == ["second", "fork", "first"]
        # The parent is looked at first.
        for thread_id in ("new", "first"):
            with pytest.raises(ThreadNotFoundError) as caught:
                await checkpointer.threads.create(thread_id, parent_thread_id="nobody")
            assert caught.value.thread_id == "nobody"
        for thread_id, error in (("own parent", ThreadNotFoundError), ("first", ThreadAlreadyExistsError)):
            with pytest.raises(error):
                await checkpointer.threads.create(thread_id, parent_thread_id=thread_id)
        assert await checkpointer.threads.get("new") is await checkpointer.threads.get("own parent") is None
        await checkpointer.threads.delete("parent")
        orphan = await checkpointer.threads.get("first")
        assert orphan == replace(first, parent_thread_id=None, updated_at=orphan.updated_at)
        assert (await checkpointer.threads.get("of first")).parent_thread_id == "first"
        assert await found(checkpointer, parent_thread_id="parent") == []

    async def test_an_update_changes_what_is_given_and_nothing_else(self, checkpointer: Any) -> None:
        record = await checkpointer.threads.create("thread", **WHOLE)
        await checkpointer.threads.create("other", **WHOLE)
        changes: list[dict[str, Any]] = [
            {"title": "new \0 title"},
            {"metadata": {"only": "this"}},
            {"model_id": "new model"},
            {"provider_id": "new provider"},
            {"agent": "new agent"},
            {"system_prompt": "new prompt"},
            {},
            *({name: value} for name, value in DEFAULTS.items()),
            WHOLE,
        ]
        for change in changes:
            expected = described(record) | change
            record = await checkpointer.threads.update("thread", **change)
            assert same(described(record), expected)
            assert await checkpointer.threads.get("thread") == record
        assert record.created_at <= record.updated_at <= datetime.now(UTC)
        assert (record.status, record.last_seq, record.deleted_at) == ("active", 0, None)
        assert same(described(await checkpointer.threads.get("other")), WHOLE)
        with pytest.raises(ThreadNotFoundError):
            await checkpointer.threads.update("nobody", title="x")
        with pytest.raises(ThreadNotFoundError):
            await checkpointer.threads.update("nobody")
        assert await checkpointer.threads.get("nobody") is None

    async def test_bad_descriptions_are_refused_before_anything_is_written(self, checkpointer: Any) -> None:
        record = await checkpointer.threads.create("thread", **WHOLE)
        bad: list[tuple[str, Any]] = [
            *((name, value) for name in ("title", "system_prompt") for value in (7, b"bytes", ["list"])),
            *(("metadata", value) for value in (7, "text", [], ["list"], (("a", 1),))),
            *((name, "\ud800") for name in ("title", "system_prompt")),
            *(("metadata", {"value": value}) for value, _ in UNSTORABLE_VALUES),
            ("system_prompt", None),
        ]
        for name, value in bad:
            with pytest.raises(UnstorableValueError, match=name):
                await checkpointer.threads.create("new", **{name: value})
            with pytest.raises(UnstorableValueError, match=name):
                await checkpointer.threads.update("thread", **{name: value})
        with pytest.raises(UnstorableValueError, match="metadata"):
            await checkpointer.threads.update("thread", metadata=None)
        for name in ("model_id", "provider_id", "agent"):
            for value in (7, b"bytes", ["list"], None, "nul\0byte", " leading", "a" * 256, "lone\ud800surrogate"):
                with pytest.raises(InvalidIdError, match=name):
                    await checkpointer.threads.create("new", **{name: value})
                with pytest.raises(InvalidIdError, match=name):
                    await checkpointer.threads.update("thread", **{name: value})
        for name, large in (("title", "x" * 8 * 1024 * 1024), ("metadata", {"x": "x" * 8 * 1024 * 1024})):
            with pytest.raises(MessageTooLargeError):
                await checkpointer.threads.create("new", **{name: large})
        for id_ in BAD_IDS:
            for call in ("create", "update", "soft_delete", "restore"):
                with pytest.raises(InvalidIdError):
                    await getattr(checkpointer.threads, call)(id_)
            if id_ is not None:
                with pytest.raises(InvalidIdError, match="parent_thread_id"):
                    await checkpointer.threads.create("new", parent_thread_id=id_)
        assert await checkpointer.threads.list() == [record]

    # ---- finding --------------------------------------------------------------------------------------------

    async def test_threads_are_found_by_their_metadata(self, checkpointer: Any) -> None:
        deep = {"x": [1, {"y": None, "z": "é"}]}
        for thread_id, metadata in {
            "a": {"user": "ada", "project": 1, "deep": deep},
            "b": {"user": "ada", "project": 2},
            "c": {"user": "bob", "project": 1, "none": None},
        }.items():
            await checkpointer.threads.create(thread_id, metadata=metadata)
        await checkpointer.append("without", [said("1")])
        expected_of: list[tuple[dict[str, Any] | None, list[str]]] = [
            ({"user": "ada"}, ["b", "a"]),
            ({"project": 1}, ["c", "a"]),
            ({"user": "ada", "project": 1}, ["a"]),
            ({"user": "ada", "project": 1, "none": None}, []),
            ({"none": None}, ["c"]),
            ({"deep": {"x": [1, {"z": "é", "y": None}]}}, ["a"]),
            ({"deep": {"x": [1]}}, []),
            ({"user": "Ada"}, []),
            ({"ada": "user"}, []),
            ({}, ["without", "c", "b", "a"]),
            (None, ["without", "c", "b", "a"]),
        ]
        for wanted, expected in expected_of:
            assert await found(checkpointer, metadata=wanted) == expected
        await checkpointer.threads.set_status("a", "failed")
        assert await found(checkpointer, metadata={"user": "ada"}, status="failed") == ["a"]
        assert await found(checkpointer, metadata={"user": "ada"}, limit=1, after="b") == ["a"]
        await checkpointer.threads.create("child", parent_thread_id="b", metadata={"user": "ada"})
        assert await found(checkpointer, metadata={"user": "ada"}, parent_thread_id="b") == ["child"]
        # New metadata takes the place of all of the old.
        await checkpointer.threads.update("a", metadata={"user": "cat"})
        await checkpointer.threads.update("b", title="the metadata stays")
        assert await found(checkpointer, metadata={"user": "cat"}) == ["a"]
        assert await found(checkpointer, metadata={"project": 1}) == ["c"]
        assert await found(checkpointer, metadata={"user": "ada"}) == ["child", "b"]
        await checkpointer.threads.delete("b")
        await checkpointer.append("b", [said("anew")])
        assert await found(checkpointer, metadata={"project": 2}) == []
        for value, _ in UNSTORABLE_VALUES:
            with pytest.raises(UnstorableValueError, match="metadata"):
                await checkpointer.threads.list(metadata={"value": value})

    async def test_pages_by_metadata_have_the_order_of_all_threads(self, checkpointer: Any) -> None:
        """Whenever a thread got its metadata: a fork has a time of its own, an update changes none."""
        both = {"user": "ada", "project": 1}
        await checkpointer.append("d", [said("without any yet")])
        await run_of(checkpointer, "x", "run", "1")
        await checkpointer.threads.update("x", metadata=both)
        for thread_id, metadata in {"b": both, "m": {"user": "ada"}, "a": both, "z": {"project": 1}, "c": both}.items():
            await checkpointer.threads.create(thread_id, metadata=metadata)
        await checkpointer.fork("x", "k", after_run_id="run")
        await checkpointer.threads.create("e", metadata={**both, "more": True})
        await checkpointer.threads.update("d", metadata=both)
        await checkpointer.threads.update("b", metadata={**both, "updated": True})
        await checkpointer.threads.soft_delete("c")
        expected = {
            None: ["e", "k", "z", "a", "m", "b", "x", "d"],
            "user": ["e", "k", "a", "m", "b", "x", "d"],
            "project": ["e", "k", "z", "a", "b", "x", "d"],
            "both": ["e", "k", "a", "b", "x", "d"],
        }
        wanted = {None: None, "user": {"user": "ada"}, "project": {"project": 1}, "both": both}
        for asked, metadata in wanted.items():
            for limit in (1, 2, 100):
                pages = await pages_of(checkpointer, limit, metadata=metadata)
                assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
                assert [record.thread_id for page in pages for record in page] == expected[asked]
        filters: list[tuple[dict[str, Any], list[str]]] = [
            ({"include_deleted": True}, ["e", "k", "c", "a", "b", "x", "d"]),
            ({"status": "active"}, expected["both"]),
            ({"status": "failed"}, []),
            ({"parent_thread_id": "x"}, ["k"]),
        ]
        for others, ids in filters:
            pages = await pages_of(checkpointer, 2, metadata=both, **others)
            assert [record.thread_id for page in pages for record in page] == ids

    async def test_each_value_finds_its_own_thread(self, checkpointer: Any) -> None:
        """1, 1.0, True and "1" are four."""
        values = [*STORABLE_VALUES, "1", "None", "null", "true", 0.0, [1], [1.0], [True], {"a": 1}, {"a": 1.0}]
        async with checkpointer.transaction() as tx:
            for number, value in enumerate(values):
                await tx.threads.create(f"{number}", metadata={"value": value})
        for number, value in enumerate(values):
            assert await found(checkpointer, metadata={"value": value}) == [f"{number}"]

    async def test_many_keys_are_asked_for_at_once(self, checkpointer: Any) -> None:
        metadata = {f"key {number}": number for number in range(1_000)}
        await checkpointer.threads.create("all", metadata=metadata)
        await checkpointer.threads.create("most", metadata={**metadata, "key 999": None})
        assert await found(checkpointer, metadata=metadata) == ["all"]
        assert await found(checkpointer, metadata={**metadata, "key 0": 0.0}) == []
        with pytest.raises(ValueError, match="1,001 keys"):
            await checkpointer.threads.list(metadata={**metadata, "more": 1})

    async def test_no_key_is_more_than_a_key(self, checkpointer: Any) -> None:
        """Whatever it means to a server's JSON, or in a statement."""
        for number, name in enumerate(("even", "odd")):
            await checkpointer.threads.create(name, metadata=dict.fromkeys(HOSTILE_KEYS[number::2], "here"))
        for number, key in enumerate(HOSTILE_KEYS):
            name = ("even", "odd")[number % 2]
            assert await found(checkpointer, metadata={key: "here"}) == [name]
            assert await found(checkpointer, metadata={key: key}) == []
            assert await found(checkpointer, metadata={f"{key}x": "here"}) == []
        assert await found(checkpointer, metadata=dict.fromkeys(HOSTILE_KEYS[1::2], "here")) == ["odd"]
        assert await found(checkpointer, metadata=dict.fromkeys(HOSTILE_KEYS, "here")) == []
        assert sorted((await checkpointer.threads.get("even")).metadata) == sorted(HOSTILE_KEYS[::2])

    # ---- putting away ---------------------------------------------------------------------------------------

    async def test_a_thread_that_was_put_away_can_be_read_and_is_not_listed(self, checkpointer: Any) -> None:
        await checkpointer.threads.create("parent")
        await checkpointer.threads.create("stays", parent_thread_id="parent", metadata={"a": 1})
        await checkpointer.threads.create("goes", parent_thread_id="parent", metadata={"a": 1}, title="gone")
        await checkpointer.append("goes", [said("1")])
        data = await checkpointer.load("goes")
        before = datetime.now(UTC)
        assert await checkpointer.threads.soft_delete("goes") is None
        record = await checkpointer.threads.get("goes")
        assert before <= record.deleted_at <= datetime.now(UTC)
        assert record.deleted_at.tzinfo is UTC
        await checkpointer.threads.soft_delete("goes")
        assert await checkpointer.threads.get("goes") == record
        for filters in ({}, {"parent_thread_id": "parent"}, {"metadata": {"a": 1}}, {"status": "active"}):
            assert "goes" not in await found(checkpointer, **filters)
            assert "goes" in await found(checkpointer, **filters, include_deleted=True)
            assert "stays" in await found(checkpointer, **filters, include_deleted=True)
        assert await checkpointer.threads.list(include_deleted=True, limit=1) == [record]
        assert await found(checkpointer, after="goes") == ["stays", "parent"]
        assert await checkpointer.load("goes") == data
        # Its sub-threads are threads of their own.
        await checkpointer.threads.soft_delete("parent")
        await checkpointer.append("stays", [said("1")])
        assert await found(checkpointer) == ["stays"]
        assert await checkpointer.threads.delete("goes") is True
        await checkpointer.append("goes", [said("anew")])
        assert (await checkpointer.threads.get("goes")).deleted_at is None

    async def test_a_thread_that_was_put_away_refuses_every_write(self, checkpointer: Any) -> None:
        await _a_full_thread(checkpointer)
        before = await _all_that_is_read(checkpointer)
        await checkpointer.threads.soft_delete("thread")
        record = await checkpointer.threads.get("thread")
        report = await checkpointer.resume("thread")
        assert (report.deleted_at, report.is_clean) == (record.deleted_at, False)
        assert await _all_that_is_read(checkpointer) == before
        for write in WRITES:
            with pytest.raises(ThreadDeletedError) as caught:
                await write(checkpointer)
            assert caught.value.thread_id == "thread"
        async with checkpointer.transaction() as tx:
            for write in WRITES[:2]:
                with pytest.raises(ThreadDeletedError):
                    await write(tx)
        assert await checkpointer.threads.get("thread") == record
        assert await _all_that_is_read(checkpointer) == before

    async def test_no_write_lands_after_a_thread_was_put_away(self, checkpointer: Any) -> None:
        await checkpointer.threads.create("thread")
        results = await asyncio.gather(
            *(checkpointer.append("thread", [said(f"{number}")]) for number in range(8)),
            checkpointer.threads.soft_delete("thread"),
            *(checkpointer.parts.append("thread", "draft", "text", number) for number in range(8)),
            return_exceptions=True,
        )
        assert {type(result) for result in results if isinstance(result, BaseException)} <= {ThreadDeletedError}
        appended, parts = results[:8].count(None), [one for one in results[9:] if not isinstance(one, BaseException)]
        assert len((await checkpointer.load("thread")).messages) == appended
        assert len((await checkpointer.parts.of("thread", ["draft"]))["draft"]) == len(parts)

    async def test_a_restored_thread_takes_writes_again(self, checkpointer: Any) -> None:
        await _a_full_thread(checkpointer)
        before = await _all_that_is_read(checkpointer)
        await checkpointer.threads.soft_delete("thread")
        assert await checkpointer.threads.restore("thread") is None
        record = await checkpointer.threads.get("thread")
        assert record.deleted_at is None
        await checkpointer.threads.restore("thread")
        assert await checkpointer.threads.get("thread") == record
        assert await _all_that_is_read(checkpointer) == before
        await checkpointer.append("thread", [said("back", "open")])
        await checkpointer.mark_run_complete("thread", "open")
        await checkpointer.threads.update("thread", title="back")
        assert texts((await checkpointer.load("thread")).messages[-1:]) == ["back"]
        for call in (checkpointer.threads.soft_delete, checkpointer.threads.restore):
            with pytest.raises(ThreadNotFoundError) as caught:
                await call("nobody")
            assert caught.value.thread_id == "nobody"
        assert await checkpointer.load("nobody") is None

    async def test_who_works_in_a_thread_that_was_put_away_keeps_what_it_holds(self, checkpointer: Any) -> None:
        """Until it is brought back: heartbeats change nothing that is in the thread."""
        began = asyncio.Event()

        async def never_ends(**_: Any) -> None:
            began.set()
            await asyncio.Event().wait()

        async with checkpointer.runs.lease("thread", "run", ttl=1) as lease:
            await checkpointer.ledger.issue("thread", "in flight", "pay", {"amount": 1}, ttl=1)
            task = asyncio.create_task(checkpointer.ledger.once("thread", "cut off", "pay", {"amount": 2}, never_ends))
            await began.wait()
            await checkpointer.threads.soft_delete("thread")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await checkpointer.ledger.get("thread", "cut off")).state == "unknown"
            with pytest.raises(ThreadDeletedError):
                await lease.append("thread", [said("late", "run")])
            await asyncio.sleep(1.3)
            assert not lease.is_lost
            assert (await checkpointer.ledger.get("thread", "in flight")).state == "in_flight"
            await checkpointer.threads.restore("thread")
            await checkpointer.ledger.complete("thread", "in flight", "paid")
            await lease.append("thread", [said("still here", "run")])
            await checkpointer.threads.soft_delete("thread")
        await checkpointer.threads.restore("thread")
        async with checkpointer.runs.lease("thread", "run", ttl=600):
            pass
        assert texts((await checkpointer.load("thread")).messages) == ["still here"]

    # ---- with the rest --------------------------------------------------------------------------------------

    async def test_a_lost_lease_writes_nothing_of_this_either(self, checkpointer: Any) -> None:
        await _a_full_thread(checkpointer)
        async with checkpointer.runs.lease("thread", "run", ttl=600) as lease:
            await lease.parts.append("thread", "leased", "text", 1)
            await lease.threads.update("thread", agent="leased")
        before = await _all_that_is_read(checkpointer)
        writes = [
            lease.messages.append("thread", [said("late")]),
            lease.parts.append("thread", "draft", "text", "late"),
            lease.parts.append("another thread", "draft", "text", "late"),
            lease.parts.update_status("thread", "draft", 0, tool_state="late"),
            lease.parts.discard("thread", "draft"),
            lease.usage.record("thread", "taken", cost=9),
            lease.context.swap("thread", ["taken"], said("late")),
            lease.threads.create("late"),
            lease.threads.update("thread", title="late"),
            lease.threads.soft_delete("thread"),
            lease.threads.restore("thread"),
            lease.files.put("late", content_id="late"),
        ]
        for write in writes:
            with pytest.raises(LeaseLostError):
                await write
        assert await _all_that_is_read(checkpointer) == before
        assert (await checkpointer.threads.get("thread")).deleted_at is None
        assert await checkpointer.files.get("late") is None
        assert await checkpointer.load("another thread") is None

    async def test_a_fork_is_what_its_source_is(self, checkpointer: Any) -> None:
        await checkpointer.threads.create("thread", **WHOLE)
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.fork("thread", "fork", after_run_id="run", metadata={"value 0": "of the fork itself"})
        record = await checkpointer.threads.get("fork")
        assert same(described(record), WHOLE)
        assert (record.parent_thread_id, record.deleted_at) == ("thread", None)
        some = {"value 1": True, "value 7": 0.1}
        assert await found(checkpointer, metadata=some) == ["fork", "thread"]
        await checkpointer.threads.update("thread", title="changed", metadata={})
        await checkpointer.threads.soft_delete("thread")
        assert await checkpointer.threads.get("fork") == record
        assert await found(checkpointer, metadata=some) == ["fork"]

    async def test_sessions_are_part_of_a_transaction(self, checkpointer: Any) -> None:
        record = await checkpointer.threads.create("thread", title="before", metadata={"a": 1})
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.threads.create("new", metadata={"a": 1})
                with pytest.raises(ThreadAlreadyExistsError):
                    await tx.threads.create("thread", metadata={"a": 2})
                await tx.threads.update("thread", title="after", metadata={"b": 2})
                assert await found(tx, metadata={"a": 1}) == ["new"]
                await tx.threads.soft_delete("thread")
                with pytest.raises(ThreadDeletedError):
                    await tx.append("thread", [said("late")])
                assert await found(tx) == ["new"]
                raise ZeroDivisionError
        assert await checkpointer.threads.list(include_deleted=True) == [record]
        assert await found(checkpointer, metadata={"a": 1}) == ["thread"]
        assert await found(checkpointer, metadata={"b": 2}) == []
        async with checkpointer.transaction() as tx:
            await tx.threads.soft_delete("thread")
            await tx.threads.restore("thread")
            await tx.threads.create("new", parent_thread_id="thread")
        assert await found(checkpointer, parent_thread_id="thread") == ["new"]
