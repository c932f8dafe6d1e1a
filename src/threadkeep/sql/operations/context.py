"""The context window over the log: see `windows`. Messages and summaries never change; the rows of the window do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from threadkeep import message_ids, rules, windows
from threadkeep.errors import DuplicateIdError, SummaryNotFoundError, ThreadNotFoundError
from threadkeep.records import MessageRow, PlacedItem, StoredEntry
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations.log import ENTRIES, ENTRY, SUMMARIES, entry, summary_entry
from threadkeep.sql.operations.messages import NOT_STORED, taken
from threadkeep.sql.parameters import SEQS, THREAD, Among
from threadkeep.sql.prepared import Insert
from threadkeep.sql.tables import context, messages, summaries, threads

_INSERT = Insert(context)
_THREAD = threads.c.thread_id == THREAD
_COMPACTED = sa.select(threads.c.compacted_seq).where(_THREAD).scalar_subquery()
_LAST = sa.select(threads.c.last_seq).where(_THREAD).scalar_subquery()
_ITS_MESSAGE = sa.and_(messages.c.thread_id == context.c.thread_id, messages.c.seq == context.c.position)
_ITS_SUMMARY = sa.and_(summaries.c.thread_id == context.c.thread_id, summaries.c.number == context.c.number)


def _window(of_message: Sequence[Any], of_summary: Sequence[Any]) -> sa.CompoundSelect[Any]:
    """What is in the window, in one statement: the summaries, what stayed, and what came after the last compaction."""
    its_rows = sa.select(context.c.position, context.c.number).where(context.c.thread_id == THREAD)
    summarized = its_rows.add_columns(*of_summary).select_from(context.join(summaries, _ITS_SUMMARY))
    stayed = its_rows.add_columns(*of_message).select_from(context.join(messages, _ITS_MESSAGE))
    later = sa.select(messages.c.seq, sa.null(), *of_message).where(messages.c.thread_id == THREAD)
    return sa.union_all(
        summarized,
        stayed.where(context.c.number.is_(None)),
        # No message comes after the last one. It is said all the same: for a range that is open at one end, PostgreSQL
        # expects a third of the thread, and reads the whole table.
        later.where(messages.c.seq > _COMPACTED, messages.c.seq <= _LAST),
    )


_ITEMS = _window([messages.c.message_id], [summaries.c.message_id])
_LOAD = _window(
    ENTRY,
    [
        summaries.c.number.label("seq"),
        summaries.c.format,
        summaries.c.payload,
        *NOT_STORED[1:],
        summaries.c.message_id,
        summaries.c.role,
        summaries.c.run_id.label("run"),
        summaries.c.created_at,
    ],
)

_ROWS = sa.select(context.c.position, context.c.number).where(context.c.thread_id == THREAD).with_for_update(read=True)
_LATER = sa.select(messages.c.seq, messages.c.message_id).where(messages.c.thread_id == THREAD)
_STAYED = _LATER.where(Among(messages.c.seq, SEQS)).with_for_update(read=True)
_IDS = (
    sa.select(summaries.c.number, summaries.c.message_id)
    .where(summaries.c.thread_id == THREAD, Among(summaries.c.number, SEQS))
    .with_for_update(read=True)
)
_LAST_NUMBER = (
    sa.select(summaries.c.number)
    .where(summaries.c.thread_id == THREAD)
    .order_by(summaries.c.number.desc())
    .limit(1)
    .with_for_update(read=True)
)


def items(conn: sa.Connection, hooks: Hooks, thread_id: str) -> list[PlacedItem]:
    """What is in the window, in order."""
    rows = conn.execute(_ITEMS, {"thread": thread_id}).all()
    return sorted(_placed(row.position, row.number, row.message_id) for row in rows)


def load(conn: sa.Connection, hooks: Hooks, thread_id: str) -> list[StoredEntry]:
    """The same, the messages themselves."""
    rows = sorted(conn.execute(_LOAD, {"thread": thread_id}), key=attrgetter("position"))
    return [entry(row, is_summary=row.number is not None) for row in rows]


def swap(conn: sa.Connection, hooks: Hooks, thread_id: str, remove: Sequence[str], summary: MessageRow) -> PlacedItem:
    """Put the summary in the place of these. Under the lock, so that of two swaps the second sees the first."""
    now = rules.utc_now()
    thread = hooks.lock(conn, thread_id, now, threads.c.compacted_seq)
    if thread is None:
        raise ThreadNotFoundError(thread_id)
    items = _current(conn, hooks, thread_id, thread.compacted_seq)
    change = windows.compact(thread_id, thread.compacted_seq, items, remove)
    summary_id = summary.message_id or message_ids.new_message_id()
    if summary.message_id is not None and taken(conn, thread_id, [summary_id]):
        raise DuplicateIdError(thread_id, summary_id)
    number = (conn.execute(_LAST_NUMBER, {"thread": thread_id}).scalar_one_or_none() or 0) + 1
    conn.execute(
        sa.insert(summaries),
        {
            "thread_id": thread_id,
            "number": number,
            "message_id": summary_id,
            "role": summary.role,
            "run_id": summary.run_id,
            "format": summary.format,
            "payload": summary.payload,
            "position": change.position,
            "replaces": json.dumps(change.replaces),
            "created_at": now,
        },
    )
    its_rows = sa.and_(context.c.thread_id == THREAD, Among(context.c.position, SEQS))
    for some in in_batches(change.removed):
        conn.execute(sa.delete(context).where(its_rows), {"thread": thread_id, "seqs": some})
    rows: dict[int, int | None] = {**dict.fromkeys(change.stayed), change.position: number}
    add_rows(conn, hooks, thread_id, rows)
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), {"compacted_seq": change.compacted_seq})
    return PlacedItem(change.position, summary_id, number)


def add_rows(conn: sa.Connection, hooks: Hooks, thread_id: str, rows: dict[int, int | None]) -> None:
    """Rows of the window: which summary, or which message, stands where."""
    hooks.insert_rows(conn, _INSERT, ([thread_id, position, number] for position, number in rows.items()))


def _current(conn: sa.Connection, hooks: Hooks, thread_id: str, compacted_seq: int) -> list[PlacedItem]:
    """The window of a thread that is locked, however old the transaction's snapshot is."""
    its_own = {"thread": thread_id}
    rows = {row.position: row.number for row in conn.execute(_ROWS, its_own)}
    ids: dict[tuple[str, int], str | None] = {}
    for kind, statement, numbers in (
        ("message", _STAYED, [position for position, number in rows.items() if number is None]),
        ("summary", _IDS, [number for number in rows.values() if number is not None]),
    ):
        for some in in_batches(numbers):
            ids |= {(kind, number): id_ for number, id_ in conn.execute(statement, {**its_own, "seqs": some})}
    before = [
        _placed(position, number, ids["message", position] if number is None else ids["summary", number])
        for position, number in rows.items()
    ]
    fresh = hooks.fresh_on(conn)
    later = conn.execute(fresh(_LATER.where(messages.c.seq > compacted_seq)), its_own)
    return sorted([*before, *(_placed(row.seq, None, row.message_id) for row in later)])


