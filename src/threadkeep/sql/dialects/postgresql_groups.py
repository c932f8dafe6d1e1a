"""The writes of every turn, for several callers in one statement of PostgreSQL.

A group takes the threads that it can lock at once, and leaves the others: those that somebody else has locked, that are
not there yet, or for which the operation would refuse. Each of their callers tries alone, waits, and is told why.

What a statement sees was there when it began, and what it locks is as it is now. So where it relies on rows that the
lock protects, it compares the thread's counter both ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from threadkeep import rules
from threadkeep.sql.dialects.postgresql_rows import MOST_BYTES, ListOf
from threadkeep.sql.dialects.postgresql_shortcuts import MOST_ROWS, NOW, TYPES, made_id
from threadkeep.sql.dialects.shortcuts import COLUMNS, AppendCall, merged_or_none, that_fit
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import messages, runs, threads

_TYPES: dict[str, Any] = {"place": sa.BigInteger, **TYPES}


def _given(*columns: str) -> sa.CTE:
    """What the calls brought, column by column."""
    lists = (sa.bindparam(name, type_=ListOf(_TYPES.get(name, sa.Text))) for name in columns)
    unnested = sa.func.unnest(*lists).table_valued(*columns).render_derived()
    return sa.select(*unnested.c).cte("given")


def _locked(asked: sa.CTE, column: sa.Column[Any]) -> sa.FromClause:
    """The thread's row, if it can be locked now and was not deleted softly."""
    return (
        sa.select(column)
        .where(threads.c.thread_id == asked.c.thread_id, threads.c.deleted_at.is_(None))
        .with_for_update(skip_locked=True)
        .lateral("locked")
    )


def _free(asked: sa.CTE, locked: sa.FromClause, *conditions: Any) -> sa.CTE:
    """Those of the asked whose thread this statement has locked, and that meet the conditions."""
    return sa.select(*asked.c).select_from(asked.join(locked, sa.true())).where(*conditions).cte("free")


def _nothing_completed_since(asked: sa.CTE, locked: sa.FromClause) -> Any:
    """The runs are seen as they were when the statement began. None of them has been completed since."""
    seen = threads.alias("seen")
    counter = sa.select(seen.c.last_completion_seq).where(seen.c.thread_id == asked.c.thread_id).scalar_subquery()
    return locked.c.last_completion_seq == counter


def _updated(table: sa.Table, row: Mapping[str, Any], source: Any, changes: Mapping[str, Any]) -> Any:
    """An upsert that only ever updates: it finds each row by its key, whatever the server knows of the table's size."""
    upsert = insert(table).from_select([*row], sa.select(*row.values()).select_from(source), include_defaults=False)
    return upsert.on_conflict_do_update(index_elements=[*table.primary_key], set_=changes)


def _thread(source: Any, last_seq: Any = None) -> dict[str, Any]:
    """A row for such an upsert."""
    row = {"thread_id": source.c.thread_id, "extra": sa.literal_column("'{}'"), "created_at": NOW, "updated_at": NOW}
    return row if last_seq is None else {**row, "last_seq": last_seq}


# ---- append ---------------------------------------------------------------------------------------------

