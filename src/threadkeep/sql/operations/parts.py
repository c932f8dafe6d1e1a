"""Parts: what was streamed of a message, before and after it was appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import ImmutableFieldError, PartNotFoundError
from threadkeep.records import NewPart, StoredPart
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations.messages import taken
from threadkeep.sql.parameters import IDS, MESSAGE, THREAD, Among
from threadkeep.sql.tables import message_places, parts, summaries

COLUMNS = [parts.c[name] for name in StoredPart._fields]
_OF_THREAD = sa.select(*COLUMNS).where(parts.c.thread_id == THREAD)
_IN_ORDER = (parts.c.message_id, parts.c.part_index)
_OF = _OF_THREAD.where(Among(parts.c.message_id, IDS)).order_by(*_IN_ORDER)
_LAST = (
    _OF_THREAD.where(parts.c.message_id == MESSAGE)
    .order_by(parts.c.part_index.desc())
    .limit(1)
    .with_for_update(read=True)
)


def _is_in(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.thread_id == THREAD, table.c.message_id == parts.c.message_id)


PERHAPS_DRAFTS = _OF_THREAD.where(~_is_in(message_places), ~_is_in(summaries))
"""Parts whose message is not there, or has an id that tells its seq: who has read the messages knows which."""


def append(conn: sa.Connection, hooks: Hooks, part: NewPart) -> StoredPart:
    """Add the part at the message's next index."""
    now = rules.utc_now()
    hooks.lock_or_create(conn, part.thread_id, now)
    last = conn.execute(_LAST, {"thread": part.thread_id, "message": part.message_id}).one_or_none()
    row = {
        **part._asdict(),
        "part_index": last.part_index + 1 if last else 0,
        "completed_at": None,
        "compacted_at": None,
        "output": None,
        "error": None,
        "created_at": now,
    }
    conn.execute(sa.insert(parts), row)
    return StoredPart(*(row[name] for name in StoredPart._fields))


def update(
    conn: sa.Connection, hooks: Hooks, thread_id: str, message_id: str, index: int, changes: Mapping[str, Any]
) -> StoredPart:
    """Change the part's status, and nothing else of it."""
    its_row = sa.and_(parts.c.thread_id == THREAD, parts.c.message_id == message_id, parts.c.part_index == index)
    found = hooks.lock(conn, thread_id, rules.utc_now()) is not None
    if found and changes:
        conn.execute(sa.update(parts).where(its_row).values(**changes), {"thread": thread_id})
    statement = sa.select(*COLUMNS).where(its_row).with_for_update(read=True)
    row = conn.execute(statement, {"thread": thread_id}).one_or_none() if found else None
    if row is None:
        raise PartNotFoundError(thread_id, message_id, index)
    return StoredPart(*row)


def of(conn: sa.Connection, hooks: Hooks, thread_id: str, message_ids: Sequence[str]) -> list[StoredPart]:
    """The parts of these messages."""
    return [
        StoredPart(*row)
        for some in in_batches(message_ids)
        for row in conn.execute(_OF, {"thread": thread_id, "ids": some})
    ]


def discard(conn: sa.Connection, hooks: Hooks, thread_id: str, message_id: str) -> bool:
    """Delete the parts of a message that is not there."""
    if hooks.lock(conn, thread_id, rules.utc_now()) is None:
        return False
    if taken(conn, thread_id, [message_id]):
        raise ImmutableFieldError("content")
    its_parts = sa.and_(parts.c.thread_id == thread_id, parts.c.message_id == message_id)
    return conn.execute(sa.delete(parts).where(its_parts)).rowcount > 0
