"""The pending request: at most one row a thread, which holds the request and its run together."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.records import StoredPending
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import pending

_LOAD = sa.select(pending.c.request, pending.c.run_id).where(pending.c.thread_id == THREAD)


def set_pending(
    conn: sa.Connection,
    hooks: Hooks,
    thread_id: str,
    question_id: str | None,
    request: str,
    run_id: str | None,
) -> None:
    """Make this the pending request, in the place of any other."""
    now = rules.utc_now()
    hooks.lock_or_create(conn, thread_id, now)
    row = {
        "thread_id": thread_id,
        "question_id": question_id,
        "request": request,
        "run_id": run_id,
        "created_at": now,
    }
    hooks.put(conn, pending, row)


def clear_pending(conn: sa.Connection, hooks: Hooks, thread_id: str) -> None:
    """Clear whatever is pending."""
    if hooks.lock(conn, thread_id, rules.utc_now()):
        conn.execute(sa.delete(pending).where(pending.c.thread_id == thread_id))


def clear_pending_if_matches(
    conn: sa.Connection, hooks: Hooks, thread_id: str, question_id: str, run_id: str | None
) -> bool:
    """Clear the pending request if it is this run's question."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        return False
    matching = sa.delete(pending).where(
        pending.c.thread_id == thread_id, pending.c.question_id == question_id, pending.c.run_id == run_id
    )
    return conn.execute(matching).rowcount == 1


def load_pending(conn: sa.Connection, hooks: Hooks, thread_id: str) -> StoredPending | None:
    """What is pending, or None."""
    row = conn.execute(_LOAD, {"thread": thread_id}).one_or_none()
    return StoredPending(*row) if row else None
