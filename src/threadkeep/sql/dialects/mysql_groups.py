"""Appends of several callers in one transaction of MySQL or MariaDB, which is two messages to the server.

A group takes the threads that it can lock at once, and leaves the others: those that somebody else has locked, that are
not there yet, or whose messages the operation would refuse. Each of their callers tries alone, waits, and is told why.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.mysql_rows import inserting, said
from threadkeep.sql.dialects.shortcuts import AppendCall, run_ids_of, that_fit
from threadkeep.sql.message_rows import INSERT, placed
from threadkeep.sql.parameters import NOW
from threadkeep.sql.prepared import Prepared, Row, execute_texts
from threadkeep.sql.tables import runs, threads

_MOST_ROWS = 200
_MOST_BYTES = 256 * 1024


def _named(name: str, count: int) -> list[Any]:
    return [sa.bindparam(f"{name}_{number}", type_=sa.Text) for number in range(count)]


@cache
def _lock(count: int) -> Prepared:
    """Locks those of the threads that nobody has locked."""
    return Prepared(
        sa.select(threads.c.thread_id, threads.c.last_seq)
        # Not by reading a table that is still small, row after row: each would be locked on the way.
        .with_hint(threads, "FORCE INDEX (PRIMARY)")
        .where(threads.c.thread_id.in_(_named("thread", count)), threads.c.deleted_at.is_(None))
        .with_for_update(skip_locked=True)
    )


@cache
def _completed(count: int) -> Prepared:
    """Those of the runs that are complete, read after the locks were taken."""
    named = zip(_named("thread", count), _named("run", count), strict=True)
    is_one = sa.or_(*(sa.and_(runs.c.thread_id == thread, runs.c.run_id == run) for thread, run in named))
    return Prepared(sa.select(runs.c.thread_id).where(is_one, runs.c.completed_at.is_not(None)))


@cache
def _move_on(count: int) -> Prepared:
    """Writes the last seqs of the threads."""
    names = _named("thread", count)
    last_seqs = [sa.bindparam(f"last_seq_{number}", type_=sa.BigInteger) for number in range(count)]
    by_thread = dict(zip(names, last_seqs, strict=True))
    return Prepared(
        sa.update(threads)
        .where(threads.c.thread_id.in_(names))
        .values(last_seq=sa.case(by_thread, value=threads.c.thread_id), updated_at=NOW)
    )


def append_each(conn: sa.Connection, limit: str, calls: Sequence[AppendCall]) -> dict[int, int]:
    """`messages.append` for those that can be made now. Two on the same thread are made both, or neither."""
    chosen = that_fit(calls, _MOST_ROWS, _MOST_BYTES)
    if not chosen:
        return {}
    rows_of: dict[str, list[MessageRow]] = {}
    for number in chosen:
        thread_id, rows, _ = calls[number]
        rows_of.setdefault(thread_id, []).extend(rows)
    last_seqs = _locked(conn, rows_of)
    if not last_seqs:
        execute_texts(conn, ["ROLLBACK"])
        return {}
    made: dict[int, int] = {}
    placed_rows: list[Row] = []
    now = rules.utc_now()
    for number in chosen:
        thread_id, rows, stem = calls[number]
        if thread_id in last_seqs:
            placed_rows += placed(thread_id, rows, stem, last_seqs[thread_id] + 1, now)
            made[number] = last_seqs[thread_id] = last_seqs[thread_id] + len(rows)
    _write(conn, placed_rows, last_seqs, now)
    return made


def _locked(conn: sa.Connection, rows_of: dict[str, list[MessageRow]]) -> dict[str, int]:
    """Begin, and lock the threads that may be written. The last seq of each."""
    asked = [(thread_id, run_id) for thread_id, rows in rows_of.items() for run_id in run_ids_of(rows)]
    statements = ["BEGIN", said(_lock(len(rows_of)), conn.dialect, _numbered(thread=[*rows_of]))]
    if asked:
        thread_ids, run_ids = zip(*asked, strict=True)
        statements.append(said(_completed(len(asked)), conn.dialect, _numbered(thread=thread_ids, run=run_ids)))
    _, locked, *completed = execute_texts(conn, statements)
    refused = {thread_id for rows in completed for (thread_id,) in rows}
    return {thread_id: last_seq for thread_id, last_seq in locked if thread_id not in refused}


def _write(conn: sa.Connection, rows: list[Row], last_seqs: dict[str, int], now: datetime) -> None:
    """Insert the rows, write down the last seqs of their threads, and commit."""
    counters = {**_numbered(thread=[*last_seqs], last_seq=[*last_seqs.values()]), "now": now}
    moved_on = said(_move_on(len(last_seqs)), conn.dialect, counters)
    execute_texts(conn, [*inserting(INSERT, conn.dialect, rows), moved_on, "COMMIT"])


def _numbered(**columns: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}_{number}": value for name, values in columns.items() for number, value in enumerate(values)}
