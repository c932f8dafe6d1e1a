"""`using(connection)`: our operations inside a transaction that the host owns, with the host's own tables in it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backends import BACKENDS, Backend
from servers import SERVERS
from threadkeep import (
    AssistantMessage,
    CheckpointerError,
    MySQLCheckpointer,
    PostgresCheckpointer,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    SQLiteCheckpointer,
    TextContent,
    ToolCall,
    TransactionConflictError,
    UserMessage,
)
from threadkeep.sql import tables

host_metadata = sa.MetaData()
orders = sa.Table("host_orders", host_metadata, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False))

LEVELS = ["READ COMMITTED", "REPEATABLE READ"]


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def texts(cp: Any, thread_id: str = "thread") -> list[str] | None:
    data = await cp.load(thread_id)
    return [message.content[0].text for message in data.messages] if data else None


async def order_ids(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as conn:
        return list((await conn.execute(sa.select(orders.c.id).order_by(orders.c.id))).scalars())


@pytest.fixture
async def cp(backend: Backend) -> AsyncIterator[Any]:
    async with backend.opened() as checkpointer:
        yield checkpointer


@pytest.fixture(params=LEVELS)
async def engine(request: pytest.FixtureRequest, backend: Backend, cp: Any) -> AsyncEngine:
    """The host's engine at an isolation level, with a table of the host's."""
    assert backend.engine is not None
    async with backend.engine.begin() as conn:
        await conn.run_sync(host_metadata.create_all)
    if backend.engine.dialect.name == "sqlite":
        return backend.engine  # SQLite knows one level, which is serializable
    return backend.engine.execution_options(isolation_level=request.param)


async def test_it_commits_with_the_host(cp: Any, engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        await conn.execute(sa.insert(orders).values(id=1))
        tx = cp.using(conn)
        await tx.claim_run("thread", "run")
        await tx.append("thread", [said("1", "run")])
        await conn.execute(sa.insert(orders).values(id=2))
        async with cp.using(conn) as again:
            await again.mark_run_complete("thread", "run")
            assert await texts(again) == ["1"]
    assert await order_ids(engine) == [1, 2]
    assert await texts(cp) == ["1"]
    assert [run.completion_seq for run in await cp.runs.list("thread")] == [1]


async def test_it_rolls_back_with_the_host(cp: Any, engine: AsyncEngine) -> None:
    await cp.append("thread", [said("before")])
    async with engine.connect() as conn:
        tx = cp.using(conn)
        await tx.append("thread", [said("never")])
        await conn.execute(sa.insert(orders).values(id=1))
        await tx.save_extra("new", {"a": 1})
        await tx.threads.delete("thread")
        await conn.rollback()
    assert await order_ids(engine) == []
    assert await texts(cp) == ["before"]
    assert await cp.load("new") is None
    await cp.append("thread", [said("after")])
    assert (await cp.threads.get("thread")).last_seq == 2


async def test_nothing_of_it_is_seen_before_the_host_commits(cp: Any, engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        await cp.using(conn).append("thread", [said("1")])
        assert await cp.load("thread") is None
    assert await texts(cp) == ["1"]


async def test_a_failure_that_is_caught_leaves_no_trace(cp: Any, engine: AsyncEngine) -> None:
    await cp.claim_run("done", "run")
    await cp.mark_run_complete("done", "run")
    async with engine.begin() as conn:
        tx = cp.using(conn)
        await conn.execute(sa.insert(orders).values(id=1))
        with pytest.raises(RunAlreadyCompletedError):
            await tx.append("done", [said("late", "run")])
        with pytest.raises(CheckpointerError):
            await tx.fork("nobody", "fork", after_run_id="run")
        await tx.append("done", [said("1")])
    assert await order_ids(engine) == [1]
    assert await texts(cp, "done") == ["1"]
    assert (await cp.threads.get("done")).last_seq == 1
    assert await cp.load("fork") is None


async def test_an_old_snapshot_does_not_mislead_a_write(cp: Any, engine: AsyncEngine) -> None:
    """The host has read before; then others write. What the operation decides, it decides on what is true now."""
    await cp.claim_run("thread", "run")
    for attempt in range(2):
        try:
            async with engine.begin() as conn:
                await conn.execute(sa.select(orders.c.id))
                await conn.execute(sa.select(tables.runs.c.completed_at))
                await conn.execute(sa.select(tables.threads.c.last_seq))
                if attempt == 0:
                    await cp.append("thread", [said("theirs", "run")])
                    await cp.mark_run_complete("thread", "run")
                tx = cp.using(conn)
                with pytest.raises(RunAlreadyCompletedError):
                    await tx.append("thread", [said("late", "run")])
                await tx.append("thread", [said("mine")])
            break
        except TransactionConflictError:
            # PostgreSQL and SQLite refuse to write from a snapshot that is too old: the host runs it all again.
            assert attempt == 0
    assert await texts(cp) == ["theirs", "mine"]
    assert (await cp.threads.get("thread")).last_seq == 2


async def test_an_old_snapshot_does_not_grant_a_second_claim(cp: Any, engine: AsyncEngine) -> None:
    await cp.save_extra("thread", {})
    async with engine.connect() as conn:
        await conn.execute(sa.select(tables.runs.c.run_id))
        await conn.execute(sa.select(tables.threads.c.last_seq))
        await cp.claim_run("thread", "run")
        with pytest.raises((RunAlreadyClaimedError, TransactionConflictError)):
            await cp.using(conn).claim_run("thread", "run")
        await conn.rollback()
    assert [run.run_id for run in await cp.runs.list("thread")] == ["run"]


async def test_a_delete_finds_the_fork_that_was_made_meanwhile(cp: Any, engine: AsyncEngine) -> None:
    await cp.claim_run("thread", "run")
    await cp.mark_run_complete("thread", "run")
    for attempt in range(2):
        try:
            async with engine.begin() as conn:
                await conn.execute(sa.select(tables.threads.c.thread_id))
                if attempt == 0:
                    await cp.fork("thread", "fork", after_run_id="run")
                assert await cp.using(conn).threads.delete("thread")
            break
        except TransactionConflictError:
            assert attempt == 0
    assert (await cp.threads.get("fork")).parent_thread_id is None


@pytest.mark.parametrize("is_completed", [True, False])
async def test_an_old_snapshot_does_not_mislead_a_repair(cp: Any, engine: AsyncEngine, is_completed: bool) -> None:
    """It tells what the ledger says by now, and leaves a call to the worker that has begun it."""
    await cp.append("thread", [AssistantMessage(content=[ToolCall(id="call", name="pay", arguments={})])])
    for attempt in range(2):
        try:
            async with engine.begin() as conn:
                await conn.execute(sa.select(tables.tool_calls.c.call_id))
                await conn.execute(sa.select(tables.threads.c.last_seq))
                if attempt == 0:
                    await cp.ledger.issue("thread", "call", "pay", {})
                    if is_completed:
                        await cp.ledger.complete("thread", "call", "receipt 4711")
                repaired = await cp.using(conn).repair("thread")
            break
        except TransactionConflictError:
            assert attempt == 0
    assert [result.content[0].text for result in repaired] == (["receipt 4711"] if is_completed else [])
    assert await cp.repair("thread") == []


def called(message_id: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=message_id)], run_id=run_id, message_id=message_id)


async def window(cp: Any, thread_id: str = "thread") -> list[str]:
    return [record.message_id for record in await cp.context.records(thread_id)]


async def under(cp: Any, summary_id: str, thread_id: str = "thread") -> list[str]:
    return [record.message_id for record in await cp.context.expand(thread_id, summary_id)]


async def test_an_old_snapshot_does_not_let_a_summary_swallow_what_came_meanwhile(cp: Any, engine: AsyncEngine) -> None:
    """The host's snapshot has the first messages and its own last one, but not those of others in between."""
    await cp.append("thread", [called("a"), called("b")])
    for attempt in range(2):
        try:
            async with engine.begin() as conn:
                await conn.execute(sa.select(tables.messages.c.seq))
                if attempt == 0:
                    await cp.append("thread", [called("theirs")])
                tx = cp.using(conn)
                await tx.append("thread", [called("mine")])
                await tx.context.swap("thread", ["a", "b", "mine"], said("S"), summary_id="S")
            break
        except TransactionConflictError:
            assert attempt == 0
    assert await window(cp) == ["S", "theirs"]
    assert await under(cp, "S") == ["a", "b", "mine"]


