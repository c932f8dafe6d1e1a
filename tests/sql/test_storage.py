"""What is stored once is not stored again, and what belongs together is read together."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backends import BACKENDS, Backend
from threadkeep import SQLiteCheckpointer, TextContent, UserMessage
from threadkeep.sql.tables import checkpoints, messages, usage

TURNS = 30


@pytest.fixture(params=["sqlite", "postgresql-of-host", "mysql-of-host", "mariadb-of-host"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """With an engine of the host's, to look at the rows."""
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@contextmanager
def statements_on(backend: Backend) -> Iterator[list[str]]:
    """What is sent about our tables."""
    assert backend.engine is not None
    statements: list[str] = []

    def keep(conn: object, cursor: object, statement: str, *_: object) -> None:
        if "cubepi_" in statement:
            statements.append(statement)

    sa.event.listen(backend.engine.sync_engine, "before_cursor_execute", keep)
    try:
        yield statements
    finally:
        sa.event.remove(backend.engine.sync_engine, "before_cursor_execute", keep)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("run_ids", [[None], ["run"], ["run"] * 3, ["run", None, "other"]])
async def test_rows_are_the_same_whoever_wrote_them(backend: Backend, run_ids: list[str | None]) -> None:
    """Only SQLite stores values as they come, whatever the column is; and only there an append has two ways."""
    assert backend.engine is not None
    appended = [
        UserMessage(content=[TextContent(text=f"{place}")], run_id=run_id, metadata={"place": place} if place else {})
        for place, run_id in enumerate(run_ids)
    ]
    async with backend.opened() as ours, SQLiteCheckpointer(backend.engine) as of_host:
        for thread_id, cp in (("ours", ours), ("of host", of_host)):
            for _ in range(2):
                await cp.append(thread_id, appended)
        as_they_are: list[Any] = [sa.func.typeof(column) for column in messages.c]
        as_they_are += [sa.func.length(sa.cast(messages.c[name], sa.Text)) for name in ("created_at", "message_id")]
        as_they_are += [sa.cast(column, sa.Text) for column in messages.c if column.name in SAID]
        rows = sa.select(*as_they_are).order_by(messages.c.seq)
        async with backend.engine.connect() as conn:
            by_us, by_host = [
                [*map(tuple, await conn.execute(rows.where(messages.c.thread_id == thread_id)))]
                for thread_id in ("ours", "of host")
            ]
        assert by_us == by_host
        assert len(by_us) == 2 * len(appended)
        assert (await ours.load("ours")).messages == (await ours.load("of host")).messages == appended * 2


SAID = ("seq", "role", "run_id", "format", "payload", "metadata")
"""What two rows of the same message have in common."""


async def test_a_checkpoint_costs_the_same_however_long_the_thread_is(backend: Backend) -> None:
    """Each one can be read back with its whole transcript, and none holds it."""
    async with backend.opened() as cp:
        for turn in range(1, TURNS + 1):
            await cp.append("thread", [UserMessage(content=[TextContent(text="x" * 1000)])])
            await cp.checkpoints.save("thread", plan=["next"], state={"busy": True})
            latest = await cp.checkpoints.latest("thread")
            assert len(latest.messages) == turn
    columns = [column for column in checkpoints.c if isinstance(column.type, sa.Text)]
    size = sum((sa.func.length(column) for column in columns[1:]), start=sa.func.length(columns[0]))
    assert backend.engine is not None
    async with backend.engine.connect() as conn:
        sizes = (await conn.execute(sa.select(size).order_by(checkpoints.c.version))).scalars().all()
    assert len(sizes) == TURNS
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    "backend", ["aiosqlite-of-host", "postgresql-of-host", "mysql-of-host", "mariadb-of-host"], indirect=True
)
async def test_the_resume_report_is_one_statement(backend: Backend) -> None:
    """So it has one snapshot, on every server and at every isolation level."""
    async with backend.opened() as cp:
        await cp.append("thread", [UserMessage(content=[TextContent(text="x")])])
        await cp.checkpoints.save("thread")
        await cp.ledger.issue("thread", "call", "tool", {})
        with statements_on(backend) as statements:
            report = await cp.resume("thread")
        assert report.checkpoint.version == 1
        assert len(statements) == 1


@pytest.mark.parametrize(
    "backend", ["aiosqlite-of-host", "postgresql-of-host", "mysql-of-host", "mariadb-of-host"], indirect=True
)
async def test_messages_and_windows_come_with_their_parts_in_two_statements(backend: Backend) -> None:
    """However many they are; without the parts, it is one."""
    async with backend.opened() as cp:
        await cp.append("thread", [UserMessage(content=[TextContent(text="x")]) for _ in range(TURNS)])
        records = await cp.messages.list("thread")
        for record in records:
            await cp.parts.append("thread", record.message_id, "text", record.seq)
        await cp.context.swap("thread", records[1:5], UserMessage(content=[TextContent(text="summary")]))
        for read, length in ((cp.messages.list, TURNS), (cp.context.records, TURNS - 3)):
            for with_parts in (False, True):
                with statements_on(backend) as statements:
                    found = await read("thread", with_parts=with_parts)
                assert len(found) == length
                assert sum(len(record.parts or []) for record in found) == (TURNS - 4 * (length < TURNS)) * with_parts
                assert len(statements) == 1 + with_parts
        with statements_on(backend) as statements:
            await cp.context.load("thread")
            await cp.context.items("thread")
            await cp.usage.by_run("thread")
        assert len(statements) == 3


async def test_sums_of_usage_may_be_longer_than_64_bits(backend: Backend) -> None:
    """Some servers give up there, for all that has been recorded since."""
    assert backend.engine is not None
    largest = dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), 2**53 - 1)
    dollars = 1_000_000
    async with backend.opened() as cp:
        await cp.usage.record("thread", "0", **largest, cost=dollars)
        row = {**largest, "cost": dollars * 10**9, "model_id": "", "provider_id": "", "finish_reason": ""}
        others = [{**row, "thread_id": "thread", "message_id": f"{number}"} for number in range(1, 10_000)]
        async with backend.engine.begin() as conn:
            await conn.execute(sa.insert(usage), others)
        total = await cp.usage.total("thread")
        assert (total.answers, total.input_tokens, total.cost) == (10_000, 10_000 * (2**53 - 1), 10_000 * dollars)
        assert (await cp.usage.by_model("thread"))[""] == (await cp.usage.by_run("thread"))[None] == total
