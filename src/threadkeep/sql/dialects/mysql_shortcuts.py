"""The writes of every turn, each in one message to MySQL or MariaDB: a transaction's statements travel together.

A shortcut does the whole of an operation, or one of its statements fails and all is rolled back: by a key that is
taken, or on purpose, by a NULL where none may be, wherever the operation would refuse or would have to look again. Then
the operation itself is run, statement by statement, and knows why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert

from threadkeep import rules
from threadkeep.message_ids import SEQ_DIGITS
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.base import NoShortcutError
from threadkeep.sql.dialects.shortcuts import COLUMNS, SavingExtra, require_plain, run_ids_of
from threadkeep.sql.parameters import COUNT, NOW, RUN, THREAD
from threadkeep.sql.prepared import Prepared, Script
from threadkeep.sql.tables import messages, runs, threads

_MOST_ROWS = 8
_MOST_BYTES = 256 * 1024
"""What is larger is worth a few messages more."""

BEGIN, COMMIT = Prepared(sa.text("BEGIN")), Prepared(sa.text("COMMIT"))

UPSERT = Prepared(
    insert(threads)
    .values(thread_id=THREAD, extra="{}", last_seq=sa.func.last_insert_id(COUNT), created_at=NOW, updated_at=NOW)
    .on_duplicate_key_update(
        # 0 for a thread that was deleted softly. It is not kept: what asked for it is rolled back.
        last_seq=sa.func.last_insert_id(sa.case((threads.c.deleted_at.is_(None), threads.c.last_seq + COUNT), else_=0)),
        updated_at=NOW,
    )
)
"""Creates the thread, locks it, and takes its next seqs; the last of them comes back in the reply."""
NEXT_COMPLETION_SEQ = Prepared(
    sa.update(threads)
    .where(threads.c.thread_id == THREAD, threads.c.deleted_at.is_(None))
    .values(last_completion_seq=sa.func.last_insert_id(threads.c.last_completion_seq + 1), updated_at=NOW)
)
"""Locks the thread, and takes its next completion_seq; it comes back in the reply, or 0."""


def _unless_deleted(column: sa.Column[Any]) -> Any:
    """The thread's, as this transaction has left it; NULL for a thread that was deleted softly.

    LAST_INSERT_ID() would not do between two statements: when nothing was taken, it still has the number from before.
    """
    its_own = sa.and_(threads.c.thread_id == THREAD, threads.c.deleted_at.is_(None))
    return sa.select(column).where(its_own).scalar_subquery()


# ---- append ---------------------------------------------------------------------------------------------

_STEM = sa.bindparam("stem", type_=sa.Text)


def _made_id(from_last: int) -> Any:
    """`message_ids.made_id`, where the seq is known to the server alone: so far from the last that was taken."""
    seq = sa.func.last_insert_id() + from_last if from_last else sa.func.last_insert_id()
    return sa.func.concat(_STEM, sa.func.lpad(sa.func.lower(sa.func.hex(seq)), SEQ_DIGITS, "0"))


@cache
def _append(count: int) -> Script:
    """For so many messages, all of one run or of none."""
    # Read after the lock was taken, by a statement of its own.
    is_complete = sa.exists().where(runs.c.thread_id == THREAD, runs.c.run_id == RUN, runs.c.completed_at.is_not(None))
    last_seq = _unless_deleted(threads.c.last_seq)
    unless_complete = sa.case((~is_complete, last_seq - count + 1))
    rows = [
        {
            "thread_id": THREAD,
            # It is enough that the first has no seq: none of them is inserted then.
            "seq": unless_complete if place == 0 else last_seq - count + 1 + place,
            "created_at": NOW,
            "message_id": _made_id(place + 1 - count),
            **{name: sa.bindparam(f"{name}_{place}", type_=messages.c[name].type) for name in COLUMNS},
        }
        for place in range(count)
    ]
    return Script(BEGIN, UPSERT, Prepared(sa.insert(messages).values(rows)), COMMIT)


def append(conn: sa.Connection, limit: str, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
    """`messages.append`, unless the host gave ids or wants to search, or there is much to write."""
    require_plain(rows, _MOST_ROWS, _MOST_BYTES)
    run_ids = run_ids_of(rows)
    if len(run_ids) > 1:
        raise NoShortcutError
    values = {f"{name}_{place}": getattr(row, name) for place, row in enumerate(rows) for name in COLUMNS}
    values |= {"thread": thread_id, "count": len(rows), "now": rules.utc_now(), "run": "".join(run_ids), "stem": stem}
    _, (_, last_seq), *_ = _append(len(rows)).replies(conn, values)
    return last_seq


# ---- runs -----------------------------------------------------------------------------------------------

_CLAIM = Script(
    BEGIN,
    UPSERT,
    Prepared(sa.insert(runs).values(thread_id=_unless_deleted(threads.c.thread_id), run_id=RUN, claimed_at=NOW)),
    COMMIT,
)


def claim_run(conn: sa.Connection, limit: str, thread_id: str, run_id: str) -> None:
    """`runs.claim_run`. A second claim fails by its key."""
    _CLAIM.replies(conn, {"thread": thread_id, "run": run_id, "count": 0, "now": rules.utc_now()})


_COMPLETE = Script(
    BEGIN,
    NEXT_COMPLETION_SEQ,
    Prepared(
        sa.update(runs)
        .where(
            # Of no thread, if it was deleted softly.
            runs.c.thread_id == _unless_deleted(threads.c.thread_id),
            runs.c.run_id == RUN,
            runs.c.completed_at.is_(None),
        )
        .values(completed_at=NOW, completion_seq=_unless_deleted(threads.c.last_completion_seq))
    ),
    # Fails unless that one has found its run.
    Prepared(
        sa.update(threads)
        .where(threads.c.thread_id == THREAD)
        .values(last_seq=sa.case((sa.func.row_count() == 1, threads.c.last_seq)))
    ),
    COMMIT,
)


def mark_run_complete(conn: sa.Connection, limit: str, thread_id: str, run_id: str) -> None:
    """`runs.mark_run_complete`, for a run that is open."""
    _, _, (completed, _), *_ = _COMPLETE.replies(conn, {"thread": thread_id, "run": run_id, "now": rules.utc_now()})
    if completed == 0:
        raise NoShortcutError  # there is no such thread: nothing was found, and nothing failed


# ---- extra ----------------------------------------------------------------------------------------------

_MERGED = sa.bindparam("merged", type_=threads.c.extra.type)
_CREATE = Prepared(insert(threads).values(thread_id=THREAD, extra=_MERGED, created_at=NOW, updated_at=NOW))
_REPLACE = Prepared(
    sa.update(threads)
    .where(
        threads.c.thread_id == THREAD,
        threads.c.extra == sa.bindparam("before", type_=threads.c.extra.type),
        threads.c.deleted_at.is_(None),
    )
    .values(extra=_MERGED, updated_at=NOW)
)

save_extra = SavingExtra(_CREATE, _REPLACE, _MOST_BYTES)
