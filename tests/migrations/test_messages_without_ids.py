"""v7: messages have ids. What was written before has none, stays as it is, and is called by its seq."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

import threadkeep
from migrations.databases import NEWEST, Place, back_to, drift_of, prove_that_it_works, schema_of, to, version_rows
from migrations.golden import ASKED, everything
from threadkeep import DuplicateIdError, InvalidIdError, MessageNotFoundError, TextContent, UserMessage
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SAID = ["hello", "good-bye"]
OF_V6: dict[sa.Table, dict[str, Any]] = {
    tables.threads: {"extra": '{"kept":true}', "last_seq": 2, "last_completion_seq": 1, "created_at": TIME}
    | {"updated_at": TIME, "status": "failed", "last_version": 1, "last_token": 1},
    tables.runs: {"run_id": "run", "claimed_at": TIME, "completed_at": TIME, "completion_seq": 1},
    tables.pending: {"question_id": ASKED["question_id"], "request": json.dumps(ASKED), "created_at": TIME},
    tables.hitl_answers: {"run_key": "", "question_id": "question", "answer": "true", "answered_at": TIME},
    tables.tool_calls: {"call_id": "call", "tool_name": "tool", "args": "{}", "idempotency_key": "key"}
    | {"status": "issued", "owner": "owner", "process": "process", "attempt": 1, "issued_at": TIME, "expires_at": TIME},
    tables.checkpoints: {"version": 1, "seq": 1, "plan": '["next"]', "budget_spent_usd": "1.5", "state": "{}"}
    | {"created_at": TIME},
    tables.leases: {"run_id": "run", "token": 1, "owner": "owner", "is_exclusive": True, "expires_at": TIME},
}
"""A row of every table, as the release before v7 wrote it. The messages come beside."""


def write_as_v6(conn: sa.Connection) -> None:
    for table, row in OF_V6.items():
        conn.execute(sa.insert(table), {"thread_id": "thread", **row})
    for seq, text in enumerate(SAID, 1):
        message = UserMessage(content=[TextContent(text=text)], run_id="run", timestamp=1.5)
        payload = message.model_dump_json(exclude={"message_id"}).encode()
        row = {"thread_id": "thread", "seq": seq, "role": "user", "run_id": "run", "format": 1, "payload": payload}
        conn.execute(sa.insert(tables.messages), row | {"metadata": "{}", "created_at": TIME})


@pytest.fixture
async def v6(place: Place) -> Place:
    """A database of the release before, of each kind in turn."""
    await on_connection(place.url, to("threadkeep_v6"))
    await place.run(write_as_v6)
    return place


async def test_what_was_there_before_v7_stays(v6: Place) -> None:
    """Up, down and up again: the rows are the same."""
    before = await v6.run(everything)
    await threadkeep.upgrade(v6.url)
    after = await v6.run(everything)
    await on_connection(v6.url, back_to("threadkeep_v6"))
    assert await version_rows(v6) == [(1006, "0.1.0")]
    assert await v6.run(everything) == before

    await threadkeep.upgrade(v6.url)
    assert await version_rows(v6) == NEWEST
    assert await v6.run(everything) == after
    assert await drift_of(v6) == ""
    assert await v6.execute("SELECT seq, message_id FROM cubepi_messages ORDER BY seq") == [(1, None), (2, None)]


async def test_it_reads_as_it_was_written(v6: Place) -> None:
    await threadkeep.upgrade(v6.url)
    async with v6.checkpointer() as cp:
        data = await cp.load("thread")
        assert [message.content[0].text for message in data.messages] == SAID
        assert data.extra == {"kept": True}
        record = await cp.threads.get("thread")
        assert (record.last_seq, record.status, record.created_at) == (2, "failed", TIME)
        assert (record.title, record.metadata, record.deleted_at) == (None, {}, None)
        assert [run.completed_at for run in await cp.runs.list("thread")] == [TIME]
        assert (await cp.load_pending_request("thread")).question_id == ASKED["question_id"]
        assert await cp.load_hitl_answer("thread", "question") is True
        assert (await cp.checkpoints.latest("thread")).plan == ["next"]
        report = await cp.resume("thread")
        assert [call.call_id for call in report.calls_in_doubt] == ["call"]
        assert report.drafts == []


async def test_its_messages_are_called_by_their_seqs(v6: Place) -> None:
    await threadkeep.upgrade(v6.url)
    async with v6.checkpointer() as cp:
        records = await cp.messages.list("thread")
        assert [(record.message_id, record.seq) for record in records] == [("#1", 1), ("#2", 2)]
        assert [record.message for record in records] == (await cp.load("thread")).messages
        assert [record.created_at for record in records] == [TIME, TIME]
        assert await cp.messages.get("thread", "#2") == records[1]
        assert await cp.messages.list("thread", since="#1") == records[1:]
        assert await cp.messages.list("thread", before="#2") == records[:1]
        for unknown in ("#0", "#3", "#01", "1", "#"):
            with pytest.raises(MessageNotFoundError):
                await cp.messages.get("thread", unknown)


async def test_what_is_appended_to_it_has_ids(v6: Place) -> None:
    await threadkeep.upgrade(v6.url)
    async with v6.checkpointer() as cp:
        said = [UserMessage(content=[TextContent(text=text)]) for text in ("given", "made")]
        given, made = await cp.messages.append("thread", said, message_ids=["mine", None])
        assert [record.message_id for record in await cp.messages.list("thread")] == ["#1", "#2", given, made]
        with pytest.raises(DuplicateIdError):
            await cp.messages.append("thread", said[:1], message_ids=["mine"])
        with pytest.raises(InvalidIdError):
            await cp.messages.append("thread", said[:1], message_ids=["#1"])
        # It has an id, so its seq does not name it.
        with pytest.raises(MessageNotFoundError):
            await cp.messages.get("thread", "#3")


async def test_it_can_be_compacted_and_forked(v6: Place) -> None:
    await threadkeep.upgrade(v6.url)
    async with v6.checkpointer() as cp:
        summary = UserMessage(content=[TextContent(text="They met.")])
        item = await cp.context.swap("thread", ["#1"], summary)
        assert [each.message_id for each in await cp.context.items("thread")] == [item.message_id, "#2"]
        assert [record.message_id for record in await cp.context.expand("thread", item)] == ["#1"]
        await cp.fork("thread", "copy", after_run_id="run")
        assert await cp.messages.list("copy", since="#1") != []
        assert await cp.context.load("copy") == await cp.context.load("thread")
        assert await cp.threads.delete("thread")
        assert await cp.threads.delete("copy")
    await prove_that_it_works(v6)


# ---- what v6 has no place for ---------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("title", "metadata", "system_prompt", "model_id", "provider_id", "agent"), "x"),
    "deleted_at": TIME,
    "compacted_seq": 1,
}
ROWS: dict[sa.Table, dict[str, Any]] = {
    tables.thread_labels: {"label": "0" * 64, "created_at": TIME},
    tables.search_texts: {"seq": 1, "folded": "x"},
    tables.parts: {"message_id": "x", "part_index": 0, "part_type": "text", "content": "{}", "token_estimate": 0}
    | {"created_at": TIME},
    tables.usage: {"message_id": "x", "model_id": "", "provider_id": "", "cost": 0, "finish_reason": ""}
    | dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), 0),
    tables.summaries: {"number": 1, "message_id": "x", "role": "user", "format": 1, "payload": b"{}", "position": 1}
    | {"replaces": "[]", "created_at": TIME},
    tables.context: {"position": 1},
    tables.files: {"content_id": "x", "path_key": "0" * 64, "path": '"x"', "media_type": "", "summary": '""'}
    | {"metadata": "{}", "stored_at": TIME},
}
KEPT = {
    "a message's id": sa.update(tables.messages).where(tables.messages.c.seq == 2).values(message_id="x"),
    **{f"threads.{name}": sa.update(tables.threads).values({name: value}) for name, value in COLUMNS.items()},
    **{
        table.name: sa.insert(table).values({"thread_id": "thread"} | row if "thread_id" in table.c else row)
        for table, row in ROWS.items()
    },
}


@pytest.mark.parametrize("kept", KEPT)
async def test_what_v6_has_no_place_for_stays_at_v7(sqlite_place: Place, kept: str) -> None:
    """On SQLite alone: what the revision looks for is the same everywhere."""
    await on_connection(sqlite_place.url, to("threadkeep_v6"))
    await sqlite_place.run(write_as_v6)
    await threadkeep.upgrade(sqlite_place.url)
    await sqlite_place.run(lambda conn: conn.execute(KEPT[kept]))
    before = await sqlite_place.run(everything)
    with pytest.raises(NotImplementedError, match="v6 has no place"):
        await on_connection(sqlite_place.url, back_to("threadkeep_v6"))
    assert await sqlite_place.run(everything) == before


async def test_nothing_of_v7_is_left_out_of_that(sqlite_place: Place) -> None:
    """Else a table or a column could be forgotten, by the revision and here."""
    await on_connection(sqlite_place.url, to("threadkeep_v6"))
    old = await sqlite_place.run(schema_of)
    await on_connection(sqlite_place.url, to("threadkeep_v7"))
    new = await sqlite_place.run(schema_of)
    assert new.keys() - old.keys() == {table.name for table in ROWS}
    columns = {name: new[name]["columns"].keys() - table["columns"].keys() for name, table in old.items()}
    added = {"cubepi_threads": set(COLUMNS), "cubepi_messages": {"message_id"}}
    assert {name: names for name, names in columns.items() if names} == added
