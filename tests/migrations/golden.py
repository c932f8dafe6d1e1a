"""Databases that cubepi 0.7.0 wrote, one of each kind, and what a reader must get back from them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgpack
import sqlalchemy as sa

from migrations.databases import Place
from threadkeep import TextContent, UserMessage
from threadkeep.testing.samples import same

FOLDER = Path(__file__).parents[1] / "golden" / "v3"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
WITH_MESSAGES = [thread_id for thread_id, thread in EXPECTED.items() if thread["messages"]]
ASKED = next(thread["pending"][0] for thread in EXPECTED.values() if thread["pending"])
SINCE_THEN = {"run_id": None, "message_id": None}
"""What messages have now, and had not when these were written."""
ONLY_OF_MYSQL = "utf8mb4_0900_ai_ci"


async def put_v3(place: Place, *, partitioned: bool = True) -> None:
    """Make the empty database one that cubepi wrote. On MySQL, without its 64 partitions it is there in a moment."""
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
            if not partitioned:
                statement = re.sub(r"/\*!50100 PARTITION BY .*?\*/", "", statement)
            if statement:
                await conn.exec_driver_sql(statement.replace("%", "%%"))


async def add_thread(
    place: Place, thread_id: str, thread: dict[str, Any], *, question_id: str | None = None, run_id: str | None = None
) -> None:
    """Add a thread to a v3 database, as cubepi would. It has a pending request if there is a question."""
    messages, extra, pending = thread["messages"], thread["extra"], None
    if question_id is not None:
        pending = {**ASKED, "thread_id": thread_id, "question_id": question_id}

    def insert(conn: sa.Connection) -> None:
        if place.kind == "sqlite":
            for message in messages:
                conn.execute(
                    sa.insert(_table("messages", message_json=sa.JSON)),
                    {"thread_id": thread_id, "message_json": message},
                )
            conn.execute(
                sa.insert(_table("thread_extra", extra_json=sa.JSON)), {"thread_id": thread_id, "extra_json": extra}
            )
            if pending:
                row = {"thread_id": thread_id, "request_json": pending, "run_id": run_id}
                conn.execute(sa.insert(_table("thread_pending_request", request_json=sa.JSON, run_id=sa.Text)), row)
            return
        threads = _table("cubepi_threads", extra=sa.JSON, pending_request=sa.JSON(none_as_null=True), run_id=sa.Text)
        row = {"thread_id": thread_id, "extra": extra, "pending_request": pending, "run_id": run_id}
        conn.execute(sa.insert(threads), row)
        columns = _table("cubepi_messages", seq=sa.BigInteger, role=sa.Text, metadata=sa.JSON, payload=sa.LargeBinary)
        for seq, message in enumerate(messages, 1):
            role = message["role"].removesuffix("_result")
            key = {"thread_id": thread_id, "seq": seq}
            written = {"role": role, "metadata": message["metadata"], "payload": msgpack.packb(message)}
            conn.execute(sa.insert(columns), key | written)

    await place.run(insert)


def _table(name: str, **columns: Any) -> sa.TableClause:
    typed = [sa.column(column, type_) for column, type_ in columns.items()]
    return sa.table(name, sa.column("thread_id", sa.Text), *typed)


async def prove_that_nothing_was_lost(place: Place) -> None:
    """Every thread reads back as cubepi would read it, and is a thread like any other."""
    async with place.checkpointer() as cp:
        records = {record.thread_id: record for record in await cp.threads.list(limit=1000)}
        assert set(records) == set(EXPECTED)
        for thread_id, expected in EXPECTED.items():
            data = await cp.load(thread_id)
            written = [{**message, **SINCE_THEN} for message in expected["messages"]]
            assert same([message.model_dump(mode="json") for message in data.messages], written), thread_id
            assert same(data.extra, expected["extra"]), thread_id
            assert data.parent_thread_id is None
            assert records[thread_id].last_seq == len(written)
            log = await cp.messages.list(thread_id)
            assert [record.message_id for record in log] == [f"#{seq}" for seq in range(1, len(written) + 1)], thread_id
            assert [record.message for record in log] == await cp.context.load(thread_id) == data.messages
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
            log = await cp.messages.list(thread_id)
            for each in (log[0], log[-1]):
                assert await cp.messages.get(thread_id, each.message_id) == each

            await cp.fork(thread_id, f"fork of {thread_id}", after_run_id="new run")
            forked = await cp.load(f"fork of {thread_id}")
            assert forked.messages == [*before, _said("hello", "new run")]
            copied = await cp.messages.list(f"fork of {thread_id}")
            assert [each.message_id for each in copied] == [each.message_id for each in log[:-1]]
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
        rows: Any = conn.execute(sa.select(*map(sa.column, columns)).select_from(sa.table(table)))
        found[table] = (columns, sorted(repr(tuple(row)) for row in rows))
    return found
