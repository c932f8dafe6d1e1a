"""`cp.resume` and `cp.repair`: where a thread stood when its last worker left it, and mending its transcript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from threadkeep import json_values
from threadkeep.checkpoints import checkpoint_of
from threadkeep.codec import Codec
from threadkeep.errors import CheckpointerError
from threadkeep.fields import read_field
from threadkeep.ids import is_id
from threadkeep.ledger import default_key, entry_of
from threadkeep.message_ids import new_stem
from threadkeep.parts import part_of
from threadkeep.records import (
    Believed,
    CallState,
    Draft,
    OpenRun,
    ResumeReport,
    RunState,
    StoredCall,
    StoredOpenRun,
    StoredState,
    UnansweredCall,
    Worker,
)
from threadkeep.rules import call_state, refuse_same_id_twice, utc_now
from threadkeep.store import Store

_ATTEMPTS = 8
INTERRUPTED = "This tool call was interrupted, and its result is not known."


async def report(store: Store, codec: Codec, worker: Worker, thread_id: str) -> ResumeReport | None:
    """The report, or None for a thread that does not exist."""
    state = await store.read_state(thread_id)
    if state is None:
        return None
    pending = state.pending
    return ResumeReport(
        thread_id=thread_id,
        status=state.status,
        deleted_at=state.deleted_at,
        checkpoint=checkpoint_of(codec, thread_id, state.checkpoint) if state.checkpoint else None,
        pending_request=codec.decode_request(thread_id, pending.request) if pending else None,
        pending_run_id=pending.run_id if pending else None,
        open_runs=[_open_run(run) for run in state.runs],
        calls_in_doubt=[entry_of(codec, call, call_state(call, worker)) for call in state.calls],
        unanswered_calls=[call for call, _ in _unanswered(codec, thread_id, state)],
        drafts=_drafts(codec, thread_id, state),
    )


async def repair(store: Store, codec: Codec, worker: Worker, thread_id: str) -> list[Any]:
    """Append what is missing; return it."""
    for _ in range(_ATTEMPTS):
        state = await store.read_state(thread_id)
        if state is None:
            return []
        unanswered = [(call, args, _key(thread_id, call, args)) for call, args in _unanswered(codec, thread_id, state)]
        if not unanswered:
            return []
        call_ids = [call.call_id for call, *_ in unanswered if is_id(call.call_id)]
        keys = [key for *_, key in unanswered if key is not None]
        calls = await store.calls_about(thread_id, call_ids, keys)
        # Those in flight get their result from whoever executes them, under whichever id.
        beating = [call for call in calls if call_state(call, worker) is CallState.IN_FLIGHT]
        in_flight = {*(call.call_id for call in beating), *(call.idempotency_key for call in beating)}
        open_runs = {run.run_id for run in state.runs}
        results = [
            _result(codec, call, _recorded(calls, call, args, key), open_runs)
            for call, args, key in unanswered
            if not in_flight & {call.call_id, key}
        ]
        rows = codec.encode_messages(results)
        refuse_same_id_twice(thread_id, rows)
        believed = Believed(state.messages[-1].seq, call_ids, keys, calls)
        if not results or await store.append_after(thread_id, rows, new_stem(), believed):
            return results
    raise CheckpointerError(f"thread {thread_id!r} is being written to: repair it when its worker has ended")


def _open_run(run: StoredOpenRun) -> OpenRun:
    state = RunState.CLAIMED
    if run.owner is not None:
        state = RunState.ABANDONED if run.is_expired else RunState.LEASED
    return OpenRun(run.run_id, run.claimed_at, utc_now() - run.claimed_at, state, run.owner)


def _drafts(codec: Codec, thread_id: str, state: StoredState) -> list[Draft]:
    """The parts whose message is not there, by the message that they belong to."""
    return [
        Draft(message_id, [part_of(codec, thread_id, part) for part in parts])
        for message_id, parts in groupby(state.draft_parts, key=attrgetter("message_id"))
    ]


def _unanswered(codec: Codec, thread_id: str, state: StoredState) -> list[tuple[UnansweredCall, Any]]:
    """The tool calls of the transcript without those that have a result, each with its arguments."""
    messages = codec.decode_messages(thread_id, state.messages)
    calls: dict[str, tuple[UnansweredCall, Any]] = {}
    for row, message in zip(state.messages, messages, strict=True):
        run_id = read_field(message, "run_id")
        for call_id, name, args in _calls_in(message):
            calls[call_id] = UnansweredCall(call_id, name, row.seq, run_id if is_id(run_id) else None), args
        answered = read_field(message, "tool_call_id")
        if isinstance(answered, str):
            calls.pop(answered, None)
    return list(calls.values())


def _calls_in(message: Any) -> Iterator[tuple[str, str, Any]]:
    """The tool calls that a message asks for, in any class that has the shape of ours."""
    content = read_field(message, "content")
    for part in content if isinstance(content, Sequence) and not isinstance(content, str) else ():
        call_id, name = read_field(part, "id"), read_field(part, "name")
        if read_field(part, "type") == "tool_call" and isinstance(call_id, str) and isinstance(name, str):
            yield call_id, name, read_field(part, "arguments")


def _key(thread_id: str, call: UnansweredCall, args: Any) -> str | None:
    """The key that the ledger has for this call, unless the host gave it one."""
    return default_key(thread_id, call.tool_name, args) if isinstance(args, dict) else None


def _recorded(calls: Sequence[StoredCall], call: UnansweredCall, args: Any, key: str | None) -> StoredCall | None:
    """The call in the ledger: under this id, or one that was executed in its place."""
    for stored in calls:
        # A model may use an id a second time, for another tool or other arguments.
        is_it = stored.call_id == call.call_id and stored.tool_name == call.tool_name
        if is_it and args in (None, json_values.decode(stored.args)):
            return stored
    completed = [other for other in calls if other.idempotency_key == key and other.status == CallState.COMPLETED]
    return min(completed, key=attrgetter("ended_at", "call_id"), default=None)


def _result(codec: Codec, call: UnansweredCall, recorded: StoredCall | None, open_runs: set[str]) -> Any:
    entry = entry_of(codec, recorded, call_state(recorded)) if recorded else None
    text, is_error = INTERRUPTED, True
    if entry is not None and entry.state is CallState.FAILED:
        text = f"This tool call failed: {entry.error}"
    elif entry is not None and entry.state is CallState.COMPLETED:
        text = entry.result if isinstance(entry.result, str) else json_values.encode_again(entry.result)
        is_error = False
    fields = {
        "role": "tool_result",
        "tool_call_id": call.call_id,
        "tool_name": call.tool_name,
        "content": [{"type": "text", "text": text}],
        "is_error": is_error,
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
