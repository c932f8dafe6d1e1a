"""v8: on PostgreSQL messages have no foreign key to their threads. They go with their thread as before."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

import threadkeep
from migrations.databases import NEWEST, Place, back_to, drift_of, prove_that_it_works, schema_of, to, version_rows
from migrations.golden import WITH_MESSAGES, everything, prove_that_nothing_was_lost, put_v3
from migrations.program import alembic_well
from threadkeep import CheckpointerLockTimeoutError, TextContent, UserMessage
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables
from threadkeep.sql.dialects import Hooks

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SAID = ["hello", "good-bye"]
KEY = [(["thread_id"], "cubepi_threads", "CASCADE")]
KEY_BEFORE = {"postgresql": KEY, "sqlite": KEY, "mysql": [], "mariadb": []}
KEY_AFTER = {**KEY_BEFORE, "postgresql": []}
on_postgresql = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


def write_as_v7(conn: sa.Connection) -> None:
    thread = {"extra": "{}", "last_seq": 2, "last_completion_seq": 1, "created_at": TIME, "updated_at": TIME}
    conn.execute(sa.insert(tables.threads), {"thread_id": "thread", **thread})
    run = {"run_id": "run", "claimed_at": TIME, "completed_at": TIME, "completion_seq": 1}
    conn.execute(sa.insert(tables.runs), {"thread_id": "thread", **run})
    for seq, text in enumerate(SAID, 1):
        message = UserMessage(content=[TextContent(text=text)], run_id="run", timestamp=1.5)
        payload = message.model_dump_json(exclude={"message_id"}).encode()
        row = {"thread_id": "thread", "seq": seq, "role": "user", "run_id": "run", "format": 1, "payload": payload}
        conn.execute(sa.insert(tables.messages), row | {"metadata": "{}", "created_at": TIME, "message_id": text})


@pytest.fixture
async def v7(place: Place) -> Place:
    """A database of the schema before, of each kind in turn."""
    await on_connection(place.url, to("threadkeep_v7"))
    await place.run(write_as_v7)
    return place


async def messages_of(place: Place) -> dict[str, int]:
    """How many rows there are for each thread, with or without a row of its own."""
    counted = "SELECT thread_id, COUNT(*) FROM cubepi_messages GROUP BY thread_id"
    return dict(await place.execute(counted))


async def test_the_key_goes_on_postgresql_alone(v7: Place) -> None:
    """All else of the schema, and every row, is as it was."""
    schema, rows = await v7.run(schema_of), await v7.run(everything)
    assert schema["cubepi_messages"]["foreign keys"] == KEY_BEFORE[v7.kind]
    await on_connection(v7.url, to("threadkeep_v8"))
    schema["cubepi_messages"]["foreign keys"] = KEY_AFTER[v7.kind]
    assert await v7.run(schema_of) == schema
    versions = {name: (await v7.run(everything))[name] for name in ("cubepi_schema_version", "cubepi_alembic_version")}
    assert await v7.run(everything) == rows | versions
    assert await version_rows(v7) == [(1008, "0.1.0")]
    await threadkeep.upgrade(v7.url)
    assert await drift_of(v7) == ""


async def test_it_reads_as_it_was_and_deleting_a_thread_leaves_no_message(v7: Place) -> None:
    await threadkeep.upgrade(v7.url)
    async with v7.checkpointer() as cp:
        assert [message.content[0].text for message in (await cp.load("thread")).messages] == SAID
        await cp.fork("thread", "copy", after_run_id="run")
        await cp.append("thread", [UserMessage(content=[TextContent(text="more")])])
        assert await messages_of(v7) == {"thread": 3, "copy": 2}
        assert await cp.threads.delete("thread")
        assert await messages_of(v7) == {"copy": 2}
        await cp.append("thread", [UserMessage(content=[TextContent(text="anew")])])
        assert await messages_of(v7) == {"thread": 1, "copy": 2}
        for thread in ("thread", "copy"):
            assert await cp.threads.delete(thread)
    assert await messages_of(v7) == {}
    await prove_that_it_works(v7)


async def test_it_may_run_again(v7: Place) -> None:
    await threadkeep.upgrade(v7.url)
    once = await v7.run(schema_of), await v7.run(everything)
    await v7.execute("UPDATE cubepi_alembic_version SET version_num = 'threadkeep_v7'")
    await threadkeep.upgrade(v7.url)
    assert (await v7.run(schema_of), await v7.run(everything)) == once


async def test_the_key_comes_back_with_v7(v7: Place) -> None:
    """Down and up again: the rows are the same."""
    before = await v7.run(schema_of), await v7.run(everything)
    await threadkeep.upgrade(v7.url)
    after = await v7.run(schema_of), await v7.run(everything)
    await on_connection(v7.url, back_to("threadkeep_v7"))
    assert (await v7.run(schema_of), await v7.run(everything)) == before
    await threadkeep.upgrade(v7.url)
    assert (await v7.run(schema_of), await v7.run(everything)) == after


async def test_the_script_from_v7_does_the_same(v7: Place) -> None:
    script = alembic_well("upgrade", "threadkeep_v7:threadkeep_v8", "--sql", url=v7.url)
    lines = [line for line in script.splitlines() if line and not line.startswith("--")]
    statements = [line.removesuffix(";") for line in lines if line not in ("BEGIN;", "COMMIT;")]
    await v7.execute(*statements)
    assert (await v7.run(schema_of))["cubepi_messages"]["foreign keys"] == KEY_AFTER[v7.kind]
    assert await version_rows(v7) == [(1008, "0.1.0")]
    await threadkeep.upgrade(v7.url)
    assert await drift_of(v7) == ""


# ---- on PostgreSQL, where there is something to do ------------------------------------------------------


async def keys_in_partitions(place: Place) -> int:
    of_messages = "SELECT COUNT(*) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text ~ '{}'"
    ((count,),) = await place.execute(of_messages.format("^cubepi_messages(_p[0-9]+)?$"))
    return int(count)


@on_postgresql
@pytest.mark.parametrize("name", ["cubepi_messages_thread_id_fkey", "the host's Key :of 100%"])
async def test_it_goes_from_cubepis_partitions_whatever_it_is_called(place: Place, name: str) -> None:
    await put_v3(place)
    if name != "cubepi_messages_thread_id_fkey":
        rename = f'ALTER TABLE cubepi_messages RENAME CONSTRAINT cubepi_messages_thread_id_fkey TO "{name}"'
        await place.run(lambda conn: conn.exec_driver_sql(rename.replace("%", "%%")))
    assert await keys_in_partitions(place) == 65
    await threadkeep.upgrade(place.url)
    assert await keys_in_partitions(place) == 0
    assert await drift_of(place) == ""
    await prove_that_nothing_was_lost(place)
    async with place.checkpointer() as cp:
        for thread in WITH_MESSAGES:
            assert await cp.threads.delete(thread)
    assert await messages_of(place) == {}

    await on_connection(place.url, back_to("threadkeep_v7"))
    assert await keys_in_partitions(place) == 65


@on_postgresql
async def test_a_key_of_the_hosts_own_stays(v7: Place) -> None:
    await v7.execute(
        "CREATE TABLE hosts_own (thread_id TEXT PRIMARY KEY)",
        "INSERT INTO hosts_own VALUES ('thread')",
        "ALTER TABLE cubepi_messages ADD CONSTRAINT hosts_key FOREIGN KEY (thread_id) REFERENCES hosts_own",
    )
    await threadkeep.upgrade(v7.url)
    keys = (await v7.run(schema_of))["cubepi_messages"]["foreign keys"]
    assert [table for _, table, _ in keys] == ["hosts_own"]


@on_postgresql
async def test_it_does_not_wait_for_ever_for_the_messages(v7: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hooks, "migration_lock_timeout", 1)
    before = await v7.run(schema_of), await v7.run(everything)
    async with v7.engine() as engine, engine.connect() as conn:
        await conn.exec_driver_sql("SELECT COUNT(*) FROM cubepi_messages")  # and its transaction stays open
        with pytest.raises(CheckpointerLockTimeoutError, match="again"):
            await threadkeep.upgrade(v7.url)
    assert (await v7.run(schema_of), await v7.run(everything)) == before
    await threadkeep.upgrade(v7.url)
    assert await version_rows(v7) == NEWEST


@on_postgresql
async def test_a_writer_that_was_first_is_waited_for(v7: Place) -> None:
    """It has its thread and wants the messages. Whoever had these and wanted the threads would deadlock with it."""

    async def is_waiting(conn: Any) -> bool:
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        found = await conn.exec_driver_sql(f"SELECT 1 FROM pg_locks WHERE NOT granted AND {here}")
        return found.first() is not None

    async with v7.engine() as engine, engine.connect() as conn:
        await conn.exec_driver_sql("UPDATE cubepi_threads SET last_seq = 1")
        upgrade = asyncio.create_task(threadkeep.upgrade(v7.url))
        while not await is_waiting(conn):
            await asyncio.sleep(0.01)
            assert not upgrade.done()
        await conn.exec_driver_sql("DELETE FROM cubepi_messages WHERE seq = 2")
        await conn.commit()
        await upgrade
    assert await messages_of(v7) == {"thread": 1}
    assert await version_rows(v7) == NEWEST
