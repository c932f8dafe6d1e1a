"""What cannot be taken over gets one clear error, and stays as it is."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

import threadkeep
from cli.program import run as run_command
from migrations.databases import Place, schema_of
from migrations.golden import everything, put_v3
from migrations.program import alembic
from servers import fresh_database
from threadkeep import CubepiSchemaError, CubepiSchemaMismatch, SQLiteCheckpointer, upgrade

SPOILT = {
    # what was done to a v3 database, and what the error says
    "a version nobody knows": (["UPDATE cubepi_schema_version SET version = 99"], "says 99"),
    "a version before 3": (["UPDATE cubepi_schema_version SET version = 2"], "says 2"),
    "no version": (["DELETE FROM cubepi_schema_version"], "says nothing"),
    "two versions": (["INSERT INTO cubepi_schema_version VALUES (4)"], "says 3 and 4"),
    "no version table": (["DROP TABLE cubepi_schema_version"], "without cubepi_schema_version"),
    "no messages": (["DROP TABLE cubepi_messages"], "no cubepi_messages"),
    "a column less": (["ALTER TABLE cubepi_threads DROP COLUMN pending_request"], "no column pending_request"),
    "version 4 over the tables of 3": (["UPDATE cubepi_schema_version SET version = 4"], "half a schema"),
    "version 5 over the tables of 3": (["UPDATE cubepi_schema_version SET version = 5"], "half a schema"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_a_database_that_is_not_whole_is_refused_and_kept(server_place: Place, spoilt: str) -> None:
    statements, text = SPOILT[spoilt]
    await put_v3(server_place, partitioned=False)
    await server_place.execute(*statements)
    schema, rows = await server_place.run(schema_of), await server_place.run(everything)
    with pytest.raises(CubepiSchemaMismatch, match=text):
        await upgrade(server_place.url)
    assert await server_place.run(schema_of) == schema
    assert await server_place.run(everything) == rows


async def test_the_programs_say_it_too(server_place: Place) -> None:
    await put_v3(server_place, partitioned=False)
    await server_place.execute("UPDATE cubepi_schema_version SET version = 99")
    rows = await server_place.run(everything)
    by_command = await asyncio.to_thread(run_command, "upgrade", server_place.url)
    by_alembic = await asyncio.to_thread(alembic, "upgrade", "head", url=server_place.url)
    for outcome in (by_command, by_alembic):
        assert outcome.code != 0
        *_, line = outcome.err.splitlines()  # alembic has remarked on the server before
        assert "says 99" in line
        assert "Traceback" not in outcome.err
    assert await server_place.run(everything) == rows


async def test_tables_of_our_names_that_are_something_else(place: Place) -> None:
    await place.execute("CREATE TABLE cubepi_threads (thread_id VARCHAR(255) PRIMARY KEY)")
    with pytest.raises(CubepiSchemaMismatch, match="half a schema: cubepi_threads"):
        await upgrade(place.url)
    assert await place.run(everything) == {"views": [], "cubepi_threads": (["thread_id"], [])}


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (["ALTER TABLE messages ADD COLUMN new_in_a_later_release TEXT"], "other columns"),
        (["ALTER TABLE thread_extra ADD COLUMN new_in_a_later_release TEXT"], "other columns"),
        (["DROP TABLE messages"], "half a schema"),
    ],
)
async def test_a_file_that_is_not_whole_is_refused_and_kept(
    sqlite_place: Place, statements: list[str], text: str
) -> None:
    await put_v3(sqlite_place)
    await sqlite_place.execute(*statements)
    before = await sqlite_place.run(everything)
    with pytest.raises(CubepiSchemaMismatch, match=text):
        await upgrade(sqlite_place.url)
    with pytest.raises(CubepiSchemaMismatch, match=text):
        async with SQLiteCheckpointer(sqlite_place.path):
            pass
    assert await sqlite_place.run(everything) == before


async def test_a_hosts_table_of_the_same_name_is_not_cubepis(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
        conn.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY, thread_id TEXT)")
        conn.execute("INSERT INTO runs VALUES (1, ' not an id of ours ')")
    conn.close()
    async with SQLiteCheckpointer(path) as cp:
        await cp.save_extra("thread", {})
    with sqlite3.connect(path) as conn:
        assert conn.execute("SELECT * FROM runs").fetchall() == [(1, " not an id of ours ")]
    conn.close()


async def test_a_hosts_table_beside_cubepis_in_one_file_stays(sqlite_place: Place) -> None:
    await put_v3(sqlite_place)
    await sqlite_place.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY, thread_id TEXT)")
    await sqlite_place.execute("INSERT INTO runs VALUES (1, ' not an id of ours ')")
    await upgrade(sqlite_place.url)
    assert await sqlite_place.execute("SELECT * FROM runs") == [(1, " not an id of ours ")]


# ---- an account without rights ------------------------------------------------------------------------


WRITING = ["SELECT", "INSERT", "UPDATE", "DELETE"]
DDL = ["CREATE", "ALTER", "INDEX", "DROP"]


@pytest.mark.parametrize("v3", [True, False])
async def test_an_account_that_may_not_change_tables(server_place: Place, v3: bool) -> None:
    if v3:
        await put_v3(server_place, partitioned=False)
    await prove_that_it_is_refused(server_place, WRITING, "may not change the tables")


@pytest.mark.parametrize("right", [*WRITING[1:], *DDL])
async def test_an_account_that_lacks_one_right(mysql_place: Place, right: str) -> None:
    """Only MySQL has these, and could not take back what it did before it came to the one it may not do."""
    await put_v3(mysql_place, partitioned=False)
    rights = [other for other in (*WRITING, *DDL) if other != right]
    await prove_that_it_is_refused(mysql_place, rights, f"lacks {right} on")


async def prove_that_it_is_refused(place: Place, rights: list[str], text: str) -> None:
    before = await place.run(everything)
    async with account(place, rights) as url:
        with pytest.raises(CubepiSchemaError, match=text):
            await upgrade(url)
        if place.kind != "postgresql":  # where no statement of ours says that it was refused, but the server
            by_alembic = await asyncio.to_thread(alembic, "upgrade", "head", url=url)
            assert by_alembic.code != 0
            assert text in by_alembic.err
    assert await place.run(everything) == before


@asynccontextmanager
async def account(place: Place, rights: list[str]) -> AsyncIterator[str]:
    """The database's URL for a new account that has these rights alone."""
    url = sa.make_url(place.url)
    name = f"app_{url.database}"[:32]
    if place.kind == "postgresql":
        make = ["CREATE ROLE {name} LOGIN", "GRANT {rights} ON ALL TABLES IN SCHEMA public TO {name}"]
        forget = ["DROP OWNED BY {name}", "DROP ROLE {name}"]
    else:
        make = ["CREATE USER {name}", "GRANT {rights} ON {database}.* TO {name}"]
        forget = ["DROP USER {name}"]
    words = {"name": name, "rights": ", ".join(rights), "database": url.database}
    await place.execute(*(statement.format(**words) for statement in make))
    try:
        yield url.set(username=name).render_as_string(hide_password=False)
    finally:
        await place.execute(*(statement.format(**words) for statement in forget))


