"""The ledger: which tool calls were issued, by whom, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import ToolCallNotFoundError
from threadkeep.records import ISSUED, CallState, Execution, NewCall, StoredCall, StoredOutcome, Worker
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import CALL, IDS, KEY, THREAD, Among
from threadkeep.sql.tables import tool_calls

_COLUMNS = [tool_calls.c[name] for name in StoredCall._fields if name != "is_expired"]
_ITS_ROW = sa.and_(tool_calls.c.thread_id == THREAD, tool_calls.c.call_id == CALL)


@cache
def calls(hooks: Hooks) -> sa.Select[Any]:
    """What a StoredCall is made of."""
    return sa.select(*_COLUMNS, (tool_calls.c.expires_at <= hooks.clock()).label("is_expired"))


@cache
def _same_id(hooks: Hooks) -> sa.Select[Any]:
    return calls(hooks).where(_ITS_ROW)


@cache
def _same_key(hooks: Hooks) -> sa.Select[Any]:
    same = sa.and_(tool_calls.c.thread_id == THREAD, tool_calls.c.idempotency_key == KEY)
    return calls(hooks).where(same, tool_calls.c.call_id != CALL)


def issue(
    conn: sa.Connection, hooks: Hooks, call: NewCall, worker: Worker, ttl: float, takes_over: bool
) -> tuple[StoredCall, bool]:
    """Record that the call is about to be executed, and say so; or give the call that stands in its way."""
    now = rules.utc_now()
    hooks.lock_or_create(conn, call.thread_id, now)
    key = {"thread": call.thread_id, "call": call.call_id, "key": call.idempotency_key}
    # Two statements: with an OR, servers read every call of the thread.
    same = [found for query in (_same_id, _same_key) for found in _read(conn, hooks, query(hooks), key)]
    in_the_way = rules.standing_in_the_way(call, same, worker, takes_over)
    if in_the_way is not None:
        return in_the_way, False
    for other in rules.taken_over(call, same):
        _end(conn, call.thread_id, other.call_id, rules.run_again_as(call))
    row = {
        **call._asdict(),
        **worker._asdict(),
        "status": ISSUED,
        "result": None,
        "error": None,
        "attempt": rules.next_attempt(call, same),
        "issued_at": now,
        "ended_at": None,
    }
    hooks.put(conn, tool_calls, row | {"expires_at": hooks.clock(after=ttl)})
    return _find(conn, hooks, call.thread_id, call.call_id), True


def settle(
    conn: sa.Connection,
    hooks: Hooks,
    thread_id: str,
    call_id: str,
    outcome: StoredOutcome,
    execution: Execution | None,
    by_hand: Worker | None,
) -> StoredCall:
    """Record how the call ended. One that ended so already stays as it is."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        raise ToolCallNotFoundError(thread_id, call_id)
    call = _find(conn, hooks, thread_id, call_id)
    if rules.must_be_settled(call, outcome, execution, by_hand):
        _end(conn, thread_id, call_id, outcome)
        call = _find(conn, hooks, thread_id, call_id)
    return call


def let_go(conn: sa.Connection, hooks: Hooks, thread_id: str, call_id: str, execution: Execution) -> None:
    """Nobody renews this call any more: its outcome is unknown from now on."""
    expired = sa.update(tool_calls).where(_ITS_ROW, *_is(execution))
    conn.execute(expired.values(expires_at=hooks.clock()), {"thread": thread_id, "call": call_id})


def renew(conn: sa.Connection, hooks: Hooks, thread_id: str, call_id: str, execution: Execution, ttl: float) -> bool:
    """Keep the call in flight; say whether it still was. Only its own row is locked: nothing else changes."""
    in_flight = sa.and_(
        _ITS_ROW,
        *_is(execution),
        tool_calls.c.status == ISSUED,
        tool_calls.c.expires_at > hooks.clock(),
    )
    renewed = sa.update(tool_calls).where(in_flight).values(expires_at=hooks.clock(after=ttl))
    return conn.execute(renewed, {"thread": thread_id, "call": call_id}).rowcount == 1


