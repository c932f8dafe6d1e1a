"""Appends of several callers in one statement of PostgreSQL.

It takes the threads that it can lock at once, and leaves the others: those that somebody else has locked, that are not
there yet, or whose messages the operation would refuse. Each of their callers tries alone, waits, and is told why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from threadkeep import rules
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.postgresql_shortcuts import BOUNDED, MOST_BYTES, MOST_ROWS, NOW, TYPES, ListOf
from threadkeep.sql.dialects.shortcuts import COLUMNS, is_plain
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import messages, runs, threads

_GIVEN_TYPES: dict[str, Any] = {"place": sa.BigInteger, **TYPES}
_GIVEN_COLUMNS = ("thread_id", "place", *COLUMNS)
_UNNESTED = (
    sa.func.unnest(*(sa.bindparam(name, type_=ListOf(_GIVEN_TYPES.get(name, sa.Text))) for name in _GIVEN_COLUMNS))
    .table_valued(*_GIVEN_COLUMNS)
    .render_derived()
)
_GIVEN = sa.select(*_UNNESTED.c).cte("given")
_ASKED = sa.select(_GIVEN.c.thread_id, sa.func.count().label("count")).group_by(_GIVEN.c.thread_id).cte("asked")

# As it is now, whatever this statement sees of it elsewhere.
_LOCKED = (
    sa.select(threads.c.last_completion_seq)
    .where(threads.c.thread_id == _ASKED.c.thread_id, threads.c.deleted_at.is_(None))
    .with_for_update(skip_locked=True)
    .lateral("locked")
)
_SEEN = threads.alias("seen")
_SEEN_COMPLETION_SEQ = (
    sa.select(_SEEN.c.last_completion_seq).where(_SEEN.c.thread_id == _ASKED.c.thread_id).scalar_subquery()
)
_IS_COMPLETE = sa.exists().where(
    _GIVEN.c.thread_id == _ASKED.c.thread_id,
    runs.c.thread_id == _GIVEN.c.thread_id,
    runs.c.run_id == _GIVEN.c.run_id,
    runs.c.completed_at.is_not(None),
)
_FREE = (
    sa.select(_ASKED.c.thread_id, _ASKED.c.count)
    .select_from(_ASKED.join(_LOCKED, sa.true()))
    .where(
        sa.select(BOUNDED.c.waiting).scalar_subquery().is_not(None),
        # The runs are seen as they were when the statement began. None has been completed since.
        _LOCKED.c.last_completion_seq == _SEEN_COMPLETION_SEQ,
        ~_IS_COMPLETE,
    )
    .cte("free")
)
_ROWS_TAKEN = insert(threads).from_select(
    ["thread_id", "extra", "last_seq", "created_at", "updated_at"],
    sa.select(_FREE.c.thread_id, sa.literal_column("'{}'"), _FREE.c.count, NOW, NOW),
    include_defaults=False,
)
# An upsert that only ever updates: it finds each row by its key, whatever the server knows of the table's size.
_TAKEN = (
    _ROWS_TAKEN.on_conflict_do_update(
        index_elements=[threads.c.thread_id],
        set_={"last_seq": threads.c.last_seq + _ROWS_TAKEN.excluded.last_seq, "updated_at": NOW},
    )
    .returning(threads.c.thread_id, threads.c.last_seq)
    .cte("taken")
)
_VALUES = {**{name: _GIVEN.c[name] for name in COLUMNS}, "metadata": sa.cast(_GIVEN.c.metadata, JSONB)}
_APPEND_EACH = Prepared(
    insert(messages)
    .from_select(
        ["thread_id", "seq", "created_at", *COLUMNS],
        sa.select(
            _GIVEN.c.thread_id,
            _TAKEN.c.last_seq - _FREE.c.count + _GIVEN.c.place,
            NOW,
            *(_VALUES[name] for name in COLUMNS),
        ).select_from(
            _GIVEN.join(_TAKEN, _TAKEN.c.thread_id == _GIVEN.c.thread_id).join(
                _FREE, _FREE.c.thread_id == _GIVEN.c.thread_id
            )
        ),
        include_defaults=False,
    )
    .returning(messages.c.thread_id)
)


def append_each(conn: sa.Connection, limit: str, calls: Sequence[tuple[str, Sequence[MessageRow]]]) -> set[int]:
    """Make those of the calls that can be made now, and say which. Two on the same thread are made both, or neither."""
    chosen = _chosen(calls)
    given: dict[str, list[Any]] = {name: [] for name in _GIVEN_COLUMNS}
    places: Counter[str] = Counter()
    for number in chosen:
        thread_id, rows = calls[number]
        for row in rows:
            places[thread_id] += 1
            given["thread_id"].append(thread_id)
            given["place"].append(places[thread_id])
            for name in COLUMNS:
                given[name].append(getattr(row, name))
    made = {thread_id for (thread_id,) in _APPEND_EACH.rows(conn, {**given, "limit": limit, "now": rules.utc_now()})}
    return {number for number in chosen if calls[number][0] in made}


def _chosen(calls: Sequence[tuple[str, Sequence[MessageRow]]]) -> list[int]:
    """As many as fit into one statement."""
    chosen, count, size = [], 0, 0
    for number, (_, rows) in enumerate(calls):
        its_size = sum(len(row.payload) for row in rows)
        if is_plain(rows) and count + len(rows) <= MOST_ROWS and size + its_size <= MOST_BYTES:
            chosen.append(number)
            count += len(rows)
            size += its_size
    return chosen
