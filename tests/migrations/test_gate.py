"""The schema gate: what opening a checkpointer says of a database that is not ready for it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import Pool

import threadkeep
from migrations.databases import Place, prove_that_it_works, schema_of
from servers import SERVERS, fresh_database, migrated_database
from threadkeep import CubepiSchemaError, CubepiSchemaMismatch, CubepiSchemaUninitialized
from threadkeep.sql.tables import SCHEMA_VERSION

COMMAND = "threadkeep upgrade"
OWNERS = ("own pool", "host's engine")


@contextmanager
def every_connection_closed() -> Iterator[None]:
    """Fail if a connection that was opened inside is open at the end."""
    open_now: set[int] = set()

    def opened(connection: object, _: object) -> None:
        open_now.add(id(connection))

    def closed(connection: object, *_: object) -> None:
        open_now.discard(id(connection))

    listeners: list[tuple[str, Callable[..., None]]] = [
        ("connect", opened),
        ("close", closed),
        ("close_detached", closed),
    ]
    for name, listener in listeners:
        sa.event.listen(Pool, name, listener)
    try:
        yield
        assert open_now == set()
    finally:
        for name, listener in listeners:
            sa.event.remove(Pool, name, listener)


@asynccontextmanager
async def refused(place: Place, owner: str) -> AsyncIterator[CubepiSchemaError]:
    """What a checkpointer on an own pool or the host's engine raises. It must leave no connection behind."""
    before = await place.run(schema_of)
    with every_connection_closed():
        if owner == "own pool":
            with pytest.raises(CubepiSchemaError) as caught:
                await place.checkpointer().__aenter__()
        else:
            async with place.engine() as engine:
                with pytest.raises(CubepiSchemaError) as caught:
                    await place.checkpointer(engine).__aenter__()
                assert engine.pool.checkedout() == 0  # type: ignore[attr-defined] # every pool here counts
    assert await place.run(schema_of) == before, "a checkpointer has changed the schema"
    yield caught.value


# SQLite's own checkpointer is not among them: it upgrades the file, see test_sqlite_by_itself.py.
TARGETS = ["host's engine on sqlite", *(f"{owner} on {kind}" for kind in SERVERS for owner in OWNERS)]


@pytest.fixture(params=TARGETS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, str]]:
    """A database without tables, and by whose connections it is opened."""
    owner, _, kind = request.param.partition(" on ")
    if kind == "sqlite":
        yield Place.of_file(tmp_path / "threads.db"), owner
    else:
        with fresh_database(kind) as url:
            yield Place(kind, url), owner


@pytest.fixture(params=TARGETS)
async def ready(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Place, str]]:
    """The same with the newest schema in it."""
    owner, _, kind = request.param.partition(" on ")
    if kind == "sqlite":
        place = Place.of_file(tmp_path / "threads.db")
        await threadkeep.upgrade(place.url)
        yield place, owner
    else:
        with migrated_database(kind) as url:
            yield Place(kind, url), owner


async def test_no_tables(empty: tuple[Place, str]) -> None:
    async with refused(*empty) as error:
        assert type(error) is CubepiSchemaUninitialized
        assert COMMAND in str(error)


async def test_an_empty_version_table(ready: tuple[Place, str]) -> None:
    place, _ = ready
    await place.execute("DELETE FROM cubepi_schema_version")
    async with refused(*ready) as error:
        assert type(error) is CubepiSchemaUninitialized
        assert COMMAND in str(error)


async def test_an_older_schema(ready: tuple[Place, str]) -> None:
    place, _ = ready
    await place.execute(f"UPDATE cubepi_schema_version SET version = {SCHEMA_VERSION - 1}")
    async with refused(*ready) as error:
        assert isinstance(error, CubepiSchemaMismatch)
        assert (error.expected, error.actual) == (SCHEMA_VERSION, SCHEMA_VERSION - 1)
        assert COMMAND in str(error)


@pytest.mark.parametrize("versions", [(3,), (3, 4, 5), (9999,)])
async def test_a_database_that_cubepi_wrote(empty: tuple[Place, str], versions: tuple[int, ...]) -> None:
    """Its table of the same name has one column less than ours, whatever number is in it."""
    place, _ = empty
    await place.execute(
        "CREATE TABLE cubepi_schema_version (version INTEGER NOT NULL PRIMARY KEY)",
        *(f"INSERT INTO cubepi_schema_version VALUES ({version})" for version in versions),
    )
    async with refused(*empty) as error:
        assert isinstance(error, CubepiSchemaMismatch)
        assert (error.expected, error.actual) == (SCHEMA_VERSION, versions[-1])
        assert "cubepi wrote" in str(error)
        assert COMMAND in str(error)


async def test_a_newer_schema_that_shuts_this_library_out(ready: tuple[Place, str]) -> None:
    place, _ = ready
    newer = SCHEMA_VERSION + 1
    await place.execute(f"UPDATE cubepi_schema_version SET version = {newer}, oldest_library = '999.1.0'")
    async with refused(*ready) as error:
        assert isinstance(error, CubepiSchemaMismatch)
        assert (error.expected, error.actual) == (SCHEMA_VERSION, newer)
        assert "999.1.0" in str(error)
        assert "pip install --upgrade threadkeep" in str(error)


@pytest.mark.parametrize("oldest", ["0.0.9", threadkeep.__version__, f"{threadkeep.__version__}.0"])
async def test_a_newer_schema_that_lets_this_library_in(place: Place, oldest: str) -> None:
    await threadkeep.upgrade(place.url)
    await place.execute(f"UPDATE cubepi_schema_version SET version = 9999, oldest_library = '{oldest}'")
    await prove_that_it_works(place)
    async with place.engine() as engine:
        await prove_that_it_works(place, engine)


async def test_the_gate_is_one_query(place: Place) -> None:
    await threadkeep.upgrade(place.url)
    statements = []

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(conn: object, cursor: object, statement: str, *_: Any) -> None:
        statements.append(statement)

    try:
        async with place.checkpointer():
            pass
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert [statement for statement in statements if "cubepi" in statement] == ["SELECT * FROM cubepi_schema_version"]


async def test_a_checkpointer_on_a_server_sends_no_ddl(server_place: Place) -> None:
    """SQLite is the exception: it upgrades itself."""
    await threadkeep.upgrade(server_place.url)
    ddl = []

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(conn: object, cursor: object, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("CREATE", "ALTER", "DROP", "TRUNCATE")):
            ddl.append(statement)

    try:
        await prove_that_it_works(server_place)
        async with server_place.engine() as engine:
            await prove_that_it_works(server_place, engine)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert ddl == []


async def test_an_unreachable_database_leaves_no_connection_behind(place: Place) -> None:
    """Not the gate's affair, but it must not come before this one closes what it has opened."""
    with every_connection_closed(), pytest.raises(Exception, match=r".+"):
        await threadkeep.open_checkpointer(f"{place.url}/no/such/database").__aenter__()