_GIVEN = _given("thread_id", "place", "stem", *COLUMNS)
_ASKED = sa.select(_GIVEN.c.thread_id, sa.func.count().label("count")).group_by(_GIVEN.c.thread_id).cte("asked")
_LOCKED = _locked(_ASKED, threads.c.last_completion_seq)
_IS_COMPLETE = sa.exists().where(
    _GIVEN.c.thread_id == _ASKED.c.thread_id,
    runs.c.thread_id == _GIVEN.c.thread_id,
    runs.c.run_id == _GIVEN.c.run_id,
    runs.c.completed_at.is_not(None),
)
_FREE = _free(_ASKED, _LOCKED, _nothing_completed_since(_ASKED, _LOCKED), ~_IS_COMPLETE)
_EXCLUDED_SEQ = sa.literal_column("excluded.last_seq", sa.BigInteger)
_TAKEN = (
    _updated(
        threads,
        _thread(_FREE, last_seq=_FREE.c.count),
        _FREE,
        {"last_seq": threads.c.last_seq + _EXCLUDED_SEQ, "updated_at": NOW},
    )
    .returning(threads.c.thread_id, threads.c.last_seq)
    .cte("taken")
)
_VALUES = {**{name: _GIVEN.c[name] for name in COLUMNS}, "metadata": sa.cast(_GIVEN.c.metadata, JSONB)}
_SEQ = _TAKEN.c.last_seq - _FREE.c.count + _GIVEN.c.place
_APPEND_EACH = Prepared(
    insert(messages)
    .from_select(
        ["thread_id", "seq", "created_at", "message_id", *COLUMNS],
        sa.select(
            _GIVEN.c.thread_id, _SEQ, NOW, made_id(_GIVEN.c.stem, _SEQ), *(_VALUES[name] for name in COLUMNS)
        ).select_from(
            _GIVEN.join(_TAKEN, _TAKEN.c.thread_id == _GIVEN.c.thread_id).join(
                _FREE, _FREE.c.thread_id == _GIVEN.c.thread_id
            )
        ),
        include_defaults=False,
    )
    .returning(messages.c.thread_id, messages.c.seq)
)


def append_each(conn: sa.Connection, limit: str, calls: Sequence[AppendCall]) -> dict[int, int]:
    """`messages.append` for those that can be made now. Two on the same thread are made both, or neither."""
    chosen = that_fit(calls, MOST_ROWS, MOST_BYTES)
    given: dict[str, list[Any]] = {name: [] for name in _GIVEN.c.keys()}  # noqa: SIM118 - no dict
    count_of: Counter[str] = Counter()
    last_place: dict[int, int] = {}
    for number in chosen:
        thread_id, rows, stem = calls[number]
        for row in rows:
            count_of[thread_id] += 1
            given["thread_id"].append(thread_id)
            given["place"].append(count_of[thread_id])
            given["stem"].append(stem)
            for name in COLUMNS:
                given[name].append(getattr(row, name))
        last_place[number] = count_of[thread_id]
    last_seqs: dict[str, int] = {}
    for thread_id, seq in _done(_APPEND_EACH, conn, given):
        last_seqs[thread_id] = max(seq, last_seqs.get(thread_id, 0))
    of_thread = {number: calls[number][0] for number in chosen}
    return {
        number: last_seqs[thread_id] - count_of[thread_id] + last_place[number]
        for number, thread_id in of_thread.items()
        if thread_id in last_seqs
    }


# ---- runs -----------------------------------------------------------------------------------------------

_CLAIMS = _given("thread_id", "run_id")
_CLAIMABLE = _free(_CLAIMS, _locked(_CLAIMS, threads.c.thread_id))
_CLAIMED = (
    insert(runs)
    .from_select(
        ["thread_id", "run_id", "claimed_at"],
        sa.select(_CLAIMABLE.c.thread_id, _CLAIMABLE.c.run_id, NOW),
        include_defaults=False,
    )
    .on_conflict_do_nothing()
    .returning(runs.c.thread_id)
    .cte("claimed")
)
_CLAIM_EACH = Prepared(
    _updated(threads, _thread(_CLAIMED), _CLAIMED, {"updated_at": NOW}).returning(threads.c.thread_id)
)


def claim_each(conn: sa.Connection, limit: str, calls: Sequence[tuple[str, str]]) -> dict[int, None]:
    """`runs.claim_run` for those that can be made now."""
    return _of_runs(_CLAIM_EACH, conn, calls)


