"""SQLite alone: SQLiteCheckpointer on a file brings it to the newest schema, as there is nobody else who would."""

import asyncio

import pytest
import sqlalchemy as sa
from alembic import command

from migrations.databases import NEWEST, Place, prove_that_it_works, schema_of, version_rows
from migrations.program import at_once
from threadkeep import CubepiSchemaMismatch, SQLiteCheckpointer
from threadkeep.migrations.upgrading import alembic_config, on_connection


async def test_a_new_file(sqlite_place: Place) -> None:
    await prove_that_it_works(sqlite_place)
    assert await version_rows(sqlite_place) == NEWEST


async def test_a_file_with_tables_of_the_host(sqlite_place: Place) -> None:
    await sqlite_place.execute("CREATE TABLE sessions (id INTEGER PRIMARY KEY)", "INSERT INTO sessions VALUES (1)")
    await prove_that_it_works(sqlite_place)
    assert await sqlite_place.execute("SELECT * FROM sessions") == [(1,)]


async def test_a_database_in_memory() -> None:
    async with SQLiteCheckpointer(":memory:") as checkpointer:
        await checkpointer.save_extra("thread", {})
        assert await checkpointer.load("thread") is not None


async def test_an_older_file(sqlite_place: Place) -> None:
    def upgrade_to_v4(conn: sa.Connection) -> None:
        command.upgrade(alembic_config(conn), "threadkeep_v4")

    await on_connection(sqlite_place.url, upgrade_to_v4)
    assert await version_rows(sqlite_place) == [(1004, "0.1.0")]
    await prove_that_it_works(sqlite_place)
    assert await version_rows(sqlite_place) == NEWEST


async def test_a_newer_file_that_shuts_this_library_out_is_left_as_it_is(sqlite_place: Place) -> None:
    await prove_that_it_works(sqlite_place)
    await sqlite_place.execute("UPDATE cubepi_schema_version SET version = 9999, oldest_library = '999.0'")
    before = await sqlite_place.run(schema_of)
    with pytest.raises(CubepiSchemaMismatch, match="pip install --upgrade"):
        await sqlite_place.checkpointer().__aenter__()
    assert await sqlite_place.run(schema_of) == before


async def test_a_file_that_is_no_database_is_left_as_it_is(sqlite_place: Place) -> None:
    content = b"this is no database\n" * 100
    sqlite_place.path.write_bytes(content)
    with pytest.raises(Exception, match="not a database"):
        await sqlite_place.checkpointer().__aenter__()
    assert sqlite_place.path.read_bytes() == content


async def test_several_processes_may_open_the_same_new_file_at_once(sqlite_place: Place) -> None:
    await asyncio.to_thread(at_once, "open", sqlite_place.url, 4)
    assert await version_rows(sqlite_place) == NEWEST
    async with sqlite_place.checkpointer() as checkpointer:
        assert len((await checkpointer.load("thread")).messages) == 4


async def test_several_tasks_may_open_the_same_new_file_at_once(sqlite_place: Place) -> None:
    await asyncio.gather(*(prove_that_it_works_with(sqlite_place, f"thread-{number}") for number in range(5)))
    assert await version_rows(sqlite_place) == NEWEST


async def prove_that_it_works_with(place: Place, thread_id: str) -> None:
    async with place.checkpointer() as checkpointer:
        await checkpointer.save_extra(thread_id, {"a": 1})
        assert (await checkpointer.load(thread_id)).extra == {"a": 1}


async def test_several_processes_may_upgrade_on_engines_of_their_own_at_once(sqlite_place: Place) -> None:
    """Here a plain BEGIN has run, which takes no lock: the second would have read too early to write."""
    await asyncio.to_thread(at_once, "upgrade on an engine that begins", sqlite_place.url, 2)
    assert await version_rows(sqlite_place) == NEWEST