async def test_a_file_that_may_not_be_written(sqlite_place: Place) -> None:
    """By SQLite's own word: root may write any file."""
    await put_v3(sqlite_place)
    before = sqlite_place.path.read_bytes()
    async with sqlite_place.engine() as engine:

        @sa.event.listens_for(engine.sync_engine, "connect")
        def only_read(connection: object, _: object) -> None:
            connection.cursor().execute("PRAGMA query_only = ON")  # type: ignore[attr-defined] # a driver's own

        with pytest.raises(CubepiSchemaError, match="may not change the tables"):
            await threadkeep.upgrade(engine)
    assert sqlite_place.path.read_bytes() == before


async def test_a_schema_whose_name_needs_quotes_is_no_other_one() -> None:
    """Of PostgreSQL."""
    with fresh_database("postgresql") as url:
        place = Place("postgresql", url)
        await put_v3(place)
        await place.execute('ALTER SCHEMA public RENAME TO "Agents of 2026"')
        async with place.engine(connect_args={"server_settings": {"search_path": '"Agents of 2026"'}}) as engine:
            await upgrade(engine)


async def test_tables_that_would_end_up_in_two_schemas() -> None:
    """Only PostgreSQL has a path of schemas: ours would be made in its first, and cubepi's may be in another."""
    with fresh_database("postgresql") as url:
        place = Place("postgresql", url)
        await put_v3(place)
        await place.execute("CREATE SCHEMA app")
        path = {"server_settings": {"search_path": "app,public"}}
        async with place.engine(connect_args=path) as engine:
            with pytest.raises(CubepiSchemaMismatch, match="search_path=public"):
                await upgrade(engine)
        await upgrade(url)
