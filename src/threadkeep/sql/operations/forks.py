"""Forks, and the snapshot they are cut from."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import ThreadAlreadyExistsError, ThreadNotFoundError
from threadkeep.records import StoredMessage
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Fresh, Hooks, as_it_is
from threadkeep.sql.operations import context
from threadkeep.sql.operations.messages import NOT_STORED, STORED, stored_message, taken
from threadkeep.sql.parameters import CUTOFF, IDS, RUN, THREAD, Among
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import (
    checkpoints,
    message_places,
    messages,
    parts,
    runs,
    search_texts,
    thread_labels,
    threads,
)


def _in_slice(cutoff: Any, fresh: Fresh = as_it_is) -> sa.ColumnElement[bool]:
    """Legacy messages, and those of runs that were completed no later than the cutoff."""
    completed = sa.select(runs.c.run_id).where(
        runs.c.thread_id == THREAD, runs.c.completion_seq.is_not(None), runs.c.completion_seq <= cutoff
    )
    return sa.and_(
        messages.c.thread_id == THREAD, sa.or_(messages.c.run_id.is_(None), messages.c.run_id.in_(fresh(completed)))
    )


_CUTOFF_NOW = sa.select(runs.c.completion_seq).where(runs.c.thread_id == THREAD, runs.c.run_id == RUN).scalar_subquery()

# One statement, so one snapshot: the thread itself comes as a row of seq 0, with the cutoff in the place of a format.
_SNAPSHOT = sa.union_all(
    sa.select(
        sa.literal_column("0").label("seq"),
        _CUTOFF_NOW.label("format"),
        *NOT_STORED,
    ).where(threads.c.thread_id == THREAD),
    sa.select(*STORED).where(_in_slice(_CUTOFF_NOW)),
)

_AS_THEY_ARE = ("role", "run_id", "format", "payload", "metadata", "created_at", "message_id")
_TARGET = sa.bindparam("target", type_=threads.c.thread_id.type)
_MADE_AT = sa.bindparam("made_at", type_=threads.c.created_at.type)
_COPIED = (
    sa.select(messages.c.seq, sa.func.row_number().over(order_by=messages.c.seq).label("place"))
    .where(_in_slice(CUTOFF))
    .subquery()
)


def _copy_messages(seq: Any) -> sa.Select[Any]:
    return sa.select(_TARGET, seq, *(messages.c[name] for name in _AS_THEY_ARE))


_LAST_SEQ = sa.bindparam("last_seq", type_=messages.c.seq.type)
# All from the first on: nobody has to look at their runs once more.
_COPY_MESSAGES = Prepared(
    sa.insert(messages).from_select(
        ["thread_id", "seq", *_AS_THEY_ARE],
        _copy_messages(messages.c.seq).where(messages.c.thread_id == THREAD, messages.c.seq <= _LAST_SEQ),
    )
)
# The seqs are numbered apart from the rows: a server would keep the payloads in a temporary table, on disk.
_COPY_MESSAGES_ANEW = Prepared(
    sa.insert(messages).from_select(
        ["thread_id", "seq", *_AS_THEY_ARE],
        _copy_messages(_COPIED.c.place)
        .select_from(_COPIED.join(messages, messages.c.seq == _COPIED.c.seq))
        .where(messages.c.thread_id == THREAD),
    )
)
# Where the messages kept their seqs, so did their ids. Where they were numbered anew, no id ends with its seq any more.
_COPY_PLACES = sa.insert(message_places).from_select(
    ["thread_id", "message_id", "seq"],
    sa.select(_TARGET, message_places.c.message_id, message_places.c.seq).where(
        message_places.c.thread_id == THREAD, message_places.c.seq <= _LAST_SEQ
    ),
)
_PLACE_ANEW = sa.insert(message_places).from_select(
    ["thread_id", "message_id", "seq"],
    sa.select(messages.c.thread_id, messages.c.message_id, messages.c.seq).where(
        messages.c.thread_id == _TARGET, messages.c.message_id.is_not(None)
    ),
)
_COPY_RUNS = Prepared(
    sa.insert(runs).from_select(
        ["thread_id", "run_id", "claimed_at", "completed_at", "completion_seq"],
        sa.select(
            _TARGET,
            runs.c.run_id,
            runs.c.claimed_at,
            runs.c.completed_at,
            runs.c.completion_seq,
        ).where(runs.c.thread_id == THREAD, runs.c.completion_seq <= CUTOFF),
    )
)


# A checkpoint comes along if everything up to it does. The copy has no gaps: a seq becomes its message's place.
_NUMBERED = (
    sa.select(messages.c.seq, sa.func.row_number().over(order_by=messages.c.seq).label("place"))
    .where(messages.c.thread_id == THREAD)
    .subquery()
)
_FIRST_LEFT = sa.select(sa.func.min(messages.c.seq)).where(messages.c.thread_id == THREAD, ~_in_slice(CUTOFF))
_FIRST_LEFT_BEHIND = _FIRST_LEFT.scalar_subquery()
_REST = [column for column in checkpoints.c if column.name not in ("thread_id", "seq")]
_COPY_CHECKPOINTS = sa.insert(checkpoints).from_select(
    ["thread_id", "seq", *(column.name for column in _REST)],
    sa.select(
        _TARGET,
        sa.func.coalesce(_NUMBERED.c.place, sa.literal_column("0")),
        *_REST,
    )
    .select_from(checkpoints.outerjoin(_NUMBERED, _NUMBERED.c.seq == checkpoints.c.seq))
    .where(
        checkpoints.c.thread_id == THREAD,
        sa.or_(_FIRST_LEFT_BEHIND.is_(None), checkpoints.c.seq < _FIRST_LEFT_BEHIND),
    ),
)
_OF_PARTS = [column for column in parts.c if column.name != "thread_id"]
_COPY_PARTS = sa.insert(parts).from_select(
    ["thread_id", *(column.name for column in _OF_PARTS)],
    sa.select(_TARGET, *_OF_PARTS).where(parts.c.thread_id == THREAD, Among(parts.c.message_id, IDS)),
)
_WITH_PARTS = sa.select(parts.c.message_id).where(
    parts.c.thread_id == THREAD, parts.c.part_index == sa.literal_column("0")
)
_COPY_SEARCH_TEXTS = sa.insert(search_texts).from_select(
    ["thread_id", "seq", "folded"],
    sa.select(_TARGET, _COPIED.c.place, search_texts.c.folded)
    .select_from(search_texts.join(_COPIED, _COPIED.c.seq == search_texts.c.seq))
    .where(search_texts.c.thread_id == THREAD)
    # The title, which stands before all messages.
    .union_all(
        sa.select(_TARGET, search_texts.c.seq, search_texts.c.folded).where(
            search_texts.c.thread_id == THREAD, search_texts.c.seq == 0
        )
    ),
)
_COPY_LABELS = sa.insert(thread_labels).from_select(
    ["thread_id", "label", "created_at"],
    sa.select(_TARGET, thread_labels.c.label, _MADE_AT).where(thread_labels.c.thread_id == THREAD),
)
_BESIDE = (message_places, search_texts, thread_labels, parts)
_OF_SESSION = [threads.c[name] for name in ("title", "metadata", "model_id", "provider_id", "agent", "system_prompt")]
_LAST_VERSION = sa.select(sa.func.max(checkpoints.c.version)).where(checkpoints.c.thread_id == THREAD)


@cache
def _seqs(fresh: Fresh, *, copied: bool) -> sa.Select[Any]:
    """Of the messages that are copied, or of those that are left behind: what a copying statement sees, too."""
    in_slice = _in_slice(CUTOFF, fresh)
    seqs = sa.select(messages.c.seq).where(messages.c.thread_id == THREAD, in_slice if copied else ~in_slice)
    return fresh(seqs.order_by(messages.c.seq))


@cache
def _look(fresh: Fresh) -> Prepared:
    """Whether the target is there, the cutoff, how many messages there are to copy and the last of them, and in which
    other tables the source has rows at all."""
    its_run = sa.select(runs.c.completion_seq).where(runs.c.thread_id == THREAD, runs.c.run_id == RUN)
    cutoff = fresh(its_run).scalar_subquery()
    beside = (fresh(sa.select(table.c.thread_id).where(table.c.thread_id == THREAD)) for table in _BESIDE)
    looked = sa.select(
        # Not fresh, which would wait for a writer of the target.
        sa.exists().where(threads.c.thread_id == _TARGET),
        cutoff,
        sa.func.count(),
        sa.func.coalesce(sa.func.max(messages.c.seq), sa.literal_column("0")),
        *(rows.exists() for rows in beside),
    ).where(_in_slice(cutoff, fresh))
    return Prepared(fresh(looked))


def snapshot(conn: sa.Connection, hooks: Hooks, thread_id: str, after_run_id: str) -> list[StoredMessage]:
    """The messages a fork would copy."""
    rows = conn.execute(_SNAPSHOT, {"thread": thread_id, "run": after_run_id}).all()
    if not rows:
        raise ThreadNotFoundError(thread_id)
    thread, *stored = sorted(rows, key=attrgetter("seq"))
    rules.require_cutoff(thread_id, after_run_id, thread.format)
    return [stored_message(row) for row in stored]


def fork(
    conn: sa.Connection,
    hooks: Hooks,
    source: str,
    target: str,
    after_run_id: str,
    metadata: str | None,
    max_bytes: int,
) -> None:
    """Copy the slice, its runs and the source's extra into a new thread."""
    # Source before target, and a target that is there is not waited for: two opposite forks would deadlock.
    columns = (threads.c.extra, threads.c.last_version, threads.c.compacted_seq, *_OF_SESSION)
    thread = hooks.lock_unchanged(conn, source, *columns)
    if thread is None:
        raise ThreadNotFoundError(source)
    fresh = hooks.fresh_on(conn)
    asked = {"thread": source, "target": target, "run": after_run_id}
    ((is_taken, completion_seq, count, last_seq, *has),) = _look(fresh).rows(conn, asked)
    has_places, has_texts, has_labels, has_parts = has
    if is_taken:
        raise ThreadAlreadyExistsError(target)
    cutoff = rules.require_cutoff(source, after_run_id, completion_seq)
    slice_ = {"thread": source, "cutoff": cutoff}
    now = rules.utc_now()
    row = {
        "thread_id": target,
        "parent_thread_id": source,
        "forked_at_seq": last_seq,
        "extra": rules.forked_extra(source, thread.extra, metadata, max_bytes),
        "last_seq": count,
        "last_completion_seq": cutoff,
        "created_at": now,
        "updated_at": now,
        **{column.name: getattr(thread, column.name) for column in _OF_SESSION},
    }
    if not hooks.insert_if_absent(conn, threads, row):
        raise ThreadAlreadyExistsError(target)
    whole = {**slice_, "target": target, "made_at": now, "last_seq": last_seq}
    # As many as the last one's seq, so all from the first on: they have the seqs already that they are to have.
    if count == last_seq:
        _COPY_MESSAGES.count(conn, whole)
        if has_places:
            conn.execute(_COPY_PLACES, whole)
    else:
        _COPY_MESSAGES_ANEW.count(conn, whole)
        conn.execute(_PLACE_ANEW, whole)
    _COPY_RUNS.count(conn, whole)
    counters = {}
    if thread.last_version:
        conn.execute(_COPY_CHECKPOINTS, whole)
        counters["last_version"] = conn.execute(_LAST_VERSION, {"thread": target}).scalar_one() or 0
    if thread.compacted_seq:
        copied, left = (conn.execute(_seqs(fresh, copied=copied), slice_).scalars().all() for copied in (True, False))
        counters["compacted_seq"] = context.copy_window(conn, hooks, source, target, copied, left)
    if has_texts:
        conn.execute(_COPY_SEARCH_TEXTS, whole)
    if has_labels:
        conn.execute(_COPY_LABELS, whole)
    if has_parts:
        with_parts = conn.execute(fresh(_WITH_PARTS), whole).scalars().all()
        # What has come along by now: messages and summaries.
        for some in in_batches(sorted(taken(conn, target, with_parts))):
            conn.execute(_COPY_PARTS, {**whole, "ids": some})
    if counters:
        conn.execute(sa.update(threads).where(threads.c.thread_id == target), counters)
