"""Connections: kept, replaced when dead, and what happens when one breaks at work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from backends import BACKENDS, Backend
from cancelled import CancelledAt
from servers import PROCESSES
from threadkeep import (
    CheckpointerError,
    CubepiSchemaUninitialized,
    InvalidIdError,
    MySQLCheckpointer,
    OutcomeUnknownError,
    PostgresCheckpointer,
    SQLiteCheckpointer,
    TextContent,
    UnstorableValueError,
    UserMessage,
)

ON_A_SERVER = [name for name in BACKENDS if "sqlite" not in name and name != "memory"]


def said(text: str, **metadata: Any) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], metadata=metadata)


async def texts(cp: Any) -> list[str]:
    return [message.content[0].text for message in (await cp.load("thread")).messages]


@pytest.fixture(params=ON_A_SERVER)
async def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """A server, whose connections can be counted and killed. A SQLite file has none."""
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


class Sessions:
    """What the server says of the sessions in this database, seen from sessions of its own."""

    def __init__(self, looking: AsyncConnection, locking: AsyncConnection, own: set[int]) -> None:
        self._looking = looking
        self._locking = locking
        self._own = own
        self.on_postgresql = looking.dialect.name == "postgresql"

    async def ids(self) -> set[int]:
        return set(await self._states()) - self._own

    async def _states(self) -> dict[int, str]:
        """Each session, and what it waits for."""
        if self.on_postgresql:
            statement = "SELECT pid, wait_event_type FROM pg_stat_activity WHERE datname = current_database()"
            rows = (await self._looking.execute(sa.text(statement))).all()
            return {row.pid: row.wait_event_type or "" for row in rows}
        # Not SHOW PROCESSLIST: it has the statements of all, cut off and with bytes that no driver can read as text.
        is_mariadb = getattr(self._looking.dialect, "is_mariadb", False)
        processes = PROCESSES["mariadb" if is_mariadb else "mysql"]
        statement = f"SELECT id, command FROM {processes} WHERE db = database()"
        rows = (await self._looking.execute(sa.text(statement))).all()
        return {session: "Lock" if command == "Query" else "" for session, command in rows}

    async def waiting_for_a_lock(self) -> int:
        """The session that waits; waits until there is one, and sees it twice: one that just works is done by then."""
        before: set[int] = set()
        while True:
            now = {session for session, state in (await self._states()).items() if state == "Lock"} - self._own
            if before & now:
                return (before & now).pop()
            before = now
            await asyncio.sleep(0.2)

    async def kill(self, session: int) -> None:
        statement = f"SELECT pg_terminate_backend({session})" if self.on_postgresql else f"KILL {session}"
        with suppress(DBAPIError):  # of MySQL, for one that a pool has closed by itself
            await self._looking.execute(sa.text(statement))
        while session in await self.ids():
            await asyncio.sleep(0.01)

    async def be_serializable(self, database: str) -> None:
        """From the next session on."""
        await self._looking.execute(
            sa.text(f"ALTER DATABASE {database} SET default_transaction_isolation = serializable")
        )

    async def lock_messages_whole(self) -> None:
        """So that even a read has to wait."""
        await self._lock_whole("cubepi_messages")

    async def lock_pending_whole(self) -> None:
        """The same for a table that no write before has touched."""
        await self._lock_whole("cubepi_pending")

    async def _lock_whole(self, table: str) -> None:
        if self.on_postgresql:
            await self._locking.execute(sa.text("BEGIN"))
            await self._locking.execute(sa.text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        else:
            await self._locking.execute(sa.text(f"LOCK TABLES {table} WRITE"))

    async def unlock(self) -> None:
        await self._locking.execute(sa.text("COMMIT" if self.on_postgresql else "UNLOCK TABLES"))


@asynccontextmanager
async def sessions_of(backend: Backend) -> AsyncIterator[Sessions]:
    assert backend.engine is not None
    engine = create_async_engine(backend.engine.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    own_id = sa.func.pg_backend_pid() if engine.dialect.name == "postgresql" else sa.func.connection_id()
    async with engine.connect() as looking, engine.connect() as locking:
        own = {(await conn.execute(sa.select(own_id))).scalar_one() for conn in (looking, locking)}
        yield Sessions(looking, locking, own)
    await engine.dispose()


@pytest.mark.parametrize("first", ["read", "write", "transaction"])
async def test_connections_that_died_idle_are_replaced(on_server: Backend, first: str) -> None:
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        await cp.append("thread", [said("before")] * 10)
        await asyncio.gather(*(cp.load("thread") for _ in range(10)))  # the whole pool
        idle = await sessions.ids()
        assert len(idle) > 3  # as many as are tried one after another
        for session in idle:
            await sessions.kill(session)
        if first == "read":
            assert len(await texts(cp)) == 10
        elif first == "write":
            await cp.append("thread", [said("after")])
        else:
            async with cp.transaction() as tx:
                await tx.append("thread", [said("after")])
        await cp.append("thread", [said("and on")])
        assert (await texts(cp))[-1] == "and on"
        assert not idle & await sessions.ids()


async def test_a_write_whose_connection_breaks_has_an_unknown_outcome(on_server: Backend) -> None:
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1")])
            waiting = asyncio.create_task(cp.append("thread", [said("lost")]))
            await sessions.kill(await sessions.waiting_for_a_lock())
            with pytest.raises(OutcomeUnknownError):
                await waiting
        await cp.append("thread", [said("2")])
        assert await texts(cp) == ["1", "2"]


async def test_a_long_append_whose_connection_breaks_is_told_like_any_other(on_server: Backend) -> None:
    """Its rows go to the server in ways of their own."""
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        await cp.append("thread", [said("1")])
        await sessions.lock_messages_whole()
        waiting = asyncio.create_task(cp.append("thread", [said("lost")] * 1_500))
        await sessions.kill(await sessions.waiting_for_a_lock())
        with pytest.raises(OutcomeUnknownError):
            await waiting
        await sessions.unlock()
        await cp.append("thread", [said("2")] * 1_500)
        assert await texts(cp) == ["1", *["2"] * 1_500]


@pytest.mark.parametrize("on_server", ["postgresql"], indirect=True)
async def test_reads_are_made_again_after_a_conflict(on_server: Backend) -> None:
    """PostgreSQL alone can refuse a plain read, where the database's default is SERIALIZABLE."""
    assert on_server.engine is not None
    async with sessions_of(on_server) as sessions:
        await sessions.be_serializable(on_server.engine.url.database or "")

    async with on_server.opened() as cp:

        async def turns(number: int) -> None:
            thread_id = f"thread {number % 6}"
            for turn in range(30):
                run_id = f"{number}-{turn}"
                await cp.claim_run(thread_id, run_id)
                await cp.append(thread_id, [UserMessage(content=[TextContent(text="1")], run_id=run_id)])
                await cp.mark_run_complete(thread_id, run_id)
                assert run_id in [message.run_id for message in (await cp.load(thread_id)).messages]

        await asyncio.gather(*map(turns, range(20)))


