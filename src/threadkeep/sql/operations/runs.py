"""Runs: claiming, completing, listing. What is read here is read under the thread's lock, with a locking read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import RunNotClaimedError
from threadkeep.records import RunRecord
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import NOW, RUN, THREAD, Among
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import runs, threads

_RECORD = sa.select(runs.c.run_id, runs.c.claimed_at, runs.c.completed_at, runs.c.completion_seq).where(
    runs.c.thread_id == THREAD
)
# Locking reads: inside a host's transaction the snapshot may be older than the lock we have just waited for.
_FIND = _RECORD.where(runs.c.run_id == RUN).with_for_update(read=True)
_LIST = _RECORD.order_by(runs.c.claimed_at, runs.c.run_id)
_COMPLETED_AMONG = (
    sa.select(runs.c.run_id)
    .where(
        runs.c.thread_id == THREAD,
        Among(runs.c.run_id, sa.bindparam("runs", expanding=True)),
        runs.c.completed_at.is_not(None),
    )
    .with_for_update(read=True)
)
_COMPLETED = Prepared(
    sa.select(runs.c.run_id)
    .where(runs.c.thread_id == THREAD, runs.c.run_id == RUN, runs.c.completed_at.is_not(None))
    .with_for_update(read=True)
)
# What an UPDATE looks at is what is committed by now, as with a locking read.
_COMPLETE = Prepared(
    sa.update(runs)
    .where(runs.c.thread_id == THREAD, runs.c.run_id == RUN, runs.c.completed_at.is_(None))
    .values(completed_at=NOW, completion_seq=sa.bindparam("next"))
)
_GIVE_BACK = (
    sa.update(threads).where(threads.c.thread_id == THREAD).values(last_completion_seq=sa.bindparam("unused") - 1)
)


def claim_run(conn: sa.Connection, hooks: Hooks, thread_id: str, run_id: str) -> None:
    """Claim the run, if nobody has."""
    now = rules.utc_now()
    hooks.lock_or_create(conn, thread_id, now)
    if not hooks.insert_if_absent(conn, runs, {"thread_id": thread_id, "run_id": run_id, "claimed_at": now}):
        rules.refuse_second_claim(thread_id, run_id, find(conn, thread_id, run_id))


def mark_run_complete(conn: sa.Connection, hooks: Hooks, thread_id: str, run_id: str) -> None:
    """Complete the run at the thread's next completion_seq, unless it is complete."""
    now = rules.utc_now()
    completion_seq = hooks.next_completion_seq(conn, thread_id, now)
    its_own = {"thread": thread_id, "run": run_id}
    if completion_seq and _COMPLETE.count(conn, {**its_own, "now": now, "next": completion_seq}) == 1:
        return
    if completion_seq is None or find(conn, thread_id, run_id) is None:
        raise RunNotClaimedError(thread_id, run_id)
    # It is complete already: the number is for the next one.
    conn.execute(_GIVE_BACK, {"thread": thread_id, "unused": completion_seq})


def list_runs(conn: sa.Connection, hooks: Hooks, thread_id: str) -> list[RunRecord]:
    """The thread's runs in the order they were claimed."""
    return [RunRecord(*row) for row in conn.execute(_LIST, {"thread": thread_id})]


def completed_among(conn: sa.Connection, thread_id: str, run_ids: Sequence[str]) -> Iterator[str]:
    """Those of these runs that are complete."""
    if len(run_ids) == 1:
        yield from (run_id for (run_id,) in _COMPLETED.rows(conn, {"thread": thread_id, "run": run_ids[0]}))
        return
    for some in in_batches(run_ids):
        yield from conn.execute(_COMPLETED_AMONG, {"thread": thread_id, "runs": some}).scalars()


def claim(conn: sa.Connection, thread_id: str, run_id: str) -> None:
    """Write the claim of a run that nobody has claimed."""
    conn.execute(sa.insert(runs), {"thread_id": thread_id, "run_id": run_id, "claimed_at": rules.utc_now()})


def find(conn: sa.Connection, thread_id: str, run_id: str) -> RunRecord | None:
    """The run, or None."""
    row = conn.execute(_FIND, {"thread": thread_id, "run": run_id}).one_or_none()
    return RunRecord(*row) if row else None
