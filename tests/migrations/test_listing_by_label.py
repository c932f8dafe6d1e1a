"""v9: labels know when their thread was made, and messages have no index by run. Threads are found as before."""

import asyncio
from datetime import UTC, datetime, timedelta
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
from threadkeep.labels import labels_of
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
RUN_INDEX = ("ix_cubepi_messages_thread_run", ["thread_id", "run_id"], False)
OLD_INDEX = ("ix_cubepi_thread_labels_label", ["label", "thread_id"], False)
NEW_INDEX = ("ix_cubepi_thread_labels_created", ["label", "created_at", "thread_id"], False)
V9 = [(1009, "0.1.0")]
OF_V8 = sa.table("cubepi_thread_labels", sa.column("thread_id"), sa.column("label"))
METADATA: dict[str, dict[str, Any]] = {
    "m": {"user": "ada", "project": 1},
    "a": {"user": "ada"},
    "z": {"user": "bob", "project": 1},
    "c": {"user": "ada", "project": 1},
    "without": {},
}
"""Of threads that were made in this order, so each name says nothing of its time."""
STATEMENTS = 11
"""One more than it takes where each is committed by itself: the last is killed at the commit."""
on_postgresql = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


def made_at(thread: str) -> datetime:
    return TIME + timedelta(days=list(METADATA).index(thread))


def write_as_v8(conn: sa.Connection) -> None:
    for thread, metadata in METADATA.items():
        times = {"created_at": made_at(thread), "updated_at": TIME + timedelta(days=99)}
        conn.execute(sa.insert(tables.threads), {"thread_id": thread, "extra": "{}", **times})
        for label in labels_of(metadata):
            conn.execute(sa.insert(OF_V8), {"thread_id": thread, "label": label})


@pytest.fixture
async def v8(place: Place) -> Place:
    """A database of the schema before, of each kind in turn."""
    await on_connection(place.url, to("threadkeep_v8"))
    await place.run(write_as_v8)
    return place


async def label_rows(place: Place) -> list[tuple[Any, ...]]:
    def read(conn: sa.Connection) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in conn.execute(sa.select(tables.thread_labels)))

    return await place.run(read)


async def prove_that_threads_are_found(place: Place) -> None:
    async with place.checkpointer() as cp:
        for metadata, expected in [
            ({"user": "ada"}, ["c", "a", "m"]),
            ({"project": 1}, ["c", "z", "m"]),
            ({"user": "ada", "project": 1}, ["c", "m"]),
            ({"user": "nobody"}, []),
        ]:
            for limit in (1, 2, 9):
                found: list[Any] = []
                while page := await cp.threads.list(metadata=metadata, limit=limit, after=found[-1] if found else None):
                    assert page[0] not in found, "a thread came again"
                    found += page
                assert [record.thread_id for record in found] == expected


async def test_labels_get_the_times_of_their_threads_and_the_indexes_change(v8: Place) -> None:
    """All else of the schema, and every other row, is as it was."""
    schema, rows = await v8.run(schema_of), await v8.run(everything)
    assert schema["cubepi_messages"]["indexes"].count(RUN_INDEX) == 1
    assert schema["cubepi_thread_labels"]["indexes"] == [OLD_INDEX]
    await on_connection(v8.url, to("threadkeep_v9"))
    expected = sorted((id_, label, made_at(id_)) for id_, metadata in METADATA.items() for label in labels_of(metadata))
    assert await label_rows(v8) == expected
    schema["cubepi_messages"]["indexes"].remove(RUN_INDEX)
    schema["cubepi_thread_labels"]["indexes"] = [NEW_INDEX]
    time = schema["cubepi_threads"]["columns"]["created_at"]
    schema["cubepi_thread_labels"]["columns"]["created_at"] = time
    assert await v8.run(schema_of) == schema
    changed = ("cubepi_schema_version", "cubepi_alembic_version", "cubepi_thread_labels")
    now = await v8.run(everything)
    assert now == rows | {name: now[name] for name in changed}
    assert await version_rows(v8) == V9
    await threadkeep.upgrade(v8.url)
    assert await drift_of(v8) == ""


async def test_threads_are_found_after_it_and_after_going_back_and_again(v8: Place) -> None:
    before = await v8.run(schema_of), await v8.run(everything)
    await threadkeep.upgrade(v8.url)
    after = await v8.run(schema_of), await v8.run(everything)
    await prove_that_threads_are_found(v8)
    await on_connection(v8.url, back_to("threadkeep_v8"))
    assert (await v8.run(schema_of), await v8.run(everything)) == before
    await threadkeep.upgrade(v8.url)
    assert (await v8.run(schema_of), await v8.run(everything)) == after
    await prove_that_threads_are_found(v8)
    await prove_that_it_works(v8)