async def test_an_old_snapshot_does_not_mislead_a_fork(cp: Any, engine: AsyncEngine) -> None:
    """The host's snapshot takes the second run for open. What is copied, and all that is said of it, is not."""
    for run_id, names in (("first", "ab"), ("second", "cd")):
        await cp.claim_run("thread", run_id)
        await cp.append("thread", [called(name, run_id) for name in names])
    await cp.mark_run_complete("thread", "first")
    await cp.append("thread", [called("e"), called("f")])
    await cp.context.swap("thread", ["e", "f"], said("S"), summary_id="S")
    for attempt in range(2):
        try:
            async with engine.begin() as conn:
                await conn.execute(sa.select(tables.runs.c.completed_at))
                await conn.execute(sa.select(tables.messages.c.seq))
                if attempt == 0:
                    await cp.mark_run_complete("thread", "second")
                await cp.using(conn).fork("thread", "fork", after_run_id="second")
            break
        except TransactionConflictError:
            assert attempt == 0
    assert await texts(cp, "fork") == list("abcdef")
    assert (await cp.threads.get("fork")).forked_at_seq == 6
    assert await window(cp, "fork") == ["a", "b", "c", "d", "S"]
    assert await under(cp, "S", "fork") == ["e", "f"]


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name.startswith(SERVERS)], indirect=True)
async def test_of_two_that_wait_for_each_other_one_is_told_to_begin_again(cp: Any, engine: AsyncEngine) -> None:
    """On servers: SQLite has one lock for all, so nobody can wait for two. Its conflict is the old snapshot, above."""
    await cp.append("left", [said("0")])
    await cp.append("right", [said("0")])
    async with engine.connect() as one, engine.connect() as other:
        tx_one, tx_other = cp.using(one), cp.using(other)
        await tx_one.append("left", [said("1")])
        await tx_other.append("right", [said("2")])

        async def cross(conn: AsyncConnection, tx: Any, thread_id: str, text: str) -> str | None:
            try:
                await tx.append(thread_id, [said(text)])
            except TransactionConflictError:
                with pytest.raises(TransactionConflictError):
                    await tx.append(thread_id, [said("must not begin a transaction of its own")])
                with pytest.raises(TransactionConflictError):
                    await cp.using(conn).append(thread_id, [said("nor through another handle")])
                await conn.rollback()  # lets the other one go on
                await cp.using(conn).append(f"again {text}", [said("in a new one")])
                await conn.commit()
                return None
            await conn.commit()
            return text

        crossing = (cross(one, tx_one, "right", "1"), cross(other, tx_other, "left", "2"))
        (winner,) = [text for text in await asyncio.gather(*crossing) if text]
    assert await texts(cp, "left") == await texts(cp, "right") == ["0", winner]
    assert await texts(cp, f"again {'1' if winner == '2' else '2'}") == ["in a new one"]


