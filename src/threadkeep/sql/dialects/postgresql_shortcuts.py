"""The writes of every turn, each in one statement: PostgreSQL's WITH may write, and in autocommit mode that is all.

A shortcut does the whole of an operation, or its statement fails and has done nothing: by a key that is taken, or on
purpose, by a division by zero, wherever the operation would refuse or would have to look again. Then the operation
itself is run, in a transaction, and knows why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from threadkeep import rules
from threadkeep.message_ids import SEQ_DIGITS
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.postgresql_rows import MOST_BYTES, ListOf, Lists
from threadkeep.sql.dialects.shortcuts import COLUMNS, SavingExtra, require_plain, run_ids_of
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import messages, runs, threads

MOST_ROWS = 1_000
"""More, or more bytes, are sent in pieces, and that takes a transaction."""


# With their types: in a SELECT the server would take them for texts.
_THREAD_ID = sa.bindparam("thread", type_=sa.Text)
_RUN_ID = sa.bindparam("run", type_=sa.Text)
_STEM = sa.bindparam("stem", type_=sa.Text)
_COUNT = sa.bindparam("count", type_=sa.BigInteger)
NOW = sa.bindparam("now", type_=threads.c.created_at.type)
_LIMIT = sa.bindparam("limit", type_=sa.Text)
_ZERO, _ONE = sa.literal_column("0", sa.Integer), sa.literal_column("1", sa.Integer)
_NOTHING = sa.literal_column("'{}'::jsonb", JSONB)

# It holds for this statement alone, and from here on: the server looks at it when there is a lock to wait for.
_BOUNDED = sa.select(sa.func.set_config(sa.literal_column("'lock_timeout'"), _LIMIT, sa.true()).label("waiting")).cte(
    "bounded"
)


def _required(condition: Any) -> sa.ColumnElement[bool]:
    """True, or the statement fails. (A plain 1 / 0 would fail while it is planned, whatever the condition.)"""
    return _ONE // sa.cast(condition, sa.Integer) == _ONE


def _taking(count: Any) -> Any:
    """The upsert that creates the thread, locks it, and takes its next seqs."""
    columns = ("thread_id", "extra", "last_seq", "created_at", "updated_at")
    row = sa.select(_THREAD_ID, sa.literal_column("'{}'"), count, NOW, NOW).select_from(_BOUNDED)
    upsert = insert(threads).from_select([*columns], row, include_defaults=False)
    return upsert.on_conflict_do_update(
        index_elements=[threads.c.thread_id], set_={"last_seq": threads.c.last_seq + count, "updated_at": NOW}
    )


# ---- append ---------------------------------------------------------------------------------------------

_COUNTERS = (threads.c.last_seq, threads.c.last_completion_seq)
_THREAD = _taking(_COUNT).returning(*_COUNTERS, threads.c.deleted_at, threads.c.created_at).cte("thread")


def _before(column: sa.Column[Any]) -> Any:
    return sa.select(column).where(threads.c.thread_id == _THREAD_ID).scalar_subquery()


def made_id(stem: Any, seq: Any) -> sa.ColumnElement[str]:
    """`message_ids.made_id`, where the seq is known to the server alone."""
    digits = sa.func.lpad(sa.func.to_hex(seq), sa.literal_column(f"{SEQ_DIGITS}"), sa.literal_column("'0'"))
    return sa.type_coerce(stem, sa.Text) + sa.type_coerce(digits, sa.Text)


def _mirror(text: Any) -> sa.ColumnElement[Any]:
    """The mirror of a message's metadata; null for that of most, which say nothing."""
    return sa.case((text.is_(None), _NOTHING), else_=sa.cast(text, JSONB))


def _appending(given: Mapping[str, Any], place: Any, source: Any, run_ids: Any) -> Prepared:
    """The statement that appends what is given, and brings back the last seq."""
    is_complete = sa.exists().where(
        runs.c.thread_id == _THREAD_ID, runs.c.run_id == run_ids, runs.c.completed_at.is_not(None)
    )
    may_append = sa.and_(
        _THREAD.c.deleted_at.is_(None),
        ~is_complete,
        # This statement sees the runs as they were before it waited for the lock. What tells that none has been
        # completed since is the counter, which it sees both ways; and it must be the same thread's, which may have been
        # deleted and made again.
        _THREAD.c.last_completion_seq == sa.func.coalesce(_before(threads.c.last_completion_seq), _ZERO),
        _THREAD.c.created_at == sa.func.coalesce(_before(threads.c.created_at), _THREAD.c.created_at),
    )
    values = {**given, "metadata": _mirror(given["metadata"])}
    seq = _THREAD.c.last_seq - _COUNT + place
    row = sa.select(_THREAD_ID, seq, NOW, made_id(_STEM, seq), *(values[name] for name in COLUMNS))
    appended = insert(messages).from_select(
        ["thread_id", "seq", "created_at", "message_id", *COLUMNS],
        row.select_from(source).where(_required(may_append)),
        include_defaults=False,
    )
    return Prepared(sa.select(_THREAD.c.last_seq).add_cte(appended.cte("appended")))


