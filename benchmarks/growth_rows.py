"""What the databases of `growth.py` hold. Long threads come in by `append`, and what would take too long, in bulk."""

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import sqlalchemy as sa
from context_window import STAYED, WINDOW, gather_statistics
from transcripts import RUN, answer, messages_of_run, run_id_of, transcript

from threadkeep.codec import Codec
from threadkeep.labels import labels_of
from threadkeep.message_ids import made_id, new_stem
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import engines, tables

Advance = Callable[[int], None]
Rows = dict[sa.Table, list[dict[str, Any]]]

RARE = {"team": "the first one"}
COMMON = {"tier": "free"}
FEW_OF_THEM = 60
"""As many have the parent, the rare metadata and the status "failed", in every database, and they are the oldest."""
COMMON_SHARE = 4
"""One thread of so many has the common metadata."""
_CODEC = Codec()
_OF_A_ROW = ("role", "run_id", "format", "payload", "metadata")
"""What a message's row has from the codec."""
_BATCH = 1_000
_THREADS_AT_ONCE = 2_000


# ---- one thread -----------------------------------------------------------------------------------------


async def fill(cp: Any, url: str, thread: str, count: int, advance: Advance) -> list[str]:
    """A thread of so many messages, the last run of which is open. Returns some of their ids."""
    messages, ids = transcript(thread, count), []
    while batch := list(islice(messages, _BATCH)):
        ids += await cp.messages.append(thread, batch)
        advance(len(batch))
    await on_connection(url, lambda conn: complete_all_but_the_last(conn, thread, -(-count // RUN)))
    return random.Random(7).sample(ids, min(len(ids), 500))  # noqa: S311 - nobody has to guess them


def complete_all_but_the_last(conn: sa.Connection, thread: str, count: int) -> None:
    """What `claim_run` and `mark_run_complete` leave behind, for all runs at once."""
    now = datetime.now(UTC)
    completed = count - 1
    rows = [
        {
            "thread_id": thread,
            "run_id": run_id_of(thread, number),
            "claimed_at": now + timedelta(microseconds=number),
            "completed_at": now + timedelta(microseconds=number) if number < completed else None,
            "completion_seq": number + 1 if number < completed else None,
        }
        for number in range(count)
    ]
    conn.execute(sa.insert(tables.runs), rows)
    its_row = sa.update(tables.threads).where(tables.threads.c.thread_id == thread)
    conn.execute(its_row.values(last_completion_seq=completed))


def open_run_of(thread: str, count: int) -> str:
    return run_id_of(thread, -(-count // RUN) - 1)


async def compact(cp: Any, thread: str) -> None:
    """Leave so many items in the window: a few old messages, one summary for most of them, the newest."""
    items = await cp.context.items(thread)
    later = WINDOW - STAYED - 1
    await cp.context.swap(thread, items[STAYED : len(items) - later], answer("summary"))
    if len(left := await cp.context.items(thread)) != WINDOW:
        raise RuntimeError(f"{len(left)} items are in the window, and not {WINDOW}")


async def add_children(url: str, parent: str, count: int = WINDOW) -> None:
    """Sub-threads, without messages."""
    rows = [_thread(f"{parent}-child-{number}", _long_ago(number), parent) for number in range(count)]
    await on_connection(url, lambda conn: insert(conn, {tables.threads: rows}))


# ---- other threads --------------------------------------------------------------------------------------


async def add_others(url: str, count: int, parent: str, advance: Advance) -> None:
    """Threads with a completed run of one or two messages, as many processes would have made them: in no order."""
    for first in range(0, count, _THREADS_AT_ONCE):
        numbers = range(first, min(first + _THREADS_AT_ONCE, count))
        await on_connection(url, lambda conn, numbers=numbers: insert(conn, others(numbers, parent)))
        advance(len(numbers))


def others(numbers: range, parent: str) -> Rows:
    rows: Rows = {table: [] for table in (tables.threads, tables.messages, tables.runs, tables.thread_labels)}
    for number in numbers:
        thread, at, is_early = uuid.uuid4().hex, _long_ago(number), number < FEW_OF_THEM
        metadata = {"number": number, **(RARE if is_early else {}), **(COMMON if number % COMMON_SHARE == 0 else {})}
        run = run_id_of(thread, 0)
        spoken = list(islice(messages_of_run(run), 1 + number % 2))
        row = _thread(thread, at, parent if is_early else None)
        row |= {"last_seq": len(spoken), "last_completion_seq": 1, "status": "failed" if is_early else "active"}
        rows[tables.threads].append({**row, "metadata": json.dumps(metadata)})
        its_own = {"thread_id": thread, "created_at": at}
        rows[tables.thread_labels] += [{**its_own, "label": label} for label in labels_of(metadata)]
        rows[tables.runs].append(
            {"thread_id": thread, "run_id": run, "claimed_at": at, "completed_at": at, "completion_seq": 1}
        )
        stem = new_stem()
        rows[tables.messages] += [
            {"thread_id": thread, "seq": seq, "created_at": at, "message_id": made_id(stem, seq)}
            | {name: getattr(row, name) for name in _OF_A_ROW}
            for seq, row in enumerate(_CODEC.encode_messages(spoken), 1)
        ]
    return rows


def insert(conn: sa.Connection, rows: Rows) -> None:
    for table, its_rows in rows.items():
        conn.execute(sa.insert(table), its_rows)


def _thread(thread: str, at: datetime, parent: str | None) -> dict[str, Any]:
    return {
        "thread_id": thread,
        "parent_thread_id": parent,
        "extra": "{}",
        "created_at": at,
        "updated_at": at,
    }


def _long_ago(number: int) -> datetime:
    """The lower the number, the older."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


# ---- afterwards -----------------------------------------------------------------------------------------


async def settle(kind: str, url: str) -> None:
    """Do now what the server would do by itself in the middle of our measurements."""
    await on_connection(url, gather_statistics)
    if kind == "postgresql":
        engine = engines.postgresql_engine(url, **engines.MIGRATING, isolation_level="AUTOCOMMIT")
        await on_connection(engine, lambda conn: conn.exec_driver_sql("VACUUM ANALYZE"))
    if kind == "sqlite":
        await on_connection(url, empty_the_log)


def empty_the_log(conn: sa.Connection) -> None:
    """Copy all of it into the file: whoever appends next would have to."""
    conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
