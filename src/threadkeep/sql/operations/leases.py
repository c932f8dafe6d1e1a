"""Leases: who may write for a run, until when. Time is the database's: workers need not agree on theirs."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import LeaseLostError
from threadkeep.records import Fence, StoredLease
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.operations import runs
from threadkeep.sql.parameters import RUN, THREAD
from threadkeep.sql.tables import leases, threads

_ITS_ROW = sa.and_(leases.c.thread_id == THREAD, leases.c.run_id == RUN, leases.c.token == sa.bindparam("fence"))


@cache
def _of_thread(hooks: Hooks) -> sa.Select[Any]:
    is_expired = (leases.c.expires_at <= hooks.clock()).label("is_expired")
    columns = (leases.c.run_id, leases.c.token, leases.c.owner, leases.c.is_exclusive, is_expired)
    return sa.select(*columns).where(leases.c.thread_id == THREAD)


@cache
def _locked(hooks: Hooks) -> sa.Select[Any]:
    return _of_thread(hooks).with_for_update(read=True)


def acquire(
    conn: sa.Connection, hooks: Hooks, thread_id: str, run_id: str, owner: str, ttl: float, is_exclusive: bool
) -> int:
    """Claim the run or take it over, with a new token, which is returned."""
    (last_token,) = hooks.lock_or_create(conn, thread_id, rules.utc_now(), threads.c.last_token)
    found = [StoredLease(*row) for row in conn.execute(_locked(hooks), {"thread": thread_id})]
    run = runs.find(conn, thread_id, run_id)
    if rules.is_to_be_claimed(thread_id, run_id, run, found, is_exclusive):
        runs.claim(conn, thread_id, run_id)
    token = rules.next_token(last_token, hooks.now(conn))
    conn.execute(sa.update(threads).where(threads.c.thread_id == thread_id), {"last_token": token})
    row = {"thread_id": thread_id, "run_id": run_id, "token": token, "owner": owner, "is_exclusive": is_exclusive}
    hooks.put(conn, leases, row | {"expires_at": hooks.clock(after=ttl)})
    return token


def require(conn: sa.Connection, hooks: Hooks, fence: Fence) -> None:
    """Raise LeaseLostError unless the lease is alive. Nobody takes it before this transaction ends: it has the lock."""
    if hooks.lock_unchanged(conn, fence.thread_id):
        # No lock where it can be done without: heartbeats must get through.
        its = hooks.fresh_on(conn)(_of_thread(hooks).where(leases.c.run_id == RUN))
        row: Any = conn.execute(its, {"thread": fence.thread_id, "run": fence.run_id}).one_or_none()
        if rules.is_alive(fence, StoredLease(*row) if row else None):
            return
    raise LeaseLostError(fence.thread_id, fence.run_id)


def renew(conn: sa.Connection, hooks: Hooks, fence: Fence, ttl: float) -> bool:
    """Keep the lease alive; say whether it still was. Only its own row is locked, so a busy thread ends no lease."""
    alive = sa.update(leases).where(_ITS_ROW, leases.c.expires_at > hooks.clock())
    return conn.execute(alive.values(expires_at=hooks.clock(after=ttl)), _key(fence)).rowcount == 1


def release(conn: sa.Connection, hooks: Hooks, fence: Fence) -> None:
    """End the lease now, if it is still this one. The run can be leased again, unless it is complete."""
    conn.execute(sa.update(leases).where(_ITS_ROW).values(expires_at=hooks.clock()), _key(fence))


def _key(fence: Fence) -> dict[str, Any]:
    return {"thread": fence.thread_id, "run": fence.run_id, "fence": fence.token}