async def test_hosts_that_retry_conflicts_get_it_right(cp: Any, engine: AsyncEngine) -> None:
    """Transactions that lock two threads in opposite orders: somebody has to be sent away, and comes again."""

    async def transfer(number: int) -> None:
        first, second = ("left", "right") if number % 2 else ("right", "left")
        while True:
            try:
                async with engine.begin() as conn:
                    await conn.execute(sa.select(orders.c.id))
                    tx = cp.using(conn)
                    await tx.append(first, [said(f"{number}")])
                    await tx.append(second, [said(f"{number}")])
                    await conn.execute(sa.insert(orders).values(id=number))
                return
            except TransactionConflictError:
                continue

    await cp.append("left", [said("0")])
    await cp.append("right", [said("0")])
    await asyncio.gather(*(transfer(number) for number in range(1, 7)))
    everything = sorted(str(number) for number in range(7))
    assert sorted(await texts(cp, "left") or []) == everything
    assert sorted(await texts(cp, "right") or []) == everything
    assert (await cp.threads.get("left")).last_seq == (await cp.threads.get("right")).last_seq == 7
    assert await order_ids(engine) == list(range(1, 7))


async def test_a_connection_in_autocommit_mode_is_refused_or_made_a_transaction_of(cp: Any, backend: Backend) -> None:
    assert backend.engine is not None
    async with backend.engine.connect() as conn:
        await conn.execution_options(isolation_level="AUTOCOMMIT")
        try:
            await cp.using(conn).append("thread", [said("1")])
        except CheckpointerError as error:
            assert "AUTOCOMMIT" in str(error)  # noqa: PT017 - on SQLite there is no error at all
        else:
            # On SQLite the write itself says BEGIN IMMEDIATE, and the host ends what was begun.
            await conn.rollback()
    assert await cp.load("thread") is None


