"""Threads as a whole: looking them up, listing them, deleting them."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import ThreadNotFoundError
from threadkeep.records import ThreadRecord
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import OF_A_THREAD, threads

_RECORD = sa.select(
    threads.c.thread_id,
    threads.c.parent_thread_id,
    threads.c.forked_at_seq,
    threads.c.last_seq,
    threads.c.last_completion_seq,
    threads.c.created_at,
    threads.c.updated_at,
    threads.c.status,
)
_GET = _RECORD.where(threads.c.thread_id == THREAD)
_NEWEST_FIRST = _RECORD.order_by(threads.c.created_at.desc(), threads.c.thread_id.desc())


def get_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> ThreadRecord | None:
    """The thread's record, or None."""
    row = conn.execute(_GET, {"thread": thread_id}).one_or_none()
    return ThreadRecord(*row) if row else None


def list_threads(
    conn: sa.Connection,
    hooks: Hooks,
    parent_thread_id: str | None,
    status: str | None,
    limit: int,
    after: ThreadRecord | None,
) -> list[ThreadRecord]:
    """A page of threads, newest first, by keyset: a page costs what it holds, however far down it is."""
    page = _NEWEST_FIRST.limit(limit)
    if parent_thread_id is not None:
        page = page.where(threads.c.parent_thread_id == parent_thread_id)
    if status is not None:
        page = page.where(threads.c.status == status)
    if after is not None:
        page = page.where(
            # The first condition says nothing new, but lets every server seek in its index.
            threads.c.created_at <= after.created_at,
            sa.or_(threads.c.created_at < after.created_at, threads.c.thread_id < after.thread_id),
        )
    return [ThreadRecord(*row) for row in conn.execute(page)]


def set_status(conn: sa.Connection, hooks: Hooks, thread_id: str, status: str) -> None:
    """Give the thread this status."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        raise ThreadNotFoundError(thread_id)
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), {"status": status})


def delete_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> bool:
    """Delete every row of the thread; its forks live on without a parent."""
    now = rules.utc_now()
    if not hooks.lock(conn, thread_id, now):
        return False
    for table in OF_A_THREAD:
        conn.execute(sa.delete(table).where(table.c.thread_id == thread_id))
    conn.execute(
        sa.update(threads).where(threads.c.parent_thread_id == thread_id).values(parent_thread_id=None, updated_at=now)
    )
    conn.execute(sa.delete(threads).where(threads.c.thread_id == thread_id))
    return True
