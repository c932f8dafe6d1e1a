"""Connections: kept, replaced when dead, and what happens when one breaks at work."""

import asyncio
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from backends import BACKENDS, Backend
from cancelled import CancelledAt
from servers import fresh_database
from sql.sessions import OUR_OWN_POOLS, Server
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
    upgrade,
)

ON_A_SERVER = [name for name in BACKENDS if "sqlite" not in name and name != "memory"]


def said(text: str, **metadata: Any) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], metadata=metadata)


async def texts(cp: Any) -> list[str]:
    return [message.content[0].text for message in (await cp.load("thread")).messages]


on_a_server = pytest.mark.parametrize("backend", ON_A_SERVER, indirect=True)
"""Whose connections can be counted and killed. A SQLite file has none."""
on_our_own_pools = pytest.mark.parametrize("backend", OUR_OWN_POOLS, indirect=True)
"""A host's is the host's."""


@on_a_server
@pytest.mark.parametrize("first", ["read", "write", "transaction"])
async def test_connections_that_died_idle_are_replaced(backend: Backend, server: Server, first: str) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("before")] * 10)
        await asyncio.gather(*(cp.load("thread") for _ in range(10)))  # the whole pool
        idle = await server.all()
        assert len(idle) > 3  # as many as are tried one after another
        for session in idle:
            await server.kill(session)
        if first == "read":
            assert len(await texts(cp)) == 10
        elif first == "write":
            await cp.append("thread", [said("after")])
        else:
            async with cp.transaction() as tx:
                await tx.append("thread", [said("after")])
        await cp.append("thread", [said("and on")])
        assert (await texts(cp))[-1] == "and on"
        assert not idle & await server.all()


@on_a_server
async def test_a_write_whose_connection_breaks_has_an_unknown_outcome(backend: Backend, server: Server) -> None:
    async with backend.opened() as cp:
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1")])
            waiting = asyncio.create_task(cp.append("thread", [said("lost")]))
            await server.kill((await server.until_waiting(1)).pop())
            with pytest.raises(OutcomeUnknownError):
                await waiting
        await cp.append("thread", [said("2")])
        assert await texts(cp) == ["1", "2"]


@on_a_server
async def test_a_long_append_whose_connection_breaks_is_told_like_any_other(backend: Backend, server: Server) -> None:
    """Its rows go to the server in ways of their own."""
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])
        async with server.locked("cubepi_messages"):
            waiting = asyncio.create_task(cp.append("thread", [said("lost")] * 1_500))
            await server.kill((await server.until_waiting(1)).pop())
            with pytest.raises(OutcomeUnknownError):
                await waiting
        await cp.append("thread", [said("2")] * 1_500)
        assert await texts(cp) == ["1", *["2"] * 1_500]


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_reads_are_made_again_after_a_conflict(backend: Backend) -> None:
    """PostgreSQL alone can refuse a plain read, where the database's default is SERIALIZABLE."""
    assert backend.engine is not None
    async with backend.engine.begin() as conn:
        database = backend.engine.url.database
        await conn.execute(sa.text(f"ALTER DATABASE {database} SET default_transaction_isolation = serializable"))

    async with backend.opened() as cp:

        async def turns(number: int) -> None:
            thread_id = f"thread {number % 6}"
            for turn in range(30):
                run_id = f"{number}-{turn}"
                await cp.claim_run(thread_id, run_id)
                await cp.append(thread_id, [UserMessage(content=[TextContent(text="1")], run_id=run_id)])
                await cp.mark_run_complete(thread_id, run_id)
                assert run_id in [message.run_id for message in (await cp.load(thread_id)).messages]

        await asyncio.gather(*map(turns, range(20)))


@on_a_server
async def test_a_transaction_whose_connection_breaks_is_over(backend: Backend, server: Server) -> None:
    async with backend.opened() as cp:
        async with cp.transaction() as other:
            await other.append("thread", [said("1")])
            with pytest.raises(OutcomeUnknownError):
                async with cp.transaction() as tx:
                    await tx.append("before", [said("lost")])
                    waiting = asyncio.create_task(tx.append("thread", [said("lost")]))
                    await server.kill((await server.until_waiting(1)).pop())
                    with pytest.raises(OutcomeUnknownError):
                        await waiting
                    with pytest.raises(CheckpointerError):
                        await tx.append("thread", [said("too late")])
                    await waiting
        assert await texts(cp) == ["1"]
        assert await cp.load("before") is None