def _placed(position: int, number: int | None, message_id: str | None) -> PlacedItem:
    return PlacedItem(position, message_id or message_ids.of_seq(position), number)


# ---- what a summary stands for --------------------------------------------------------------------------

_REPLACED = sa.select(summaries.c.number, summaries.c.replaces).where(summaries.c.thread_id == THREAD)
_RANGES_AT_ONCE = 200
"""SQLite takes 1,000 conditions in a row, and PostgreSQL plans few of them faster than many."""
_SOME_SUMMARIES = SUMMARIES.where(Among(summaries.c.number, SEQS))


def expand(conn: sa.Connection, hooks: Hooks, thread_id: str, summary_id: str, deep: bool) -> list[StoredEntry]:
    """What the summary took the place of; or, deep, the messages under all of that."""
    its_own = {"thread": thread_id}
    row = conn.execute(SUMMARIES.where(summaries.c.message_id == summary_id), its_own).one_or_none()
    if row is None:
        raise SummaryNotFoundError(thread_id, summary_id)
    replaces = windows.decode(thread_id, row.number, row.replaces)
    if deep:
        under = conn.execute(_REPLACED.where(summaries.c.number <= row.number), its_own)
        known = {number: windows.decode(thread_id, number, text) for number, text in under}
        replaces = [*windows.messages_under(row.number, known)]
    found: dict[int, StoredEntry] = {}
    for ranges in in_batches((part for part in replaces if isinstance(part, list)), _RANGES_AT_ONCE):
        in_them = sa.or_(*(messages.c.seq.between(first, last) for first, last in ranges))
        found |= {row.seq: entry(row) for row in conn.execute(ENTRIES.where(in_them), its_own)}
    for numbers in in_batches(part for part in replaces if isinstance(part, int)):
        children = conn.execute(_SOME_SUMMARIES, {**its_own, "seqs": numbers})
        found |= {row.position: summary_entry(row) for row in children}
    return [found[position] for position in sorted(found)]


# ---- forks ----------------------------------------------------------------------------------------------

_ALL_SUMMARIES = SUMMARIES.with_for_update(read=True)


def copy_window(
    conn: sa.Connection, hooks: Hooks, source: str, target: str, copied: Sequence[int], left: Sequence[int]
) -> int:
    """Give the copy a window like the source's, over the messages it has; return how far it is compacted."""
    rows = {row.position: row.number for row in conn.execute(_ROWS, {"thread": source})}
    kept = {row.number: row for row in conn.execute(_ALL_SUMMARIES, {"thread": source})}
    known = {
        number: windows.Summarized(row.position, windows.decode(source, number, row.replaces))
        for number, row in kept.items()
    }
    window = windows.fork(rows, known, copied, left)
    add_rows(conn, hooks, target, window.rows)
    for number, (position, replaces) in window.summaries.items():
        moved = {"thread_id": target, "position": position, "replaces": json.dumps(replaces)}
        conn.execute(sa.insert(summaries), {**kept[number]._mapping, **moved})
    return window.compacted_seq
