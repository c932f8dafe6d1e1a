"""`cp.resume` and `cp.repair`: where a thread stood when its last worker left it, and mending its transcript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from threadkeep import json_values
from threadkeep.checkpoints import checkpoint_of
from threadkeep.codec import Codec
from threadkeep.errors import CheckpointerError
from threadkeep.heartbeats import Heartbeats
from threadkeep.ledger import DEFAULT_TTL, entry_of
from threadkeep.records import (
    CallState,
    Claimant,
    OpenRun,
    ResumeReport,
    RunState,
    StoredOpenRun,
    StoredState,
    UnansweredCall,
)
from threadkeep.rules import call_state, utc_now
from threadkeep.store import Store

_ATTEMPTS = 8
INTERRUPTED = "This tool call was interrupted, and its result is not known."


async def report(store: Store, codec: Codec, heartbeats: Heartbeats | None, thread_id: str) -> ResumeReport | None:
    """The report, or None for a thread that does not exist."""
    state = await store.read_state(thread_id)
    if state is None:
        return None
    claimant = None
    if heartbeats is not None:
        claimant = Claimant(heartbeats.owner, DEFAULT_TTL, lambda call_id: heartbeats.holds((thread_id, call_id)))
    pending = state.pending
    return ResumeReport(
        thread_id=thread_id,
        status=state.status,
        checkpoint=checkpoint_of(codec, thread_id, state.checkpoint) if state.checkpoint else None,
        pending_request=codec.decode_request(thread_id, pending.request) if pending else None,
        pending_run_id=pending.run_id if pending else None,
        open_runs=[_open_run(run) for run in state.runs],
        calls_in_doubt=[entry_of(codec, call, call_state(call, claimant)) for call in state.calls],
        unanswered_calls=_unanswered(codec, thread_id, state),
    )


async def repair(store: Store, codec: Codec, thread_id: str) -> list[Any]:
    """Append what is missing; return it."""
    for _ in range(_ATTEMPTS):
        state = await store.read_state(thread_id)
        unanswered = _unanswered(codec, thread_id, state) if state else []
        if state is None or not unanswered:
            return []
        open_runs = {run.run_id for run in state.runs}
        results = [await _result(store, codec, thread_id, call, open_runs) for call in unanswered]
        if await store.append_after(thread_id, codec.encode_messages(results), state.messages[-1].seq):
            return results
    raise CheckpointerError(f"thread {thread_id!r} is being written to: repair it when its worker has ended")


def _open_run(run: StoredOpenRun) -> OpenRun:
    state = RunState.CLAIMED
    if run.owner is not None:
        state = RunState.ABANDONED if run.is_expired else RunState.LEASED
    return OpenRun(run.run_id, run.claimed_at, utc_now() - run.claimed_at, state, run.owner)


def _unanswered(codec: Codec, thread_id: str, state: StoredState) -> list[UnansweredCall]:
    """The tool calls of the transcript without those that have a result."""
    messages = codec.decode_messages(thread_id, state.messages)
    calls: dict[str, UnansweredCall] = {}
    for row, message in zip(state.messages, messages, strict=True):
        for call_id, name in _calls_in(message):
            calls[call_id] = UnansweredCall(call_id, name, row.seq, _read(message, "run_id"))
        calls.pop(_read(message, "tool_call_id"), None)
    return list(calls.values())


def _calls_in(message: Any) -> Iterator[tuple[str, str]]:
    """The tool calls that a message asks for, in any class that has the shape of ours."""
    content = _read(message, "content")
    for part in content if isinstance(content, Sequence) and not isinstance(content, str) else ():
        call_id, name = _read(part, "id"), _read(part, "name")
        if _read(part, "type") == "tool_call" and isinstance(call_id, str) and isinstance(name, str):
            yield call_id, name


async def _result(store: Store, codec: Codec, thread_id: str, call: UnansweredCall, open_runs: set[str]) -> Any:
    stored = await store.get_call(thread_id, call.call_id)
    is_known = stored is not None and stored.status == CallState.COMPLETED
    text = INTERRUPTED
    if is_known and stored is not None and stored.result is not None:
        value = codec.decode_value(
            stored.result, "cubepi_tool_calls", {"thread_id": thread_id, "call_id": call.call_id}
        )
        text = value if isinstance(value, str) else json_values.encode_again(value)
    fields = {
        "role": "tool_result",
        "tool_call_id": call.call_id,
        "tool_name": call.tool_name,
        "content": [{"type": "text", "text": text}],
        "is_error": not is_known,
        # A completed run takes no more messages: there it belongs to none.
        "run_id": call.run_id if call.run_id in open_runs else None,
    }
    try:
        return codec.make_message(fields)
    except ValidationError as error:
        raise CheckpointerError(
            "message_type cannot be made from a tool result's fields (role, tool_call_id, tool_name, content,"
            " is_error): append results of your own for resume(…).unanswered_calls"
        ) from error


def _read(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
