"""Usage: what each answer took, and the sums of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.records import StoredTotals, UsageRow
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import MESSAGE, THREAD
from threadkeep.sql.tables import threads, usage

_GET = sa.select(*(usage.c[name] for name in UsageRow._fields)).where(
    usage.c.thread_id == THREAD, usage.c.message_id == MESSAGE
)
_SUMMED = [usage.c[name] for name in StoredTotals._fields[2:]]
_HALF = 10**9
"""SQLite's sums end at 64 bits: so what is above a billion and what is below it are summed apart."""
_SUMS = [
    sa.func.sum(half)
    for column in _SUMMED
    for half in ((column - column % sa.literal(_HALF)) // sa.literal(_HALF), column % sa.literal(_HALF))
]


def record(conn: sa.Connection, hooks: Hooks, row: UsageRow) -> UsageRow:
    """Write the row down, in the place of one for the same message."""
    its_model = hooks.lock_or_create(conn, row.thread_id, rules.utc_now(), threads.c.model_id, threads.c.provider_id)
    row = rules.with_model_of_thread(row, *its_model)
    hooks.put(conn, usage, row._asdict())
    return row


def get(conn: sa.Connection, hooks: Hooks, thread_id: str, message_id: str) -> UsageRow | None:
    """What was written down for this message, or None."""
    row = conn.execute(_GET, {"thread": thread_id, "message": message_id}).one_or_none()
    return UsageRow(*row) if row else None


def totals(conn: sa.Connection, hooks: Hooks, thread_id: str, by: str | None) -> list[StoredTotals]:
    """The sums, over the thread or for each value of a column: all rows of a thread are neighbours in the key."""
    key = sa.null() if by is None else usage.c[by]
    statement = sa.select(key.label("of"), sa.func.count(), *_SUMS).where(usage.c.thread_id == THREAD)
    if by is not None:
        statement = statement.group_by(usage.c[by])
    rows = conn.execute(statement, {"thread": thread_id}).all()
    return [StoredTotals(of, count, *_whole(sums)) for of, count, *sums in rows if count]


def _whole(halves: Sequence[Any]) -> Iterator[int]:
    for above, below in zip(halves[::2], halves[1::2], strict=True):
        yield int(above) * _HALF + int(below)  # servers give decimals