async def test_a_transaction_whose_connection_breaks_is_over(on_server: Backend) -> None:
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        async with cp.transaction() as other:
            await other.append("thread", [said("1")])
            with pytest.raises(OutcomeUnknownError):
                async with cp.transaction() as tx:
                    await tx.append("before", [said("lost")])
                    waiting = asyncio.create_task(tx.append("thread", [said("lost")]))
                    await sessions.kill(await sessions.waiting_for_a_lock())
                    with pytest.raises(OutcomeUnknownError):
                        await waiting
                    with pytest.raises(CheckpointerError):
                        await tx.append("thread", [said("too late")])
                    await waiting
        assert await texts(cp) == ["1"]
        assert await cp.load("before") is None


async def test_a_read_whose_connection_breaks_is_made_again(on_server: Backend) -> None:
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        await cp.append("thread", [said("1")])
        await sessions.lock_messages_whole()
        reading = asyncio.create_task(cp.load("thread"))
        await sessions.kill(await sessions.waiting_for_a_lock())
        await sessions.unlock()
        assert [message.content[0].text for message in (await reading).messages] == ["1"]


async def test_a_read_does_not_wait_for_a_writer(backend: Backend) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])
        async with cp.transaction() as tx:
            await tx.append("thread", [said("2")])
            await tx.save_extra("thread", {"a": 1})
            data = await cp.load("thread")
            assert (len(data.messages), data.extra) == (1, {})
            assert await cp.load_pending("thread") is None
            assert (await cp.threads.get("thread")).last_seq == 1
            assert [record.thread_id for record in await cp.threads.list()] == ["thread"]


async def test_a_read_that_fails_and_is_caught_does_not_undo_its_transaction(on_server: Backend) -> None:
    """PostgreSQL would answer the COMMIT of such a transaction with a ROLLBACK, and no error."""
    async with on_server.opened(lock_timeout=1.0) as cp, sessions_of(on_server) as sessions:
        async with cp.transaction() as tx:
            await tx.save_extra("thread", {"paid": True})
            await sessions.lock_pending_whole()
            reading = asyncio.create_task(tx.load_pending("thread"))
            await sessions.waiting_for_a_lock()
            if sessions.on_postgresql:  # there the wait is bounded by lock_timeout; elsewhere the read just goes on
                with pytest.raises(CheckpointerError):
                    await reading
            await sessions.unlock()
            if not sessions.on_postgresql:
                assert await reading is None
        assert (await cp.load("thread")).extra == {"paid": True}