async def test_handles_on_one_connection_take_turns(cp: Any, engine: AsyncEngine) -> None:
    """Each operation is a savepoint: what one rolls back must not be another's."""
    await cp.claim_run("over", "run")
    await cp.mark_run_complete("over", "run")
    async with engine.begin() as conn:
        calls = [("over", said("late", "run")), ("thread", said("written")), ("over", said("late", "run"))]
        appending = (cp.using(conn).append(thread_id, [message]) for thread_id, message in calls)
        outcomes: list[Any] = await asyncio.gather(*appending, return_exceptions=True)
        late = RunAlreadyCompletedError
        assert [type(outcome) for outcome in outcomes] == [late, type(None), late]
        await asyncio.gather(*(cp.using(conn).append("thread", [said(f"{number}")]) for number in range(12)))
    assert await texts(cp) == ["written", *map(str, range(12))]


@pytest.mark.parametrize("backend", ["mysql-of-host", "mariadb-of-host"], indirect=True)
async def test_a_connection_whose_quotes_are_not_safe_is_refused(cp: Any, backend: Backend) -> None:
    """Also when it has become one after its engine was looked at."""
    assert backend.engine is not None
    async with backend.engine.begin() as conn:
        await cp.using(conn).append("thread", [said("before")])
        await conn.execute(sa.text("SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_BACKSLASH_ESCAPES')"))
        with pytest.raises(CheckpointerError, match="NO_BACKSLASH_ESCAPES"):
            await cp.using(conn).append("thread", [said("hello")])
    with pytest.raises(CheckpointerError, match="NO_BACKSLASH_ESCAPES"):
        await cp.append("thread", [said("on the same connection, from the pool")])
    await backend.engine.dispose()
    assert await texts(cp) == ["before"]


async def test_only_an_async_connection_of_the_same_kind_will_do(cp: Any, backend: Backend) -> None:
    assert backend.engine is not None
    with pytest.raises(TypeError, match="AsyncConnection"):
        cp.using(backend.engine)
    strangers = [
        PostgresCheckpointer("postgresql://host/db"),
        MySQLCheckpointer("mysql://host/db"),
        SQLiteCheckpointer("x"),
    ]
    async with backend.engine.connect() as conn:
        for stranger in strangers:
            if not isinstance(cp, type(stranger)):
                with pytest.raises(ValueError, match="is not for"):
                    stranger.using(conn)


async def test_the_hosts_engine_stays_as_it_was(backend: Backend) -> None:
    """Never disposed, never reconfigured: what the host has set is still set after we are gone."""
    assert backend.engine is not None
    async with backend.engine.connect() as conn:
        before = await conn.get_isolation_level()
    async with backend.opened() as cp:
        await cp.append("thread", [said("1")])
        await cp.load("thread")
    async with backend.engine.connect() as conn:
        assert await conn.get_isolation_level() == before
        assert (await conn.execute(sa.select(sa.func.count()).select_from(tables.messages))).scalar() == 1
