"""The append of every turn on SQLite: its statements in one go, straight to the driver.

What `operations.messages.append` does around them, for all servers and for all that messages may bring along, took as
long as SQLite takes for the statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from threadkeep import rules
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.base import taking
from threadkeep.sql.message_rows import placed
from threadkeep.sql.parameters import RUN, THREAD
from threadkeep.sql.prepared import on_cursor
from threadkeep.sql.tables import messages, runs, threads

_BY_NAME: Any = sqlite.dialect(paramstyle="named")
_BY_PLACE: Any = sqlite.dialect()
_as_stored: Any = threads.c.updated_at.type.dialect_impl(_BY_NAME).bind_processor(_BY_NAME)

_TAKE = str(taking(sqlite.insert, threads.c.last_seq).compile(dialect=_BY_NAME))
_COMPLETED = str(
    sa.select(runs.c.run_id)
    .where(runs.c.thread_id == THREAD, runs.c.run_id == RUN, runs.c.completed_at.is_not(None))
    .compile(dialect=_BY_NAME)
)
_INSERT = str(sa.insert(messages).compile(dialect=_BY_PLACE))


def append(conn: sa.Connection, thread_id: str, rows: Sequence[MessageRow], stem: str, run_id: str | None) -> int:
    """Add rows of one run, or of none, at the next seqs; return the last of them."""
    now = _as_stored(rules.utc_now())

    def say(cursor: Any) -> int:
        ((deleted, last_seq),) = cursor.execute(_TAKE, {"thread": thread_id, "count": len(rows), "now": now}).fetchall()
        rules.refuse_deleted(thread_id, deleted)
        if run_id is not None:
            completed = cursor.execute(_COMPLETED, {"thread": thread_id, "run": run_id}).fetchall()
            rules.refuse_completed(thread_id, (completed_id for (completed_id,) in completed))
        cursor.executemany(_INSERT, placed(thread_id, rows, stem, last_seq - len(rows) + 1, now))
        return int(last_seq)

    return on_cursor(conn, "the statements of an append", say)
