"""Everything a worker needs to know of a thread before it goes on."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from threadkeep import message_ids
from threadkeep.records import (
    ISSUED,
    StoredCall,
    StoredCheckpoint,
    StoredOpenRun,
    StoredPart,
    StoredPending,
    StoredState,
)
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations.checkpoints import COLUMNS
from threadkeep.sql.operations.ledger import calls
from threadkeep.sql.operations.messages import STORED, stored_message
from threadkeep.sql.operations.parts import PERHAPS_DRAFTS
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.tables import checkpoints, leases, messages, pending, runs, threads, tool_calls

R = TypeVar("R", StoredCheckpoint, StoredPending, StoredOpenRun, StoredCall, StoredPart)

_LATEST = sa.select(sa.func.max(checkpoints.c.version)).where(checkpoints.c.thread_id == THREAD).scalar_subquery()


@cache
def _parts(hooks: Hooks) -> dict[str, sa.Select[Any]]:
    lease_is_expired = sa.case((leases.c.token.is_not(None), leases.c.expires_at <= hooks.clock()))
    its_lease = sa.and_(leases.c.thread_id == runs.c.thread_id, leases.c.run_id == runs.c.run_id)
    return {
        "thread": sa.select(threads.c.status, threads.c.deleted_at).where(threads.c.thread_id == THREAD),
        "checkpoint": sa.select(*COLUMNS).where(checkpoints.c.thread_id == THREAD, checkpoints.c.version == _LATEST),
        "pending": sa.select(pending.c.request, pending.c.run_id).where(pending.c.thread_id == THREAD),
        "run": sa.select(runs.c.run_id, runs.c.claimed_at, leases.c.owner, lease_is_expired.label("is_expired"))
        .select_from(runs.outerjoin(leases, its_lease))
        .where(runs.c.thread_id == THREAD, runs.c.completed_at.is_(None)),
        "call": calls(hooks).where(tool_calls.c.thread_id == THREAD, tool_calls.c.status == ISSUED),
        "message": sa.select(*STORED, messages.c.message_id).where(messages.c.thread_id == THREAD),
        "part": PERHAPS_DRAFTS,
    }


@cache
def _state(hooks: Hooks) -> sa.CompoundSelect[Any]:
    """One statement, so one snapshot on every server. Each part has columns of its own, and says what it is."""
    parts = _parts(hooks)
    columns = [(kind, column) for kind, part in parts.items() for column in part.selected_columns]

    def whole(kind: str, part: sa.Select[Any]) -> sa.Select[Any]:
        # The first part gives every column its type, also those it has nothing for.
        nothing = _typed_null if kind == "thread" else lambda _: sa.null()
        cells = ((column if of == kind else nothing(column)).label(f"{of}_{column.name}") for of, column in columns)
        return part.with_only_columns(sa.literal_column(f"'{kind}'").label("kind"), *cells, maintain_column_froms=True)

    return sa.union_all(*(whole(kind, part) for kind, part in parts.items()))


def _typed_null(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.select(column).where(sa.false()).scalar_subquery()


def read_state(conn: sa.Connection, hooks: Hooks, thread_id: str) -> StoredState | None:
    """The thread's state, or None."""
    found: dict[str, list[Any]] = {kind: [] for kind in _parts(hooks)}
    for row in conn.execute(_state(hooks), {"thread": thread_id}).mappings():
        found[row["kind"]].append(_Cells(row, row["kind"]))
    if not found["thread"]:
        return None
    (thread,) = found["thread"]
    ids = {cells.message_id or message_ids.of_seq(cells.seq) for cells in found["message"]} if found["part"] else set()
    return StoredState(
        status=thread.status,
        deleted_at=thread.deleted_at,
        checkpoint=_first(found["checkpoint"], StoredCheckpoint),
        pending=_first(found["pending"], StoredPending),
        runs=sorted((cells.filled(StoredOpenRun) for cells in found["run"]), key=attrgetter("claimed_at", "run_id")),
        calls=sorted((cells.filled(StoredCall) for cells in found["call"]), key=attrgetter("issued_at", "call_id")),
        messages=[stored_message(cells) for cells in sorted(found["message"], key=attrgetter("seq"))],
        draft_parts=sorted(cells.filled(StoredPart) for cells in found["part"] if cells.message_id not in ids),
    )


class _Cells:
    """The columns of one part in a row that has room for all."""

    def __init__(self, row: sa.RowMapping, kind: str) -> None:
        self._row = row
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return self._row[f"{self._kind}_{name}"]

    def filled(self, record: type[R]) -> R:
        """A record of theirs."""
        return record(*(getattr(self, name) for name in record._fields))


def _first(cells: list[_Cells], record: type[R]) -> R | None:
    return cells[0].filled(record) if cells else None
