"""The backends every contract test runs on, each with a database of its own for each test."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import servers
import threadkeep
from servers import migrated_database
from threadkeep import MemoryCheckpointer, MySQLCheckpointer, PostgresCheckpointer, SQLiteCheckpointer

DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy", "mariadb": "mariadb+asyncmy"}
CLASSES: dict[str, Any] = {
    "postgresql": PostgresCheckpointer,
    "mysql": MySQLCheckpointer,
    "mariadb": MySQLCheckpointer,
}


@dataclass
class Backend:
    """A way to make checkpointers on one database."""

    name: str
    make: Callable[..., Any]
    engine: AsyncEngine | None = None
    """A host's engine on the same database."""

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[Any]:
        """A checkpointer, open, which must have given back every connection before it is closed."""
        async with self.make(**options) as checkpointer:
            yield checkpointer
            await checkpointer._heartbeats.close()  # one that beats at this moment has a connection rightly
            assert await connections_in_use(checkpointer) == 0
        if self.engine is not None:
            assert self.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # every pool here counts


async def connections_in_use(checkpointer: Any) -> int:
    """Connections that a call has taken and not given back, or in which it has left a transaction open."""
    opened = getattr(checkpointer, "_opened", None)
    if opened is None:
        return 0
    connections = opened.get().connections
    if hasattr(connections, "engine"):
        # A group may still be waiting for its connection, to find that all have gone with another one.
        await connections._in_use.until_all_have_left()
        return int(connections.engine.pool.checkedout())

    def open_transaction(conn: sa.Connection) -> int:
        return int(conn.connection.driver_connection.in_transaction)  # type: ignore[union-attr] # it is sqlite3's

    workers = {connections._writer, connections._reader, *connections._idle}
    return sum([await worker.run(open_transaction) for worker in workers])


def host_engine(url: str, **options: Any) -> AsyncEngine:
    """An engine as a host would make it for one of our URLs."""
    return create_async_engine(url, pool_size=5, max_overflow=10, **options)


def host_url(kind: str, url: str) -> str:
    """The URL a host would write for SQLAlchemy."""
    return url.replace(url.partition("://")[0], DRIVERS[kind], 1)


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Backend]:
    yield Backend("memory", MemoryCheckpointer)


@cache
def template() -> bytes:
    """A SQLite file with the newest schema and nothing in it. Making one takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        servers.in_a_thread(lambda: threadkeep.upgrade(f"sqlite:///{path}"))
        return path.read_bytes()


def migrated_file(folder: Path) -> Path:
    """A copy of it."""
    path = folder / "threads.db"
    path.write_bytes(template())
    return path


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Backend]:
    path = migrated_file(folder)
    engine = host_engine(f"sqlite+aiosqlite:///{path}")
    yield Backend("sqlite", lambda **options: SQLiteCheckpointer(path, **options), engine)
    await engine.dispose()


@asynccontextmanager
async def sqlite_in_memory(folder: Path) -> AsyncIterator[Backend]:
    yield Backend("sqlite-in-memory", lambda **options: SQLiteCheckpointer(":memory:", **options))


def on_aiosqlite(name: str, *, begins_by_itself: bool) -> Callable[[Path], AbstractAsyncContextManager[Backend]]:
    """A host's aiosqlite engine: as it comes, or with SQLAlchemy's recipe that makes it begin at BEGIN."""

    @asynccontextmanager
    async def backend(folder: Path) -> AsyncIterator[Backend]:
        path = migrated_file(folder)
        engine = host_engine(f"sqlite+aiosqlite:///{path}")
        if begins_by_itself:

            @sa.event.listens_for(engine.sync_engine, "connect")
            def leave_it_to_us(connection: Any, _: object) -> None:
                connection.isolation_level = None

            @sa.event.listens_for(engine.sync_engine, "begin")
            def begin(conn: sa.Connection) -> None:
                conn.exec_driver_sql("BEGIN")

        yield Backend(name, lambda **options: SQLiteCheckpointer(engine, **options), engine)
        await engine.dispose()

    return backend


def on_server(kind: str, *, of_host: bool) -> Callable[[Path], AbstractAsyncContextManager[Backend]]:
    """A server, with our own pool or on a host's engine."""

    @asynccontextmanager
    async def backend(folder: Path) -> AsyncIterator[Backend]:
        async with AsyncExitStack() as stack:
            url = stack.enter_context(migrated_database(kind))
            engine = host_engine(host_url(kind, url))
            stack.push_async_callback(engine.dispose)
            place = engine if of_host else url
            name = f"{kind}-of-host" if of_host else kind
            yield Backend(name, lambda **options: CLASSES[kind](place, **options), engine)

    return backend


BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-in-memory": sqlite_in_memory,
    "aiosqlite-of-host": on_aiosqlite("aiosqlite-of-host", begins_by_itself=False),
    "aiosqlite-of-host-with-begin": on_aiosqlite("aiosqlite-of-host-with-begin", begins_by_itself=True),
    "postgresql": on_server("postgresql", of_host=False),
    "mysql": on_server("mysql", of_host=False),
    "mariadb": on_server("mariadb", of_host=False),
    "postgresql-of-host": on_server("postgresql", of_host=True),
    "mysql-of-host": on_server("mysql", of_host=True),
    "mariadb-of-host": on_server("mariadb", of_host=True),
}