TYPES: dict[str, Any] = {**dict.fromkeys(COLUMNS, sa.Text()), "format": sa.SmallInteger(), "payload": sa.LargeBinary()}
_ONE_ROW: dict[str, Any] = {name: sa.bindparam(name, type_=type_) for name, type_ in TYPES.items()}
_APPEND_ONE = _appending(_ONE_ROW, _ONE, _THREAD, _ONE_ROW["run_id"])

_LISTS = Lists(**TYPES)
_RUN_IDS = sa.bindparam("runs", type_=ListOf(sa.Text))
_APPEND = _appending(_LISTS.columns, _LISTS.place, _THREAD.join(_LISTS.rows, sa.true()), sa.any_(_RUN_IDS))


def _columns_of(rows: Sequence[MessageRow]) -> dict[str, list[Any]]:
    """What the statements are given of messages, column by column."""
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    columns["metadata"] = [None if text == "{}" else text for text in columns["metadata"]]
    return columns


def append(conn: sa.Connection, limit: str, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
    """`messages.append`, unless the host gave ids or wants to search, or there is much to write."""
    require_plain(rows, MOST_ROWS, MOST_BYTES)
    values = {"limit": limit, "thread": thread_id, "count": len(rows), "now": rules.utc_now(), "stem": stem}
    if len(rows) == 1:
        # Alone: the driver looks long at every element of a list.
        ((last_seq,),) = _APPEND_ONE.rows(conn, {**values, **{name: getattr(rows[0], name) for name in COLUMNS}})
    else:
        lists = _LISTS.bound(_columns_of(rows))
        ((last_seq,),) = _APPEND.rows(conn, {**values, **lists, "runs": run_ids_of(rows)})
    return int(last_seq)


# ---- runs -----------------------------------------------------------------------------------------------

_CLAIMING = _taking(_ZERO).returning(threads.c.deleted_at).cte("thread")
_CLAIM = Prepared(
    insert(runs).from_select(
        ["thread_id", "run_id", "claimed_at"],
        sa.select(_THREAD_ID, _RUN_ID, NOW).select_from(_CLAIMING).where(_required(_CLAIMING.c.deleted_at.is_(None))),
        include_defaults=False,
    )
)


def claim_run(conn: sa.Connection, limit: str, thread_id: str, run_id: str) -> None:
    """`runs.claim_run`. A second claim fails by its key."""
    _CLAIM.count(conn, {"limit": limit, "thread": thread_id, "run": run_id, "now": rules.utc_now()})


_COMPLETING = (
    sa.update(threads)
    .where(threads.c.thread_id == _THREAD_ID, threads.c.deleted_at.is_(None), _BOUNDED.c.waiting.is_not(None))
    .values(last_completion_seq=threads.c.last_completion_seq + _ONE, updated_at=NOW)
    .returning(threads.c.last_completion_seq)
    .cte("thread")
)
_COMPLETED = (
    sa.update(runs)
    .where(
        runs.c.thread_id == _THREAD_ID,
        runs.c.run_id == _RUN_ID,
        runs.c.completed_at.is_(None),
        _COMPLETING.c.last_completion_seq.is_not(None),
    )
    .values(completed_at=NOW, completion_seq=_COMPLETING.c.last_completion_seq)
    .returning(runs.c.completion_seq)
    .cte("run")
)
_COMPLETE = Prepared(sa.select(_required(sa.func.count())).select_from(_COMPLETED))


def mark_run_complete(conn: sa.Connection, limit: str, thread_id: str, run_id: str) -> None:
    """`runs.mark_run_complete`, for a run that is open."""
    _COMPLETE.rows(conn, {"limit": limit, "thread": thread_id, "run": run_id, "now": rules.utc_now()})


# ---- extra ----------------------------------------------------------------------------------------------

_MERGED = sa.bindparam("merged", type_=sa.Text)
_CREATE = Prepared(
    insert(threads)
    .from_select(
        ["thread_id", "extra", "created_at", "updated_at"],
        sa.select(_THREAD_ID, _MERGED, NOW, NOW).select_from(_BOUNDED),
        include_defaults=False,
    )
    .on_conflict_do_nothing()
)
_REPLACE = Prepared(
    sa.update(threads)
    .where(
        threads.c.thread_id == _THREAD_ID,
        threads.c.extra == sa.bindparam("before", type_=sa.Text),
        threads.c.deleted_at.is_(None),
        _BOUNDED.c.waiting.is_not(None),
    )
    .values(extra=_MERGED, updated_at=NOW)
)

save_extra = SavingExtra(_CREATE, _REPLACE, MOST_BYTES)
