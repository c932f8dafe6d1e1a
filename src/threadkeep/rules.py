"""The decisions every backend takes alike, as functions of what it has just read under its lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from threadkeep import json_values, searching
from threadkeep.errors import (
    CheckpointCorruptionError,
    DuplicateIdError,
    LeaseHeldError,
    MessageTooLargeError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotCompletedError,
    ThreadDeletedError,
    ToolCallInFlightError,
    ToolCallMismatchError,
    ToolCallSettledError,
)
from threadkeep.records import (
    ISSUED,
    CallState,
    Execution,
    Fence,
    MessageRow,
    NewCall,
    RunRecord,
    StoredCall,
    StoredLease,
    StoredOutcome,
    ThreadRecord,
    UsageRow,
    Worker,
)

_Encoded = TypeVar("_Encoded", str, bytes)
_Kind = TypeVar("_Kind", str, dict[str, Any])

NO_RUN = ""
"""How the answers ledger writes "no run": no id is empty, and a key column cannot be null."""


def utc_now() -> datetime:
    """The time every row is stamped with: aware, UTC, to the microsecond."""
    return datetime.now(UTC)


def refuse_second_claim(thread_id: str, run_id: str, run: RunRecord | None) -> None:
    """A run is claimed once."""
    if run is None:
        return
    if run.completed_at is None:
        raise RunAlreadyClaimedError(thread_id, run_id)
    raise RunAlreadyCompletedError(thread_id, run_id)


def refuse_completed(thread_id: str, completed: Iterable[str]) -> None:
    """A completed run gets no more messages."""
    for run_id in completed:
        raise RunAlreadyCompletedError(thread_id, run_id)


def refuse_deleted(thread_id: str, deleted_at: datetime | None) -> None:
    """A thread that was deleted softly takes no writes."""
    if deleted_at is not None:
        raise ThreadDeletedError(thread_id)


def refuse_same_id_twice(thread_id: str, rows: Sequence[MessageRow]) -> None:
    """Each message has an id of its own, also among those that come together."""
    seen: set[str] = set()
    for row in rows:
        if row.message_id is not None:
            if row.message_id in seen:
                raise DuplicateIdError(thread_id, row.message_id)
            seen.add(row.message_id)


def require_cutoff(thread_id: str, run_id: str, completion_seq: int | None) -> int:
    """A fork or snapshot is cut after a completed run: its completion_seq."""
    if completion_seq is None:
        raise RunNotCompletedError(thread_id, run_id)
    return completion_seq


def decoded_extra(thread_id: str, stored: str) -> dict[str, Any]:
    """The extra that is stored, or CheckpointCorruptionError."""
    return _decoded_column(thread_id, "extra", stored, dict)


def merged_extra(thread_id: str, stored: str, changes: str, max_bytes: int) -> str:
    """The stored extra with the changes merged in, one level deep. A key set to None is kept as None."""
    merged = {**decoded_extra(thread_id, stored), **json_values.decode(changes)}
    return within(json_values.encode_again(merged), "extra", max_bytes)


def forked_extra(thread_id: str, stored: str, metadata: str | None, max_bytes: int) -> str:
    """The extra of a fork: the source's, with the fork's metadata under "fork"."""
    return stored if metadata is None else merged_extra(thread_id, stored, f'{{"fork":{metadata}}}', max_bytes)


def thread_record(row: Any) -> ThreadRecord:
    """The record of a thread that is stored as this row, or CheckpointCorruptionError. None is a column's default."""
    metadata, prompt = row.metadata, row.system_prompt
    return ThreadRecord(
        thread_id=row.thread_id,
        parent_thread_id=row.parent_thread_id,
        forked_at_seq=row.forked_at_seq,
        last_seq=row.last_seq,
        last_completion_seq=row.last_completion_seq,
        created_at=row.created_at,
        updated_at=row.updated_at,
        status=row.status,
        title=decoded_title(row.thread_id, row.title),
        metadata={} if metadata is None else _decoded_column(row.thread_id, "metadata", metadata, dict),
        model_id=row.model_id or "",
        provider_id=row.provider_id or "",
        agent=row.agent or "default",
        system_prompt="" if prompt is None else _decoded_column(row.thread_id, "system_prompt", prompt, str),
        deleted_at=row.deleted_at,
    )


def decoded_title(thread_id: str, stored: str | None) -> str | None:
    """The title that is stored, or CheckpointCorruptionError."""
    return None if stored is None else _decoded_column(thread_id, "title", stored, str)


def folded_title(thread_id: str, stored: str | None) -> str | None:
    """The text by which a thread with this title is to be found, or None."""
    title = decoded_title(thread_id, stored)
    return searching.fold(title[: searching.MAX_TEXT]) or None if title else None


def with_model_of_thread(row: UsageRow, model_id: str | None, provider_id: str | None) -> UsageRow:
    """An answer without a model is one of the thread's own: from its provider, unless it names another."""
    if row.model_id:
        return row
    return row._replace(model_id=model_id or "", provider_id=row.provider_id or provider_id or "")


