"""`await threadkeep.upgrade(…)`: what holds afterwards, and beside others."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

import threadkeep
from migrations.databases import (
    NEWEST,
    Place,
    back_to,
    drift_of,
    prove_that_it_is_what_the_model_describes,
    prove_that_it_works,
    schema_of,
    version_rows,
)
from migrations.program import at_once
from servers import SERVERS, fresh_database
from threadkeep import CubepiSchemaMismatch, MySQLCheckpointer
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql.tables import metadata

OURS = {*metadata.tables, "cubepi_alembic_version"}


async def upgraded_by_url(place: Place) -> None:
    await threadkeep.upgrade(place.url)


async def upgraded_by_engine(place: Place) -> None:
    async with place.engine() as engine:
        await threadkeep.upgrade(engine)
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined] # every pool here counts


async def upgraded_by_engine_that_begins(place: Place) -> None:
    """A host's engine with SQLAlchemy's recipe for SQLite, which says BEGIN by itself."""
    async with place.engine() as engine:
        if place.kind == "sqlite":

            @sa.event.listens_for(engine.sync_engine, "connect")
            def leave_it_to_us(connection: Any, _: object) -> None:
                connection.isolation_level = None

            @sa.event.listens_for(engine.sync_engine, "begin")
            def begin(conn: sa.Connection) -> None:
                conn.exec_driver_sql("BEGIN")

        await threadkeep.upgrade(engine)


# The program `alembic` is the fourth: see test_alembic_program.py.
WAYS = [upgraded_by_url, upgraded_by_engine, upgraded_by_engine_that_begins]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_makes_what_the_model_describes(place: Place, way: Any) -> None:
    await way(place)
    assert await version_rows(place) == NEWEST
    await prove_that_it_works(place)
    await prove_that_it_is_what_the_model_describes(place)


async def test_a_second_upgrade_changes_nothing(place: Place) -> None:
    await threadkeep.upgrade(place.url)
    async with place.checkpointer() as checkpointer:
        await checkpointer.save_extra("thread", {"kept": True})
    before = await place.run(schema_of)
    changes = []

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(conn: object, cursor: object, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")):
            changes.append(statement)

    try:
        await threadkeep.upgrade(place.url)
        async with place.engine() as engine:
            await threadkeep.upgrade(engine)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert changes == []
    assert await place.run(schema_of) == before
    async with place.checkpointer() as checkpointer:
        assert (await checkpointer.load("thread")).extra == {"kept": True}


async def test_upgrades_in_several_processes_at_once_all_succeed(place: Place) -> None:
    await asyncio.to_thread(at_once, "upgrade", place.url, 2)
    assert await version_rows(place) == NEWEST
    await prove_that_it_works(place)


async def test_upgrades_in_several_tasks_at_once_all_succeed(place: Place) -> None:
    async with place.engine() as engine:
        await asyncio.gather(*(threadkeep.upgrade(target) for target in (place.url, engine, place.url, engine)))
    assert await version_rows(place) == NEWEST
    await prove_that_it_works(place)


async def test_upgrades_in_several_threads_at_once_all_succeed(place: Place) -> None:
    def upgrade() -> None:
        asyncio.run(threadkeep.upgrade(place.url))

    await asyncio.gather(*(asyncio.to_thread(upgrade) for _ in range(3)))
    assert await version_rows(place) == NEWEST


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
async def test_different_databases_may_be_upgraded_at_once(kind: str, tmp_path: Path) -> None:
    """Alembic keeps its state in globals, and no lock of a server is there to keep these apart."""
    with ExitStack() as stack:
        urls = [
            f"sqlite:///{tmp_path}/{number}.db" if kind == "sqlite" else stack.enter_context(fresh_database(kind))
            for number in range(3)
        ]
        in_a_thread = asyncio.to_thread(lambda: asyncio.run(threadkeep.upgrade(urls[2])))
        await asyncio.gather(threadkeep.upgrade(urls[0]), threadkeep.upgrade(urls[1]), in_a_thread)
        for url in urls:
            assert await version_rows(Place(kind, url)) == NEWEST
            assert await drift_of(Place(kind, url)) == ""


async def test_what_the_host_has_is_left_alone(place: Place) -> None:
    await place.execute(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('of_the_host')",
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY, thread_id VARCHAR(20))",
        "CREATE INDEX ix_sessions ON sessions (thread_id)",
        "INSERT INTO sessions VALUES (1, 'a')",
    )
    before = await place.run(schema_of)

    await threadkeep.upgrade(place.url)

    after = await place.run(schema_of)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == OURS
    assert await place.execute("SELECT * FROM alembic_version") == [("of_the_host",)]
    assert await place.execute("SELECT * FROM sessions") == [(1, "a")]
    assert await drift_of(place) == ""


@pytest.mark.parametrize(("oldest", "is_open"), [("0.0.1", True), ("999.0", False)])
async def test_a_newer_schema_is_not_touched(place: Place, oldest: str, is_open: bool) -> None:
    """A newer release has left a revision here that this one does not have."""
    await threadkeep.upgrade(place.url)
    await place.execute(
        f"UPDATE cubepi_schema_version SET version = 9999, oldest_library = '{oldest}'",
        "UPDATE cubepi_alembic_version SET version_num = 'v99'",
    )
    before = await place.run(schema_of)

    if is_open:
        await threadkeep.upgrade(place.url)
        await prove_that_it_works(place)
    else:
        with pytest.raises(CubepiSchemaMismatch, match="pip install --upgrade"):
            await threadkeep.upgrade(place.url)
        with pytest.raises(CubepiSchemaMismatch, match="pip install --upgrade"):
            await prove_that_it_works(place)
    assert await place.run(schema_of) == before
    assert await version_rows(place) == [(9999, oldest)]


@pytest.mark.parametrize("url", ["memory://", "nonsense", "oracle://host/database", "sqlite://host/file.db"])
async def test_what_has_no_schema_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"memory://|database URL|not among|no host"):
        await threadkeep.upgrade(url)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
async def test_a_database_in_another_character_set_keeps_every_text(kind: str) -> None:
    """Only these have such a default, and MariaDB's was latin1 until 11.6."""
    with fresh_database(kind) as url:
        place = Place(kind, url)
        name = url.rpartition("/")[2].partition("?")[0]
        await place.execute(f"ALTER DATABASE {name} CHARACTER SET latin1")
        await threadkeep.upgrade(url)
        message = {"role": "助手", "metadata": {"größe": "🙂"}, "text": "Ω"}
        async with MySQLCheckpointer(url, message_type=dict[str, Any]) as checkpointer:
            await checkpointer.append("ż", [message])
            await checkpointer.save_extra("ż", {"🙂": "Ω"})
            data = await checkpointer.load("ż")
        assert data is not None
        assert (data.messages, data.extra) == ([message], {"🙂": "Ω"})


