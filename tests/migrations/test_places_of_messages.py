"""v10: messages are found by their ids without an index over all of them, those from before as well."""

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

import threadkeep
from migrations.databases import (
    NEWEST,
    Place,
    back_to,
    drift_of,
    indexes_of_messages,
    prove_that_it_works,
    schema_of,
    to,
    version_rows,
)
from migrations.finishing import apply_script, finished_after_each_kill
from migrations.golden import everything, prove_that_nothing_was_lost, put_v3
from threadkeep import DuplicateIdError, MessageNotFoundError, TextContent, UserMessage
from threadkeep.message_ids import made_id, new_message_id, new_stem, told_seq
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
INDEX = ("ix_cubepi_messages_thread_message", ["thread_id", "message_id"], True)
MADE = "019abc1f-8a3b-7d52-93c5-5c2f00000002"
"""As v9 has made them, by chance with the seq of another message at its end."""
IDS = [None, "given", MADE, "019abc1f-8a3b-7d53-b7aa-0123456789ab"]
"""Of the messages at the seqs 1, 2, 3 and 4."""
STATEMENTS = 9
"""One more than it takes where each is committed by itself: the last is killed at the commit."""


def write_as_v9(conn: sa.Connection) -> None:
    times = {"created_at": TIME, "updated_at": TIME}
    for thread in ("thread", "other"):
        counters = {"last_seq": len(IDS), "last_completion_seq": 1}
        conn.execute(sa.insert(tables.threads), {"thread_id": thread, "extra": "{}", **counters, **times})
        run = {"run_id": "run", "claimed_at": TIME, "completed_at": TIME, "completion_seq": 1}
        conn.execute(sa.insert(tables.runs), {"thread_id": thread, **run})
        for seq, message_id in enumerate(IDS, 1):
            # One of them was left behind, so that a fork numbers the others anew.
            message = UserMessage(content=[TextContent(text=f"{thread} {seq}")], run_id="open" if seq == 1 else "run")
            row: dict[str, Any] = {"thread_id": thread, "seq": seq, "message_id": message_id, "run_id": message.run_id}
            row |= {"role": "user", "format": 1, "metadata": "{}", "created_at": TIME}
            conn.execute(sa.insert(tables.messages), {**row, "payload": message.model_dump_json().encode()})


@pytest.fixture
async def v9(place: Place) -> Place:
    """A database of the schema before, of each kind in turn."""
    await on_connection(place.url, to("threadkeep_v9"))
    await place.run(write_as_v9)
    return place


async def prove_that_messages_are_found(place: Place) -> None:
    names = [message_id or "#1" for message_id in IDS]
    async with place.checkpointer() as cp:
        for thread in ("thread", "other"):
            assert [record.message_id for record in await cp.messages.list(thread)] == names
            for seq, name in enumerate(names, 1):
                record = await cp.messages.get(thread, name)
                assert (record.seq, record.message.content[0].text) == (seq, f"{thread} {seq}")
                assert [each.seq for each in await cp.messages.list(thread, since=name)] == [*range(seq + 1, 5)]
            for unknown in ("#2", "nobody", new_message_id(), made_id(new_stem(), 3), MADE[:-1] + "3"):
                with pytest.raises(MessageNotFoundError):
                    await cp.messages.get(thread, unknown)


async def test_messages_are_found_without_the_index(v9: Place) -> None:
    """All else of the schema, and every row, is as it was."""
    schema, rows = await v9.run(schema_of), await v9.run(everything)
    assert schema["cubepi_messages"]["indexes"] == [INDEX]
    await threadkeep.upgrade(v9.url)
    now = await v9.run(schema_of)
    places = now.pop("cubepi_message_places")
    assert places["key"] == ["thread_id", "message_id"]
    schema["cubepi_messages"]["indexes"] = []
    assert now == schema
    now = await v9.run(everything)
    del now["cubepi_message_places"]
    named = {(thread, name, seq) for thread in ("other", "thread") for seq, name in enumerate(IDS, 1) if name}
    assert {tuple(row) for row in await v9.execute("SELECT * FROM cubepi_message_places")} == named
    assert now == rows | {name: now[name] for name in ("cubepi_schema_version", "cubepi_alembic_version")}
    assert await version_rows(v9) == NEWEST
    assert await drift_of(v9) == ""
    await prove_that_messages_are_found(v9)


