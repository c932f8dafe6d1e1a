"""Checkpoints: numbered moments of a thread. The transcript is not stored again: a seq says how far it went."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.records import StoredCheckpoint, StoredMessage
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations.messages import STORED, stored_message
from threadkeep.sql.parameters import THREAD, VERSION
from threadkeep.sql.tables import checkpoints, messages, threads

COLUMNS = [checkpoints.c[name] for name in StoredCheckpoint._fields]
_OF_THREAD = sa.select(*COLUMNS).where(checkpoints.c.thread_id == THREAD)
_GET = _OF_THREAD.where(checkpoints.c.version == VERSION)
_LATEST = _OF_THREAD.order_by(checkpoints.c.version.desc()).limit(1)
_LIST = _OF_THREAD.order_by(checkpoints.c.version)
_MESSAGES = (
    sa.select(*STORED)
    .where(messages.c.thread_id == THREAD, messages.c.seq <= sa.bindparam("last"))
    .order_by(messages.c.seq)
)


def save(conn: sa.Connection, hooks: Hooks, thread_id: str, plan: str, budget: str, state: str) -> int:
    """Add a checkpoint at the thread's next version."""
    now = rules.utc_now()
    last_seq, last_version = hooks.lock_or_create(conn, thread_id, now, threads.c.last_seq, threads.c.last_version)
    version: int = last_version + 1
    row = StoredCheckpoint(version, last_seq, plan, budget, state, now)
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), {"last_version": version})
    conn.execute(sa.insert(checkpoints), {"thread_id": thread_id, **row._asdict()})
    return version


def get(
    conn: sa.Connection, hooks: Hooks, thread_id: str, version: int | None, with_messages: bool
) -> tuple[StoredCheckpoint, list[StoredMessage]] | None:
    """This version, or the latest, with the messages up to it. Those never change, so there is no wrong moment."""
    statement = _LATEST if version is None else _GET
    row = conn.execute(statement, {"thread": thread_id, "version_number": version}).one_or_none()
    if row is None:
        return None
    checkpoint = StoredCheckpoint(*row)
    if not with_messages:
        return checkpoint, []
    stored = conn.execute(_MESSAGES, {"thread": thread_id, "last": checkpoint.seq})
    return checkpoint, [stored_message(row) for row in stored]


def list_checkpoints(conn: sa.Connection, hooks: Hooks, thread_id: str) -> list[StoredCheckpoint]:
    """All of the thread's, oldest first."""
    return [StoredCheckpoint(*row) for row in conn.execute(_LIST, {"thread": thread_id})]


def delete(conn: sa.Connection, hooks: Hooks, thread_id: str, version: int) -> bool:
    """Forget one. No other depends on it, and its number is not given again."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        return False
    its_row = sa.and_(checkpoints.c.thread_id == thread_id, checkpoints.c.version == version)
    return conn.execute(sa.delete(checkpoints).where(its_row)).rowcount == 1