async def test_it_may_run_again(v8: Place) -> None:
    await threadkeep.upgrade(v8.url)
    once = await v8.run(schema_of), await v8.run(everything)
    await v8.execute("UPDATE cubepi_alembic_version SET version_num = 'threadkeep_v8'")
    await threadkeep.upgrade(v8.url)
    assert (await v8.run(schema_of), await v8.run(everything)) == once


async def test_an_index_by_run_that_is_not_there_is_not_missed(v8: Place) -> None:
    on_table = "" if v8.kind in ("sqlite", "postgresql") else " ON cubepi_messages"
    await v8.execute(f"DROP INDEX {RUN_INDEX[0]}{on_table}")
    await threadkeep.upgrade(v8.url)
    assert await drift_of(v8) == ""


@pytest.mark.parametrize("place", ["sqlite", "mysql", "mariadb"], indirect=True)
async def test_labels_that_have_lost_their_thread_go(v8: Place) -> None:
    """On SQLite for a host that keeps to no foreign keys. On PostgreSQL nobody can have such rows."""
    await v8.execute("DELETE FROM cubepi_threads WHERE thread_id = 'a'")
    await threadkeep.upgrade(v8.url)
    assert {row[0] for row in await label_rows(v8)} == {"m", "z", "c"}
    async with v8.checkpointer() as cp:
        assert [record.thread_id for record in await cp.threads.list(metadata={"user": "ada"})] == ["c", "m"]


async def test_the_script_from_v8_does_the_same(v8: Place) -> None:
    await apply_script(v8, revisions="threadkeep_v8:threadkeep_v9")
    assert await version_rows(v8) == V9
    await threadkeep.upgrade(v8.url)
    assert await drift_of(v8) == ""
    await prove_that_threads_are_found(v8)


async def test_the_index_by_run_goes_from_cubepis_tables(place: Place) -> None:
    """From its partitions, too. Coming back, it is there again."""
    await put_v3(place)
    await on_connection(place.url, to("threadkeep_v8"))
    made = await indexes_of_messages(place, "thread_id", "run_id")
    assert len(made) == (65 if place.kind == "postgresql" else 1)
    await threadkeep.upgrade(place.url)
    assert await indexes_of_messages(place, "thread_id", "run_id") == []
    assert await drift_of(place) == ""
    await prove_that_nothing_was_lost(place)
    await on_connection(place.url, back_to("threadkeep_v8"))
    assert len(await indexes_of_messages(place, "thread_id", "run_id")) == len(made)


@pytest.mark.parametrize("place", ["mysql", "mariadb"], indirect=True)
async def test_killed_before_any_of_its_statements_it_can_be_finished(v8: Place) -> None:
    """These two commit each DDL statement by itself, so it stays where it was killed."""
    left = await finished_after_each_kill(v8, "threadkeep_v8", STATEMENTS)
    assert len(left) == 6, "as many schemas as there are changes of it, and the one before"


async def test_a_view_of_the_hosts_still_shows_the_labels(sqlite_place: Place) -> None:
    """On SQLite alone, where the table is made anew."""
    await on_connection(sqlite_place.url, to("threadkeep_v8"))
    await sqlite_place.run(write_as_v8)
    view = "CREATE VIEW hosts_own AS SELECT thread_id FROM cubepi_thread_labels"
    await sqlite_place.execute(view)
    await threadkeep.upgrade(sqlite_place.url)
    assert {row[0] for row in await sqlite_place.execute("SELECT thread_id FROM hosts_own")} == {"m", "a", "z", "c"}


@on_postgresql
async def test_a_writer_that_was_first_is_waited_for(v8: Place) -> None:
    """It has its thread and its labels, and wants the messages. Whoever had these first would deadlock with it."""

    async def is_waiting(conn: Any) -> bool:
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        found = await conn.exec_driver_sql(f"SELECT 1 FROM pg_locks WHERE NOT granted AND {here}")
        return found.first() is not None

    async with v8.engine() as engine, engine.connect() as conn:
        await conn.exec_driver_sql("UPDATE cubepi_threads SET last_seq = 0 WHERE thread_id = 'a'")
        await conn.exec_driver_sql("DELETE FROM cubepi_thread_labels WHERE thread_id = 'a'")
        upgrade = asyncio.create_task(threadkeep.upgrade(v8.url))
        while not await is_waiting(conn):
            await asyncio.sleep(0.01)
            assert not upgrade.done()
        await conn.exec_driver_sql("DELETE FROM cubepi_messages WHERE thread_id = 'a'")
        await conn.commit()
        await upgrade
    assert {row[0] for row in await label_rows(v8)} == {"m", "z", "c"}
    assert await version_rows(v8) == NEWEST
