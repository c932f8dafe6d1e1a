"""Threads as a whole: making them, finding them, deleting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from threadkeep import message_ids, rules
from threadkeep.errors import ThreadAlreadyExistsError, ThreadNotFoundError
from threadkeep.records import NewThread, SearchHit, ThreadQuery, ThreadRecord
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import OF_A_THREAD, messages, search_texts, thread_labels, threads

_RECORD = sa.select(
    threads.c.thread_id,
    threads.c.parent_thread_id,
    threads.c.forked_at_seq,
    threads.c.last_seq,
    threads.c.last_completion_seq,
    threads.c.created_at,
    threads.c.updated_at,
    threads.c.status,
    threads.c.title,
    threads.c.metadata,
    threads.c.model_id,
    threads.c.provider_id,
    threads.c.agent,
    threads.c.system_prompt,
    threads.c.deleted_at,
)
_GET = _RECORD.where(threads.c.thread_id == THREAD)
_NEWEST_FIRST = _RECORD.order_by(threads.c.created_at.desc(), threads.c.thread_id.desc())
_HITS = (
    sa.select(threads.c.thread_id, threads.c.title, search_texts.c.seq, messages.c.message_id)
    .select_from(
        search_texts.join(threads, threads.c.thread_id == search_texts.c.thread_id).outerjoin(
            messages,
            sa.and_(messages.c.thread_id == search_texts.c.thread_id, messages.c.seq == search_texts.c.seq),
        )
    )
    .order_by(threads.c.created_at.desc(), threads.c.thread_id.desc(), search_texts.c.seq)
)
_TITLE_SEQ = 0
"""Where the title stands among the texts of a thread."""


def create_thread(conn: sa.Connection, hooks: Hooks, thread: NewThread) -> ThreadRecord:
    """Make the thread, if its id is free."""
    # Parent before child, as a delete has it.
    parent = thread.parent_thread_id
    if parent is not None and hooks.lock_unchanged(conn, parent) is None:
        raise ThreadNotFoundError(parent)
    now = rules.utc_now()
    columns = {name: value for name, value in thread._asdict().items() if name != "labels"}
    if not hooks.insert_if_absent(conn, threads, {**columns, "extra": "{}", "created_at": now, "updated_at": now}):
        raise ThreadAlreadyExistsError(thread.thread_id)
    _add_labels(conn, thread.thread_id, thread.labels)
    _make_title_findable(conn, hooks, thread.thread_id, thread.title)
    return _current(conn, thread.thread_id)


def update_thread(
    conn: sa.Connection,
    hooks: Hooks,
    thread_id: str,
    changes: Mapping[str, str | None],
    labels: Sequence[str] | None,
) -> ThreadRecord:
    """Change these columns, and what the thread is found by."""
    if hooks.lock(conn, thread_id, rules.utc_now()) is None:
        raise ThreadNotFoundError(thread_id)
    if changes:
        conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), dict(changes))
    if labels is not None:
        conn.execute(sa.delete(thread_labels).where(thread_labels.c.thread_id == thread_id))
        _add_labels(conn, thread_id, labels)
    if "title" in changes:
        its_title = sa.and_(search_texts.c.thread_id == thread_id, search_texts.c.seq == _TITLE_SEQ)
        conn.execute(sa.delete(search_texts).where(its_title))
        _make_title_findable(conn, hooks, thread_id, changes["title"])
    return _current(conn, thread_id)


def _add_labels(conn: sa.Connection, thread_id: str, labels: Sequence[str]) -> None:
    if labels:
        conn.execute(sa.insert(thread_labels), [{"thread_id": thread_id, "label": label} for label in labels])


def _make_title_findable(conn: sa.Connection, hooks: Hooks, thread_id: str, title: str | None) -> None:
    folded = rules.folded_title(thread_id, title)
    if folded:
        conn.execute(sa.insert(search_texts), {"thread_id": thread_id, "seq": _TITLE_SEQ, "folded": folded})


def _current(conn: sa.Connection, thread_id: str) -> ThreadRecord:
    """The record of a thread that is locked, however old the transaction's snapshot is."""
    return rules.thread_record(conn.execute(_GET.with_for_update(read=True), {"thread": thread_id}).one())