@on_a_server
async def test_a_read_whose_connection_breaks_is_made_again(backend: Backend, server: Server) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])
        async with server.locked("cubepi_messages"):
            reading = asyncio.create_task(cp.load("thread"))
            await server.kill((await server.until_waiting(1)).pop())
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


@on_a_server
async def test_a_read_that_fails_and_is_caught_does_not_undo_its_transaction(backend: Backend, server: Server) -> None:
    """PostgreSQL would answer the COMMIT of such a transaction with a ROLLBACK, and no error."""
    async with backend.opened(lock_timeout=1.0) as cp:
        async with cp.transaction() as tx:
            await tx.save_extra("thread", {"paid": True})
            async with server.locked("cubepi_pending"):  # which no write before has touched
                reading = asyncio.create_task(tx.load_pending("thread"))
                await server.until_waiting(1)
                if server.on_postgresql:  # there the wait is bounded by lock_timeout; elsewhere the read just goes on
                    with pytest.raises(CheckpointerError):
                        await reading
            if not server.on_postgresql:
                assert await reading is None
        assert (await cp.load("thread")).extra == {"paid": True}


@on_our_own_pools
async def test_an_entry_that_fails_closes_what_it_opened(backend: Backend, server: Server) -> None:
    """The schema gate comes after the connections are open."""
    assert backend.engine is not None
    async with backend.engine.begin() as conn:
        await conn.execute(sa.text("DELETE FROM cubepi_schema_version"))
    await backend.engine.dispose()
    with pytest.raises(CubepiSchemaUninitialized):
        await backend.make(min_pool_size=3).__aenter__()
    await server.until_connected(0)


@on_our_own_pools
async def test_the_pool_opens_its_least_and_never_more_than_its_most(backend: Backend, server: Server) -> None:
    async with backend.opened(min_pool_size=3, max_pool_size=4) as cp:
        await server.until_connected(3)

        async def write(number: int) -> None:
            async with cp.transaction() as tx:  # which has a connection to itself
                await tx.append(f"thread {number}", [said("1")])

        writing = asyncio.gather(*map(write, range(40)))
        most = 0
        while not writing.done():
            most = max(most, len(await server.all()))
        await writing
        assert most <= 4
        await server.until_connected(4)
        assert len(await cp.threads.list()) == 40
    await server.until_connected(0)


@pytest.mark.parametrize(
    "sizes", [{"min_pool_size": 2, "max_pool_size": 1}, {"min_pool_size": -1}, {"max_pool_size": 0}]
)
@pytest.mark.parametrize("kind", [PostgresCheckpointer, MySQLCheckpointer])
def test_sizes_that_make_no_pool_are_refused(kind: Any, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="pool"):
        kind("postgresql://host/db", **sizes)


async def test_values_that_the_server_does_not_carry_are_refused_on_entry(backend: Backend) -> None:
    with pytest.raises(CheckpointerError, match="pass a smaller max_value_bytes"):
        await backend.make(max_value_bytes=2**30).__aenter__()
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])


@pytest.mark.parametrize("kind", [PostgresCheckpointer, MySQLCheckpointer])
@pytest.mark.parametrize("odd", [None, 5, [], sa.create_engine("sqlite://")], ids=["none", "int", "list", "sync"])
def test_what_is_no_url_and_no_async_engine_is_refused(kind: Any, odd: Any) -> None:
    with pytest.raises(TypeError, match="takes a URL or an AsyncEngine"):
        kind(odd)


async def test_a_database_that_cannot_hold_every_text_is_refused() -> None:
    """Of PostgreSQL: elsewhere a column has its own character set. Neither opened nor upgraded."""
    with fresh_database("postgresql") as url:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), isolation_level="AUTOCOMMIT")
        name = f"{engine.url.database}_latin"
        async with engine.connect() as conn:
            how = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            await conn.execute(sa.text(f"CREATE DATABASE {name} {how}"))
            latin = f"{url.rpartition('/')[0]}/{name}"
            try:
                with pytest.raises(CheckpointerError, match="LATIN1"):
                    await upgrade(latin)
            finally:
                await conn.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        await engine.dispose()


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


@on_a_server
async def test_a_transaction_is_cancelled_also_while_its_connection_dies(backend: Backend, server: Server) -> None:
    """At every moment after the server has ended its session."""

    async def write(cp: Any) -> None:
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1")])
            for session in await server.all():
                await server.kill(session)
            attempt.is_counting = True
            await tx.append("thread", [said("2")])

    outcomes = set()
    async with backend.opened() as cp:
        for step in count(1):
            attempt = CancelledAt(write(cp), step, 1, is_counting=False)
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