async def test_a_downgrade_that_is_refused_half_way_stops_where_all_is_whole(place: Place) -> None:
    """On every server: also on those that commit each change of a table, the version says what is there."""
    await threadkeep.upgrade(place.url)
    async with place.checkpointer() as cp:
        await cp.threads.create("thread", title="x", metadata={"user": "ada"})
    with pytest.raises(NotImplementedError, match="v6 has no place"):
        await on_connection(place.url, back_to("threadkeep_v6"))
    await threadkeep.upgrade(place.url)
    assert await version_rows(place) == NEWEST
    assert await drift_of(place) == ""
    async with place.checkpointer() as cp:
        (found,) = await cp.threads.list(metadata={"user": "ada"})
        assert found.title == "x"
        await cp.threads.update("thread", metadata={"user": "bob"})
        assert await cp.threads.delete("thread")
    with pytest.raises(NotImplementedError):
        await on_connection(place.url, back_to("base"))
    await threadkeep.upgrade(place.url)
    assert await drift_of(place) == ""
    await prove_that_it_works(place)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    "setting", ["sql_safe_updates = 1", "default_storage_engine = MyISAM", "sql_mode = 'ANSI,PIPES_AS_CONCAT'"]
)
async def test_what_a_session_was_told_does_not_matter(kind: str, setting: str) -> None:
    """MySQL and MariaDB: by the server, or as here by the URL."""
    with fresh_database(kind) as url:
        told = f"{url}?init_command={quote(f'SET SESSION {setting}')}"
        await threadkeep.upgrade(told)
        async with MySQLCheckpointer(told, message_type=str) as cp:
            await cp.append("thread", ["\"a\" || 'b'"])
            await cp.save_extra("thread", {"a": 1})
            data = await cp.load("thread")
            assert data is not None
            assert (data.messages, data.extra) == (["\"a\" || 'b'"], {"a": 1})