def _decoded_column(thread_id: str, name: str, stored: str, kind: type[_Kind]) -> _Kind:
    try:
        value = json_values.decode(stored)
    except ValueError as error:
        raise CheckpointCorruptionError("cubepi_threads", {"thread_id": thread_id}, f"{name}: {error}") from error
    if not isinstance(value, kind):
        what = {dict: "object", str: "string"}[kind]
        raise CheckpointCorruptionError("cubepi_threads", {"thread_id": thread_id}, f"{name} is not a JSON {what}")
    return value


def within(encoded: _Encoded, what: str, max_bytes: int) -> _Encoded:
    """The encoded value, or MessageTooLargeError."""
    size = len(encoded) if isinstance(encoded, bytes) or encoded.isascii() else len(encoded.encode())
    if size > max_bytes:
        raise MessageTooLargeError(what, size, max_bytes)
    return encoded


# ---- tool calls -----------------------------------------------------------------------------------------


def call_state(call: StoredCall, worker: Worker | None = None) -> CallState:
    """How far the call got, as far as this worker can know: it knows that an earlier life of its own has ended."""
    if call.status != ISSUED:
        return CallState(call.status)
    is_of_earlier_life = worker is not None and call.owner == worker.owner and call.process != worker.process
    return CallState.UNKNOWN if call.is_expired or is_of_earlier_life else CallState.IN_FLIGHT


def standing_in_the_way(
    call: NewCall, same: Sequence[StoredCall], worker: Worker, takes_over: bool
) -> StoredCall | None:
    """Of the calls with this id or key, the one because of which this one must not be executed now.

    One of unknown outcome does not stand in the way of somebody who takes it over.
    """
    found: dict[CallState, StoredCall] = {}
    for other in same:
        if other.call_id == call.call_id and other.idempotency_key != call.idempotency_key:
            raise ToolCallMismatchError(call.thread_id, call.call_id)
        found.setdefault(call_state(other, worker), other)
    unknown = None if takes_over else found.get(CallState.UNKNOWN)
    return found.get(CallState.COMPLETED) or found.get(CallState.IN_FLIGHT) or unknown


def taken_over(call: NewCall, same: Sequence[StoredCall]) -> list[StoredCall]:
    """The calls of unknown outcome in whose place this one is executed, under an id of its own."""
    return [other for other in same if other.status == ISSUED and other.call_id != call.call_id]


def run_again_as(call: NewCall) -> StoredOutcome:
    """What becomes of those."""
    return StoredOutcome(
        CallState.FAILED, error=json_values.encode(f"its outcome was unknown, and it was run again as {call.call_id!r}")
    )


def next_attempt(call: NewCall, same: Sequence[StoredCall]) -> int:
    """1 for a call that is new."""
    return 1 + max((other.attempt for other in same if other.call_id == call.call_id), default=0)


def must_be_settled(
    call: StoredCall, outcome: StoredOutcome, execution: Execution | None, by_hand: Worker | None
) -> bool:
    """Whether the outcome is news. Raises when another one stands, or another execution than this one came after it."""
    if execution is not None and call.execution != execution:
        raise ToolCallSettledError(call.thread_id, call.call_id, "taken over by another worker")
    if call.status == outcome.status:
        return False
    if call.status != ISSUED:
        raise ToolCallSettledError(call.thread_id, call.call_id, call.status)
    if by_hand is not None and call_state(call, by_hand) is CallState.IN_FLIGHT:
        raise ToolCallInFlightError(call.thread_id, call.call_id)
    return True


# ---- leases ---------------------------------------------------------------------------------------------


def is_to_be_claimed(
    thread_id: str, run_id: str, run: RunRecord | None, leases: Sequence[StoredLease], is_exclusive: bool
) -> bool:
    """Whether a lease on the run has to claim it first. Raises when it cannot be had."""
    if run is not None and run.completed_at is not None:
        raise RunAlreadyCompletedError(thread_id, run_id)
    if run is not None and all(lease.run_id != run_id for lease in leases):
        raise RunAlreadyClaimedError(thread_id, run_id)  # by a plain claim, which never expires
    for lease in leases:
        if not lease.is_expired and (lease.run_id == run_id or lease.is_exclusive or is_exclusive):
            raise LeaseHeldError(thread_id, lease.run_id)
    return run is None


def next_token(last_token: int, now: datetime) -> int:
    """Greater than any that the thread has given out, also before it was deleted: its new row knows of none.

    `now` is the database's time: two workers' clocks may disagree about what came first.
    """
    return max(last_token + 1, int(now.timestamp() * 1_000_000))


def is_alive(fence: Fence, lease: StoredLease | None) -> bool:
    """Whether this is still the lease that was given, and its time is not over."""
    return lease is not None and lease.token == fence.token and not lease.is_expired