def get_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> ThreadRecord | None:
    """The thread's record, or None."""
    row = conn.execute(_GET, {"thread": thread_id}).one_or_none()
    return rules.thread_record(row) if row else None


def list_threads(conn: sa.Connection, hooks: Hooks, query: ThreadQuery) -> list[ThreadRecord]:
    """A page of threads, newest first, by keyset: a page costs what it holds, however far down it is."""
    page = _NEWEST_FIRST.limit(query.limit)
    if query.parent_thread_id is not None:
        page = page.where(threads.c.parent_thread_id == query.parent_thread_id)
    if query.status is not None:
        page = page.where(threads.c.status == query.status)
    if not query.include_deleted:
        page = page.where(threads.c.deleted_at.is_(None))
    if query.labels:
        # A condition for each would be a join for each, and a server that thinks for minutes about their order.
        having_all = (
            sa.select(thread_labels.c.thread_id)
            .where(thread_labels.c.label.in_(query.labels))
            .group_by(thread_labels.c.thread_id)
            .having(sa.func.count() == len(query.labels))
        )
        page = page.where(threads.c.thread_id.in_(having_all))
    if query.after is not None:
        page = page.where(
            # The first condition says nothing new, but lets every server seek in its index.
            threads.c.created_at <= query.after.created_at,
            sa.or_(threads.c.created_at < query.after.created_at, threads.c.thread_id < query.after.thread_id),
        )
    return [rules.thread_record(row) for row in conn.execute(page)]


def search(
    conn: sa.Connection, hooks: Hooks, folded: str, thread_id: str | None, include_deleted: bool, limit: int
) -> list[SearchHit]:
    """Titles and messages with this text. All texts are looked at: no index of every server knows parts of words."""
    hits = _HITS.where(search_texts.c.folded.contains(folded, autoescape=True)).limit(limit)
    if thread_id is not None:
        hits = hits.where(search_texts.c.thread_id == thread_id)
    if not include_deleted:
        hits = hits.where(threads.c.deleted_at.is_(None))
    return [_hit(row) for row in conn.execute(hits)]


def _hit(row: Any) -> SearchHit:
    title = rules.decoded_title(row.thread_id, row.title)
    if row.seq == _TITLE_SEQ:
        return SearchHit(row.thread_id, title, None, None)
    return SearchHit(row.thread_id, title, row.message_id or message_ids.of_seq(row.seq), row.seq)


def set_status(conn: sa.Connection, hooks: Hooks, thread_id: str, status: str) -> None:
    """Give the thread this status."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        raise ThreadNotFoundError(thread_id)
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), {"status": status})


def soft_delete_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> None:
    """Let nobody write to the thread any more."""
    thread = hooks.lock_unchanged(conn, thread_id, even_deleted=True)
    if thread is None:
        raise ThreadNotFoundError(thread_id)
    if thread.deleted is None:
        _set_deleted(conn, thread_id, rules.utc_now())


def restore_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> None:
    """Let it be written to again."""
    thread = hooks.lock_unchanged(conn, thread_id, even_deleted=True)
    if thread is None:
        raise ThreadNotFoundError(thread_id)
    if thread.deleted is not None:
        _set_deleted(conn, thread_id, None)


def _set_deleted(conn: sa.Connection, thread_id: str, deleted_at: datetime | None) -> None:
    changes = {"deleted_at": deleted_at, "updated_at": rules.utc_now()}
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), changes)


def delete_thread(conn: sa.Connection, hooks: Hooks, thread_id: str) -> bool:
    """Delete every row of the thread; its forks and sub-threads live on without a parent."""
    if hooks.lock_unchanged(conn, thread_id, even_deleted=True) is None:
        return False
    for table in OF_A_THREAD:
        conn.execute(sa.delete(table).where(table.c.thread_id == thread_id))
    conn.execute(
        sa.update(threads)
        .where(threads.c.parent_thread_id == thread_id)
        .values(parent_thread_id=None, updated_at=rules.utc_now())
    )
    conn.execute(sa.delete(threads).where(threads.c.thread_id == thread_id))
    return True
