"""Messages: appending them, and loading a whole thread."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.records import MessageRow, StoredMessage, StoredThread
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations import runs
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import messages, threads

# One statement, so one snapshot on every server: the thread itself comes as a row of seq 0.
_LOAD = sa.union_all(
    sa.select(
        sa.literal_column("0").label("seq"),
        sa.literal_column("0").label("format"),
        sa.null().label("payload"),
        threads.c.extra,
        threads.c.parent_thread_id,
    ).where(threads.c.thread_id == THREAD),
    sa.select(messages.c.seq, messages.c.format, messages.c.payload, sa.null(), sa.null()).where(
        messages.c.thread_id == THREAD
    ),
)


def append(conn: sa.Connection, hooks: Hooks, thread_id: str, rows: Sequence[MessageRow]) -> None:
    """Add the rows at the next seqs."""
    now = rules.utc_now()
    last_seq = hooks.allocate(conn, thread_id, len(rows), now)
    named = {row.run_id for row in rows if row.run_id is not None}
    rules.refuse_completed(thread_id, runs.completed_among(conn, thread_id, sorted(named)))
    first_seq = last_seq - len(rows) + 1
    conn.execute(
        sa.insert(messages),
        [
            {
                "thread_id": thread_id,
                "seq": seq,
                "role": row.role,
                "run_id": row.run_id,
                "format": row.format,
                "payload": row.payload,
                "metadata": row.metadata,
                "created_at": now,
            }
            for seq, row in enumerate(rows, first_seq)
        ],
    )


def load(conn: sa.Connection, hooks: Hooks, thread_id: str) -> StoredThread | None:
    """The whole thread, or None."""
    rows = conn.execute(_LOAD, {"thread": thread_id}).all()
    if not rows:
        return None
    # Sorting here costs nothing on rows that come in order, and a server that sorts would carry the payloads along.
    thread, *stored = sorted(rows, key=attrgetter("seq"))
    return StoredThread(
        parent_thread_id=thread.parent_thread_id,
        extra=thread.extra,
        messages=[StoredMessage(row.seq, row.format, bytes(row.payload)) for row in stored],
    )
