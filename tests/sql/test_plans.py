"""What PostgreSQL does with statements that it has planned once for all values, as it does after some executions."""

import json
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from servers import fresh_database
from threadkeep import TextContent, UserMessage, open_checkpointer, upgrade
from threadkeep.sql.operations import messages, parts, runs

LOOKUPS = {
    "places": (messages._TAKEN[0], "thread", "ids"),
    "summaries": (messages._TAKEN[1], "thread", "ids"),
    "parts": (parts._OF, "thread", "ids"),
    "runs": (runs._COMPLETED_AMONG, "thread", "runs"),
}


@pytest.mark.parametrize("name", LOOKUPS)
async def test_rows_of_a_thread_are_not_compared_with_every_id_that_is_asked_for(name: str) -> None:
    """Only here: no other server keeps a plan that was made for other values."""
    statement, thread, ids = LOOKUPS[name]
    compiled = statement.compile(dialect=asyncpg.dialect())  # type: ignore[no-untyped-call]
    assert compiled.positiontup == [thread, ids]
    with fresh_database("postgresql") as url:
        await upgrade(url)
        async with open_checkpointer(url) as cp:
            many = [UserMessage(content=[TextContent(text="x")], message_id=f"id-{number}") for number in range(2_000)]
            await cp.append("thread", many)
        engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+asyncpg"))
        async with engine.connect() as conn:
            await conn.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
            await conn.exec_driver_sql(f"PREPARE looking_up (text, text[]) AS {compiled}")
            explained = await conn.exec_driver_sql("EXPLAIN (FORMAT JSON) EXECUTE looking_up ('thread', '{id-1}')")
            (plan,) = explained.scalar_one()
        await engine.dispose()
    assert "ANY" not in json.dumps(conditions(plan["Plan"]))


def conditions(node: dict[str, Any]) -> list[Any]:
    """How a plan's rows are filtered, or joined."""
    own = [node[kind] for kind in ("Filter", "Join Filter") if kind in node]
    return own + [found for child in node.get("Plans", ()) for found in conditions(child)]