_COMPLETIONS = _given("thread_id", "run_id")
_COMPLETING = _locked(_COMPLETIONS, threads.c.last_completion_seq)
_IS_OPEN = sa.exists().where(
    runs.c.thread_id == _COMPLETIONS.c.thread_id,
    runs.c.run_id == _COMPLETIONS.c.run_id,
    runs.c.completed_at.is_(None),
)
_COMPLETABLE = _free(_COMPLETIONS, _COMPLETING, _nothing_completed_since(_COMPLETIONS, _COMPLETING), _IS_OPEN)
_COUNTED = (
    _updated(
        threads,
        _thread(_COMPLETABLE),
        _COMPLETABLE,
        {"last_completion_seq": threads.c.last_completion_seq + 1, "updated_at": NOW},
    )
    .returning(threads.c.thread_id, threads.c.last_completion_seq)
    .cte("counted")
)
_COMPLETE_EACH = Prepared(
    _updated(
        runs,
        {
            "thread_id": _COMPLETABLE.c.thread_id,
            "run_id": _COMPLETABLE.c.run_id,
            "claimed_at": NOW,
            "completed_at": NOW,
            "completion_seq": _COUNTED.c.last_completion_seq,
        },
        _COMPLETABLE.join(_COUNTED, _COUNTED.c.thread_id == _COMPLETABLE.c.thread_id),
        {"completed_at": NOW, "completion_seq": sa.literal_column("excluded.completion_seq", sa.BigInteger)},
    ).returning(runs.c.thread_id)
)


def complete_each(conn: sa.Connection, limit: str, calls: Sequence[tuple[str, str]]) -> dict[int, None]:
    """`runs.mark_run_complete` for those that can be made now."""
    return _of_runs(_COMPLETE_EACH, conn, calls)


def _of_runs(statement: Prepared, conn: sa.Connection, calls: Sequence[tuple[str, str]]) -> dict[int, None]:
    chosen = _first_of_each_thread(calls)
    given = {"thread_id": [*chosen], "run_id": [calls[number][1] for number in chosen.values()]}
    return {chosen[thread_id]: None for (thread_id,) in _done(statement, conn, given)}


def _first_of_each_thread(calls: Sequence[tuple[Any, ...]]) -> dict[str, int]:
    """The number of its call, for each thread. A statement changes a row once."""
    return {thread_id: number for number, (thread_id, *_) in reversed([*enumerate(calls)])}


# ---- extra ----------------------------------------------------------------------------------------------

# One by one, by their key. A plan for a list, made when threads were few, would compare it with each of them.
_SAVED = _given("thread_id")
_EXTRAS = Prepared(
    sa.select(
        _SAVED.c.thread_id,
        sa.select(threads.c.extra).where(threads.c.thread_id == _SAVED.c.thread_id).scalar_subquery(),
    )
)
_CHANGES = _given("thread_id", "before", "merged")
_CHANGING = _locked(_CHANGES, threads.c.extra)
_UNCHANGED = _free(_CHANGES, _CHANGING, _CHANGING.c.extra == _CHANGES.c.before)
_REPLACE_EACH = Prepared(
    _updated(
        threads,
        {**_thread(_UNCHANGED), "extra": _UNCHANGED.c.merged},
        _UNCHANGED,
        {"extra": sa.literal_column("excluded.extra", sa.Text), "updated_at": NOW},
    ).returning(threads.c.thread_id)
)


def save_each(conn: sa.Connection, limit: str, calls: Sequence[tuple[str, str, int]]) -> dict[int, None]:
    """`extras.save_extra` for those that can be made now."""
    chosen = _first_of_each_thread(calls)
    given: dict[str, list[str]] = {"thread_id": [], "before": [], "merged": []}
    size = 0
    for thread_id, before in _EXTRAS.rows(conn, {"thread_id": [*chosen]}):
        if before is None:
            continue  # there is no such thread
        _, changes, max_bytes = calls[chosen[thread_id]]
        merged = merged_or_none(thread_id, before, changes, max_bytes)
        if merged is not None and size + len(before) + len(merged) <= MOST_BYTES:
            size += len(before) + len(merged)
            for name, value in (("thread_id", thread_id), ("before", before), ("merged", merged)):
                given[name].append(value)
    return {chosen[thread_id]: None for (thread_id,) in _done(_REPLACE_EACH, conn, given)}


def _done(statement: Prepared, conn: sa.Connection, given: Mapping[str, list[Any]]) -> Sequence[Any]:
    """What the statement brings back of the threads in which it has done what was asked."""
    return statement.rows(conn, {**given, "now": rules.utc_now()}) if given["thread_id"] else ()
