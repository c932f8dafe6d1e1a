"""Threads as a whole: making them, finding them, deleting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from threadkeep import message_ids, rules
from threadkeep.errors import ThreadAlreadyExistsError, ThreadNotFoundError
from threadkeep.records import NewThread, SearchHit, ThreadQuery, ThreadRecord
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.prepared import Insert
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
_INSERT_LABELS = Insert(thread_labels)
_TITLE_SEQ = 0
"""Where the title stands among the texts of a thread."""
_SOME_WAY = 100
"""How many entries of an index are passed to see how sparse it is."""
_AT_ITS_END = datetime.min.replace(tzinfo=UTC)
_WAYS_AT_ONCE = 50
"""How many indexes one statement looks at."""


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
    _add_labels(conn, hooks, thread.thread_id, now, thread.labels)
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
    thread = hooks.lock(conn, thread_id, rules.utc_now(), threads.c.created_at)
    if thread is None:
        raise ThreadNotFoundError(thread_id)
    if changes:
        conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), dict(changes))
    if labels is not None:
        conn.execute(sa.delete(thread_labels).where(thread_labels.c.thread_id == thread_id))
        _add_labels(conn, hooks, thread_id, thread.created_at, labels)
    if "title" in changes:
        its_title = sa.and_(search_texts.c.thread_id == thread_id, search_texts.c.seq == _TITLE_SEQ)
        conn.execute(sa.delete(search_texts).where(its_title))
        _make_title_findable(conn, hooks, thread_id, changes["title"])
    return _current(conn, thread_id)


def _add_labels(conn: sa.Connection, hooks: Hooks, thread_id: str, created_at: datetime, labels: Sequence[str]) -> None:
    hooks.insert_rows(conn, _INSERT_LABELS, ([thread_id, label, created_at] for label in labels))


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
    label = label_to_walk(conn, query)
    page = _page_of_threads(query) if label is None else _page_of_label(query, label)
    return [rules.thread_record(row) for row in conn.execute(page)]


def _page_of_threads(query: ThreadQuery) -> sa.Select[Any]:
    page = _RECORD.where(*_asked_for(query), *_beyond(threads, query.after)).limit(query.limit)
    if query.labels:
        page = page.where(_has_all(threads, query.labels))
    return page.order_by(*_newest_first(threads))


def _page_of_label(query: ThreadQuery, label: str) -> sa.Select[Any]:
    """The same by a walk along the label's entries in the index, which has the order of the listing."""
    its_thread = threads.c.thread_id == thread_labels.c.thread_id
    # Counted, as the other labels are: of a join a server may think that it better begins with the threads, and sorts
    # them all. At least one, because PostgreSQL takes an equality for rare, and compiles for the long walk it expects.
    fits = sa.select(sa.func.count()).where(its_thread, *_asked_for(query)).scalar_subquery() >= 1
    walk = sa.select(thread_labels.c.thread_id, thread_labels.c.created_at).where(
        thread_labels.c.label == label, *_beyond(thread_labels, query.after), fits
    )
    if len(query.labels) > 1:
        walk = walk.where(_has_all(thread_labels, [other for other in query.labels if other != label]))
    found = walk.order_by(*_newest_first(thread_labels)).limit(query.limit).subquery()
    # Each is there, but an outer join cannot begin with the threads.
    records = found.outerjoin(threads, threads.c.thread_id == found.c.thread_id)
    return _RECORD.select_from(records).order_by(*_newest_first(found))


def label_to_walk(conn: sa.Connection, query: ThreadQuery) -> str | None:
    """The label to begin with, or None where the index of a status, of a parent or of all threads is the better one.

    The best is the sparsest from here on: the one whose entries, some way down its index, are the oldest.
    """
    ways: list[tuple[str | None, sa.Table, sa.ColumnElement[bool]]] = [
        (label, thread_labels, thread_labels.c.label == label) for label in query.labels
    ]
    if not ways:
        return None
    ways += [(None, threads, condition) for condition in _indexed(query)]
    if len(ways) == 1:
        return ways[0][0]
    reached: list[tuple[datetime | None, str | None]] = []
    for start in range(0, len(ways), _WAYS_AT_ONCE):
        some = ways[start : start + _WAYS_AT_ONCE]
        times = conn.execute(sa.select(*(_reached(table, where, query) for _, table, where in some))).one()
        reached += [(time, label) for time, (label, _, _) in zip(times, some, strict=True)]
    return min(reached, key=lambda way: way[0] or _AT_ITS_END)[1]


def _reached(table: sa.Table, where: sa.ColumnElement[bool], query: ThreadQuery) -> sa.ColumnElement[Any]:
    """How old the entries are some way down this index; null where it has no more."""
    entries = sa.select(table.c.created_at).where(where, *_beyond(table, query.after))
    return entries.order_by(*_newest_first(table)).limit(1).offset(_SOME_WAY).scalar_subquery().label(None)


def _indexed(query: ThreadQuery) -> list[sa.ColumnElement[bool]]:
    """Conditions that have an index in the order of the listing."""
    asked = ((threads.c.parent_thread_id, query.parent_thread_id), (threads.c.status, query.status))
    return [column == value for column, value in asked if value is not None]


def _asked_for(query: ThreadQuery) -> list[sa.ColumnElement[bool]]:
    return [*_indexed(query), *([] if query.include_deleted else [threads.c.deleted_at.is_(None)])]


def _has_all(table: sa.Table, labels: Sequence[str]) -> sa.ColumnElement[bool]:
    """Whether the row's thread has all of these. One condition: with one for each, servers think for minutes."""
    its = thread_labels.alias()
    count = sa.select(sa.func.count()).where(its.c.thread_id == table.c.thread_id, its.c.label.in_(labels))
    return count.scalar_subquery() >= len(labels)


def _newest_first(table: sa.FromClause) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    return table.c.created_at.desc(), table.c.thread_id.desc()


def _beyond(table: sa.Table, after: ThreadRecord | None) -> list[sa.ColumnElement[bool]]:
    """What comes after this record."""
    if after is None:
        return []
    return [
        # The first condition says nothing new, but lets every server seek in its index.
        table.c.created_at <= after.created_at,
        sa.or_(table.c.created_at < after.created_at, table.c.thread_id < after.thread_id),
    ]


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
