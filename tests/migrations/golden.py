"""Databases that cubepi 0.7.0 wrote, one of each kind, and what a reader must get back from them."""

import json
import shutil
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from migrations.databases import Place
from threadkeep import TextContent, UserMessage
from threadkeep.testing.samples import same

FOLDER = Path(__file__).parents[1] / "golden" / "v3"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
WITH_MESSAGES = [thread_id for thread_id, thread in EXPECTED.items() if thread["messages"]]
ONLY_OF_MYSQL = "utf8mb4_0900_ai_ci"


async def put_v3(place: Place) -> None:
    """Make the empty database one that cubepi wrote."""
    if place.kind == "sqlite":
        shutil.copyfile(FOLDER / "sqlite.db", place.path)
        return
    async with place.engine() as engine, engine.begin() as conn:
        if place.kind == "postgresql":
            raw: Any = (await conn.get_raw_connection()).driver_connection
            await raw.execute((FOLDER / "postgresql.sql").read_text())
            return
        for statement in (FOLDER / "mysql.sql").read_text().splitlines():
            if place.kind == "mariadb":
                statement = statement.replace(ONLY_OF_MYSQL, "utf8mb4_general_ci")
            if statement:
                await conn.exec_driver_sql(statement.replace("%", "%%"))


async def prove_that_nothing_was_lost(place: Place) -> None:
    """Every thread reads back as cubepi would read it, and is a thread like any other."""
    async with place.checkpointer() as cp:
        records = {record.thread_id: record for record in await cp.threads.list(limit=1000)}
        assert set(records) == set(EXPECTED)
        for thread_id, expected in EXPECTED.items():
            data = await cp.load(thread_id)
            written = [{**message, "run_id": None} for message in expected["messages"]]
            assert same([message.model_dump(mode="json") for message in data.messages], written), thread_id
            assert same(data.extra, expected["extra"]), thread_id
            assert data.parent_thread_id is None
            assert records[thread_id].last_seq == len(written)
            pending = await cp.load_pending(thread_id)
            if expected["pending"] is None:
                assert pending is None, thread_id
            else:
                request, run_id = pending
                assert same([request.model_dump(mode="json"), run_id], expected["pending"]), thread_id


async def prove_that_legacy_threads_go_on(place: Place) -> None:
    """Appends continue at the right seq, and a new run can be forked with what came before it."""
    async with place.checkpointer() as cp:
        for thread_id in WITH_MESSAGES[:3]:
            before = (await cp.load(thread_id)).messages
            await cp.claim_run(thread_id, "new run")
            await cp.append(thread_id, [_said("hello", "new run")])
            await cp.mark_run_complete(thread_id, "new run")
            await cp.append(thread_id, [_said("after it", "another")])
            record = await cp.threads.get(thread_id)
            assert (record.last_seq, record.last_completion_seq) == (len(before) + 2, 1)

            await cp.fork(thread_id, f"fork of {thread_id}", after_run_id="new run")
            forked = await cp.load(f"fork of {thread_id}")
            assert forked.messages == [*before, _said("hello", "new run")]
            assert (await cp.threads.get(f"fork of {thread_id}")).forked_at_seq == len(before) + 1
            await cp.append(f"fork of {thread_id}", [_said("onwards", None)])
            assert (await cp.load(f"fork of {thread_id}")).messages == [*forked.messages, _said("onwards", None)]
            assert await cp.threads.delete(thread_id)  # which has a fork: cubepi could not


def _said(text: str, run_id: str | None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id, timestamp=1.5)


def everything(conn: sa.Connection) -> dict[str, Any]:
    """Every row of every table, as text, with the columns' names. Views are there by their names."""
    seen = sa.inspect(conn)
    found: dict[str, Any] = {"views": sorted(seen.get_view_names())}
    for table in seen.get_table_names():
        columns = [column["name"] for column in seen.get_columns(table)]
        rows = conn.execute(sa.select(*map(sa.column, columns)).select_from(sa.table(table)))
        found[table] = (columns, sorted(repr(tuple(row)) for row in rows))
    return found