async def test_it_goes_on_with_ids_old_and_new(v9: Place) -> None:
    await threadkeep.upgrade(v9.url)
    async with v9.checkpointer() as cp:
        said = [UserMessage(content=[TextContent(text=text)]) for text in ("mine", "made")]
        given, made = await cp.messages.append("thread", said, message_ids=["mine", None])
        assert (given, told_seq(made)) == ("mine", 6)
        for taken in ("given", MADE, IDS[3], "mine", made):
            with pytest.raises(DuplicateIdError):
                await cp.messages.append("thread", said[:1], message_ids=[taken])
        await cp.fork("thread", "copy", after_run_id="run")
        assert [(record.message_id, record.seq) for record in await cp.messages.list("copy")] == [
            ("given", 1),
            (MADE, 2),
            (IDS[3], 3),
            ("mine", 4),
            (made, 5),
        ]
        for name, seq in (("given", 1), (MADE, 2), (IDS[3], 3), ("mine", 4), (made, 5)):
            assert (await cp.messages.get("copy", str(name))).seq == seq
        for thread in ("thread", "other", "copy"):
            assert await cp.threads.delete(thread)
    assert await v9.execute("SELECT COUNT(*) FROM cubepi_message_places") == [(0,)]
    await prove_that_it_works(v9)


async def test_the_index_comes_back_with_v9(v9: Place) -> None:
    """Down and up again: the rows are the same."""
    before = await v9.run(schema_of), await v9.run(everything)
    await threadkeep.upgrade(v9.url)
    after = await v9.run(schema_of), await v9.run(everything)
    await on_connection(v9.url, back_to("threadkeep_v9"))
    assert (await v9.run(schema_of), await v9.run(everything)) == before
    await threadkeep.upgrade(v9.url)
    assert (await v9.run(schema_of), await v9.run(everything)) == after


async def test_it_may_run_again(v9: Place) -> None:
    await threadkeep.upgrade(v9.url)
    once = await v9.run(schema_of), await v9.run(everything)
    await v9.execute("UPDATE cubepi_alembic_version SET version_num = 'threadkeep_v9'")
    await threadkeep.upgrade(v9.url)
    assert (await v9.run(schema_of), await v9.run(everything)) == once


async def test_the_script_from_v9_does_the_same(v9: Place) -> None:
    await apply_script(v9, revisions="threadkeep_v9:threadkeep_v10")
    assert await version_rows(v9) == NEWEST
    assert await drift_of(v9) == ""
    await prove_that_messages_are_found(v9)


async def test_the_index_goes_from_cubepis_tables(place: Place) -> None:
    """From its partitions, too. Coming back, it is there again."""
    await put_v3(place)
    await on_connection(place.url, to("threadkeep_v9"))
    made = await indexes_of_messages(place, "thread_id", "message_id")
    assert len(made) == (65 if place.kind == "postgresql" else 1)
    await threadkeep.upgrade(place.url)
    assert await indexes_of_messages(place, "thread_id", "message_id") == []
    assert await drift_of(place) == ""
    await prove_that_nothing_was_lost(place)
    await on_connection(place.url, back_to("threadkeep_v9"))
    assert len(await indexes_of_messages(place, "thread_id", "message_id")) == len(made)


@pytest.mark.parametrize("place", ["mysql", "mariadb"], indirect=True)
async def test_killed_before_any_of_its_statements_it_can_be_finished(v9: Place) -> None:
    """These two commit each DDL statement by itself, so it stays where it was killed."""
    left = await finished_after_each_kill(v9, "threadkeep_v9", STATEMENTS)
    assert len(left) == 3, "as many schemas as there are changes of it, and the one before"