def get_call(conn: sa.Connection, hooks: Hooks, thread_id: str, call_id: str) -> StoredCall | None:
    """The call, or None."""
    row = conn.execute(calls(hooks).where(_ITS_ROW), {"thread": thread_id, "call": call_id}).one_or_none()
    return StoredCall(*row) if row else None


def calls_about(
    conn: sa.Connection, hooks: Hooks, thread_id: str, call_ids: Sequence[str], keys: Sequence[str]
) -> list[StoredCall]:
    """The calls with one of these ids or keys; and nobody issues or settles one before this transaction ends."""
    # Who does that has the thread's lock.
    return about(conn, hooks, thread_id, call_ids, keys) if hooks.lock_unchanged(conn, thread_id) else []


def about(
    conn: sa.Connection, hooks: Hooks, thread_id: str, call_ids: Sequence[str], keys: Sequence[str]
) -> list[StoredCall]:
    """The calls with one of these ids or keys, however old the transaction's snapshot is."""
    found: dict[str, StoredCall] = {}
    for column, values in ((tool_calls.c.call_id, call_ids), (tool_calls.c.idempotency_key, keys)):
        theirs = calls(hooks).where(tool_calls.c.thread_id == THREAD, Among(column, IDS))
        for some in in_batches(values):
            read = _read(conn, hooks, theirs, {"thread": thread_id, "ids": some})
            found |= {call.call_id: call for call in read}
    return [*found.values()]


def list_calls(conn: sa.Connection, hooks: Hooks, thread_id: str, only_issued: bool) -> list[StoredCall]:
    """The thread's calls in the order they were issued."""
    listed = calls(hooks).where(tool_calls.c.thread_id == THREAD)
    if only_issued:
        listed = listed.where(tool_calls.c.status == ISSUED)
    rows = conn.execute(listed.order_by(tool_calls.c.issued_at, tool_calls.c.call_id), {"thread": thread_id})
    return [StoredCall(*row) for row in rows]


def find_completed(conn: sa.Connection, hooks: Hooks, thread_id: str | None, key: str) -> StoredCall | None:
    """The first completed call with this key: of the thread, or of any."""
    completed = sa.and_(tool_calls.c.idempotency_key == KEY, tool_calls.c.status == CallState.COMPLETED.value)
    found = calls(hooks).where(completed).order_by(tool_calls.c.ended_at, tool_calls.c.call_id).limit(1)
    if thread_id is not None:
        found = found.where(tool_calls.c.thread_id == THREAD)
    row = conn.execute(found, {"thread": thread_id, "key": key}).one_or_none()
    return StoredCall(*row) if row else None


def _read(conn: sa.Connection, hooks: Hooks, asked: sa.Select[Any], key: dict[str, Any]) -> list[StoredCall]:
    """The calls as they are by now, under the thread's lock. Heartbeats renew them without it.

    They would wait for a lock that a long transaction takes here, so where it can be done without, it takes none on
    calls in flight. One that seems to have expired is read again with it: a heartbeat may be about to commit, or has
    done so after the snapshot of a host's transaction.
    """
    rows: Any = conn.execute(hooks.fresh_on(conn)(asked), key)
    found = [StoredCall(*row) for row in rows]
    return [_locked(conn, hooks, call) if call.status == ISSUED and call.is_expired else call for call in found]


def _locked(conn: sa.Connection, hooks: Hooks, call: StoredCall) -> StoredCall:
    key = {"thread": call.thread_id, "call": call.call_id}
    return StoredCall(*conn.execute(_same_id(hooks).with_for_update(read=True), key).one())


def _is(execution: Execution) -> list[sa.ColumnElement[bool]]:
    return [tool_calls.c.process == execution.process, tool_calls.c.attempt == execution.attempt]


def _find(conn: sa.Connection, hooks: Hooks, thread_id: str, call_id: str) -> StoredCall:
    found = _read(conn, hooks, _same_id(hooks), {"thread": thread_id, "call": call_id})
    if not found:
        raise ToolCallNotFoundError(thread_id, call_id)
    return found[0]


def _end(conn: sa.Connection, thread_id: str, call_id: str, outcome: StoredOutcome) -> None:
    conn.execute(
        sa.update(tool_calls).where(_ITS_ROW).values(**outcome._asdict(), ended_at=rules.utc_now()),
        {"thread": thread_id, "call": call_id},
    )
