"""What is stored once is not stored again, and what belongs together is read together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from backends import BACKENDS, Backend
from threadkeep import TextContent, UserMessage
from threadkeep.sql.tables import checkpoints

TURNS = 30


@pytest.fixture(params=["sqlite", "postgresql-of-host", "mysql-of-host", "mariadb-of-host"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """With an engine of the host's, to look at the rows."""
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


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
        statements: list[str] = []
        assert backend.engine is not None

        @sa.event.listens_for(backend.engine.sync_engine, "before_cursor_execute")
        def count(conn: object, cursor: object, statement: str, *_: object) -> None:
            statements.append(statement)

        report = await cp.resume("thread")
        assert report.checkpoint.version == 1
        assert len([statement for statement in statements if "cubepi_" in statement]) == 1
