"""The log by the ids of its messages: one of them, a page of them, and the summaries beside it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from threadkeep import message_ids
from threadkeep.errors import MessageNotFoundError
from threadkeep.records import StoredEntry, StoredMessage, StoredPart
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations import parts
from threadkeep.sql.operations.messages import STORED, stored_message
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import message_places, messages, summaries

ENTRY = (*STORED, messages.c.message_id, messages.c.role, messages.c.run_id.label("run"), messages.c.created_at)
"""What `entry` reads."""
ENTRIES = sa.select(*ENTRY).where(messages.c.thread_id == THREAD)
_SEQ = sa.select(messages.c.seq).where(messages.c.thread_id == THREAD)
SUMMARIES = sa.select(summaries).where(summaries.c.thread_id == THREAD)
_LAST_SUMMARY = SUMMARIES.order_by(summaries.c.number.desc()).limit(1)


def get_message(conn: sa.Connection, hooks: Hooks, thread_id: str, message_id: str) -> StoredEntry | None:
    """The message of this id, or the summary, or None."""
    row = conn.execute(ENTRIES.where(_called(message_id)), {"thread": thread_id}).one_or_none()
    return entry(row) if row else get_summary(conn, thread_id, message_id)


def get_summary(conn: sa.Connection, thread_id: str, message_id: str) -> StoredEntry | None:
    """The summary of this id, or None."""
    its_row = SUMMARIES.where(summaries.c.message_id == message_id)
    row = conn.execute(its_row, {"thread": thread_id}).one_or_none()
    return summary_entry(row) if row else None


def list_messages(
    conn: sa.Connection,
    hooks: Hooks,
    thread_id: str,
    since: str | int,
    before: str | int | None,
    limit: int | None,
    reverse: bool,
    with_parts: bool,
) -> tuple[list[StoredEntry], list[StoredPart]]:
    """Those between two, in the order of their seqs, which is that of the key."""
    page = ENTRIES.where(messages.c.seq > _seq(conn, thread_id, since)).limit(limit)
    if before is not None:
        page = page.where(messages.c.seq < _seq(conn, thread_id, before))
    page = page.order_by(messages.c.seq.desc() if reverse else messages.c.seq)
    entries = [entry(row) for row in conn.execute(page, {"thread": thread_id})]
    if not with_parts:
        return entries, []
    return entries, parts.of(conn, hooks, thread_id, [entry.message_id for entry in entries])


def last_summary(conn: sa.Connection, hooks: Hooks, thread_id: str) -> StoredEntry | None:
    """The one with the greatest number, or None."""
    row = conn.execute(_LAST_SUMMARY, {"thread": thread_id}).one_or_none()
    return summary_entry(row) if row else None


def entry(row: Any, *, is_summary: bool = False) -> StoredEntry:
    """A row of the columns ENTRY."""
    message = stored_message(row)._replace(is_summary=is_summary)
    return StoredEntry(message, row.message_id or message_ids.of_seq(row.seq), row.role, row.run, row.created_at)


def summary_entry(row: Any) -> StoredEntry:
    """A row of SUMMARIES."""
    message = StoredMessage(row.number, row.format, bytes(row.payload), is_summary=True)
    return StoredEntry(message, row.message_id, row.role, row.run_id, row.created_at)


def _called(message_id: str) -> sa.ColumnElement[bool]:
    seq = message_ids.seq_in(message_id)
    if seq is not None:
        return sa.and_(messages.c.seq == seq, messages.c.message_id.is_(None))
    place = sa.select(message_places.c.seq).where(
        message_places.c.thread_id == THREAD, message_places.c.message_id == message_id
    )
    told = sa.literal(message_ids.told_seq(message_id), sa.BigInteger)
    seq_of_it = sa.func.coalesce(place.scalar_subquery(), told)
    return sa.and_(messages.c.seq == seq_of_it, messages.c.message_id == message_id)


def _seq(conn: sa.Connection, thread_id: str, message: str | int) -> int:
    """Where this message is, which is named by its id or by its seq."""
    if isinstance(message, int):
        return message
    seq: int | None = conn.execute(_SEQ.where(_called(message)), {"thread": thread_id}).scalar_one_or_none()
    if seq is None:
        raise MessageNotFoundError(thread_id, message)
    return seq