@pytest.mark.parametrize("name", ["postgresql", "mysql", "mariadb"])
async def test_an_entry_that_fails_closes_what_it_opened(name: str, tmp_path: Path) -> None:
    """Our own pools. The schema gate comes after the connections are open."""
    async with BACKENDS[name](tmp_path) as backend, sessions_of(backend) as sessions:
        assert backend.engine is not None
        async with backend.engine.begin() as conn:
            await conn.execute(sa.text("DELETE FROM cubepi_schema_version"))
        await backend.engine.dispose()
        with pytest.raises(CubepiSchemaUninitialized):
            await backend.make(min_pool_size=3).__aenter__()
        while await sessions.ids():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["postgresql", "mysql", "mariadb"])
async def test_the_pool_opens_its_least_and_never_more_than_its_most(name: str, tmp_path: Path) -> None:
    """Our own pools: a host's is the host's."""
    async with BACKENDS[name](tmp_path) as backend, sessions_of(backend) as sessions:
        async with backend.opened(min_pool_size=3, max_pool_size=4) as cp:
            assert len(await sessions.ids()) == 3
            calls = asyncio.gather(*(cp.append("thread", [said(str(number))]) for number in range(40)))
            most = 0
            while not calls.done():
                most = max(most, len(await sessions.ids()))
            await calls
            assert most <= 4
            assert 3 <= len(await sessions.ids()) <= 4
            assert len(await texts(cp)) == 40
        while await sessions.ids():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "sizes", [{"min_pool_size": 2, "max_pool_size": 1}, {"min_pool_size": -1}, {"max_pool_size": 0}]
)
@pytest.mark.parametrize("kind", [PostgresCheckpointer, MySQLCheckpointer])
def test_sizes_that_make_no_pool_are_refused(kind: Any, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="pool"):
        kind("postgresql://host/db", **sizes)


UNOPENED = [
    SQLiteCheckpointer("nowhere.db"),
    PostgresCheckpointer("postgresql://nowhere/db"),
    MySQLCheckpointer("mysql://nowhere/db"),
]


@pytest.mark.parametrize("cp", UNOPENED, ids=lambda cp: type(cp).__name__)
async def test_bad_input_is_refused_before_a_connection_is_taken(cp: Any) -> None:
    """Not even an open checkpointer is needed: nothing was asked for a connection yet."""
    with pytest.raises(InvalidIdError):
        await cp.append("", [said("x")])
    with pytest.raises(UnstorableValueError):
        await cp.append("thread", [said("x", bad={1, 2})])
    with pytest.raises(UnstorableValueError):
        await cp.save_extra("thread", {"x": float("nan")})
    with pytest.raises(CheckpointerError, match="async with"):
        await cp.append("thread", [said("x")])
    with pytest.raises(CheckpointerError, match="async with"):
        await cp.load("thread")
    with pytest.raises(CheckpointerError, match="async with"):
        async with cp.transaction():
            pass


async def test_a_checkpointer_can_be_opened_again_but_not_twice(backend: Backend) -> None:
    cp = backend.make()
    async with cp:
        await cp.append("thread", [said("1")])
        with pytest.raises(CheckpointerError, match="already"):
            await cp.__aenter__()
        assert await texts(cp) == ["1"]
    with pytest.raises(CheckpointerError, match="async with"):
        await cp.load("thread")
    async with cp:
        await cp.append("thread", [said("2")])
        assert await texts(cp) == ["1", "2"]


async def test_another_event_loop_is_refused(backend: Backend) -> None:
    """Not all drivers refuse it: one waits for ever, one takes the process down."""
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])

        async def in_transaction() -> None:
            async with cp.transaction():
                raise AssertionError("it began")

        calls = [cp.load("thread"), cp.append("thread", [said("2")]), in_transaction(), cp.__aexit__(None, None, None)]
        for call in calls:
            with pytest.raises(CheckpointerError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, call)
        assert await texts(cp) == ["1"]


async def test_a_transaction_is_cancelled_also_while_its_connection_dies(on_server: Backend) -> None:
    """At every moment after the server has ended its session."""

    async def write(cp: Any, sessions: Sessions) -> None:
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1")])
            for session in await sessions.ids():
                await sessions.kill(session)
            attempt.is_counting = True
            await tx.append("thread", [said("2")])

    outcomes = set()
    async with on_server.opened() as cp, sessions_of(on_server) as sessions:
        for step in count(1):
            attempt = CancelledAt(write(cp, sessions), step, 1, is_counting=False)
            try:
                await asyncio.ensure_future(_awaited(attempt))
            except (asyncio.CancelledError, OutcomeUnknownError) as error:
                outcomes.add(type(error))
            if not attempt.reached:
                break
        assert outcomes == {asyncio.CancelledError, OutcomeUnknownError}
        await cp.append("thread", [said("3")])
        assert len((await cp.load("thread")).messages) == 1


async def _awaited(attempt: CancelledAt) -> None:
    await attempt
