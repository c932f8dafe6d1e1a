"""A server, seen from a session of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from backends import Backend
from servers import PROCESSES

OUR_OWN_POOLS = ["postgresql", "mysql", "mariadb"]
"""Where shortcuts are taken."""
LONG = 30.0
"""Seconds that a write waits for a lock it will get."""


class Server:
    """What its sessions do in this database."""

    def __init__(self, looking: AsyncConnection) -> None:
        """`looking` is in autocommit mode."""
        self._looking = looking
        self.on_postgresql = looking.dialect.name == "postgresql"
        is_mariadb = getattr(looking.dialect, "is_mariadb", False)
        self._processes = PROCESSES["mariadb" if is_mariadb else "mysql"]

    async def _sessions(self, condition_there: str, condition_elsewhere: str) -> set[int]:
        if self.on_postgresql:
            # The server's own workers visit databases, too: autovacuum comes when it wants.
            clients = "backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
            return await self._ids(f"SELECT pid FROM pg_stat_activity WHERE {clients} AND {condition_there}")
        sessions = f"SELECT id FROM {self._processes} WHERE db = database() AND id <> connection_id()"
        return await self._ids(f"{sessions} AND {condition_elsewhere}")

    async def _ids(self, statement: str) -> set[int]:
        return set((await self._looking.execute(sa.text(statement))).scalars())

    async def all(self) -> set[int]:
        return await self._sessions("true", "true")

    async def until_connected(self, count: int) -> None:
        """There are so many sessions: one that was closed is seen for a moment more."""
        async with asyncio.timeout(LONG):
            while len(await self.all()) != count:
                await asyncio.sleep(0.02)

    async def busy(self) -> set[int]:
        """Those that execute something, or wait."""
        return await self._sessions("state <> 'idle'", "command <> 'Sleep'")

    async def until_waiting(self, count: int) -> set[int]:
        """The sessions that wait for a lock, once there are so many. MySQL's are those that are busy for long."""
        before: set[int] = set()
        async with asyncio.timeout(LONG):
            while True:
                now = await self._sessions("wait_event_type = 'Lock'", "command = 'Query'")
                if len(waiting := now if self.on_postgresql else now & before) >= count:
                    return waiting
                before = now
                await asyncio.sleep(0.02 if self.on_postgresql else 0.2)

    async def until_quiet(self) -> None:
        """Nothing that was sent is still to be executed."""
        async with asyncio.timeout(LONG):
            while await self.busy():
                await asyncio.sleep(0.02)

    async def kill(self, session: int) -> None:
        """It is gone after that."""
        statement = f"SELECT pg_terminate_backend({session})" if self.on_postgresql else f"KILL {session}"
        with suppress(DBAPIError):  # of MySQL, for one that a pool has closed by itself
            await self._looking.execute(sa.text(statement))
        async with asyncio.timeout(LONG):
            while session in await self.all():
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def locked(self, table: str) -> AsyncIterator[int]:
        """Nobody can write to it meanwhile, or read from it. The session that has the lock."""
        own_id, lock, unlock = (
            ("pg_backend_pid()", f"BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", "COMMIT")
            if self.on_postgresql
            else ("connection_id()", f"LOCK TABLES {table} WRITE", "UNLOCK TABLES")
        )
        async with self._looking.engine.connect() as locking:
            (session,) = (await locking.execute(sa.text(f"SELECT {own_id}"))).one()
            for statement in lock.split("; "):
                await locking.execute(sa.text(statement))
            yield session
            await locking.execute(sa.text(unlock))


@asynccontextmanager
async def looking_at(backend: Backend) -> AsyncIterator[Server]:
    """The server of this database."""
    assert backend.engine is not None
    engine = create_async_engine(backend.engine.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as looking:
        yield Server(looking)
    await engine.dispose()
