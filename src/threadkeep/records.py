"""The rows that cross between the front door and a store, and the records that users get. All are frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

FORMAT_MSGPACK = 0
"""A message that cubepi wrote on a server. It stays as it is, and readable."""
FORMAT_JSON = 1
"""One message, one JSON document in UTF-8."""


class MessageRow(NamedTuple):
    """A message, encoded and ready for a store. `metadata` and `role` mirror the payload for queries."""

    payload: bytes
    format: int
    run_id: str | None
    role: str
    metadata: str
    message_id: str | None = None
    """What the host has given, which may be taken already; None for one that is made when its seq is known."""
    search_text: str | None = None
    """What a search looks at, folded; None for a message that is not to be found."""


class StoredMessage(NamedTuple):
    """A message as a store gives it back."""

    seq: int
    format: int
    payload: bytes
    mirror: Mirror | None = None
    """For a row that cubepi wrote: what its columns say."""
    is_summary: bool = False
    """Then `seq` is its number among the thread's summaries."""


class Mirror(NamedTuple):
    """The columns beside a payload of cubepi's."""

    metadata: Any
    """Overrules the payload's: cubepi took it out of there."""
    run_id: str | None
    """The run that the message belongs to. The payload may spell it in another way."""


class StoredThread(NamedTuple):
    """What `load` needs, all from one snapshot."""

    parent_thread_id: str | None
    extra: str
    messages: list[Any]
    """As they are stored, or decoded already."""


class StoredPending(NamedTuple):
    """A pending request and the run that waits on it."""

    request: str
    run_id: str | None


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread without its messages. `forked_at_seq` is the parent's seq of the last message that was copied."""

    thread_id: str
    parent_thread_id: str | None
    forked_at_seq: int | None
    last_seq: int
    last_completion_seq: int
    created_at: datetime
    updated_at: datetime
    status: str = "active"
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    model_id: str = ""
    provider_id: str = ""
    agent: str = "default"
    system_prompt: str = ""
    deleted_at: datetime | None = None
    """When it was deleted softly. Such a thread is not listed and refuses writes, until it is restored."""


class NewThread(NamedTuple):
    """A thread to be made, encoded. None stands for a column's default."""

    thread_id: str
    parent_thread_id: str | None
    title: str | None
    metadata: str | None
    model_id: str | None
    provider_id: str | None
    agent: str | None
    system_prompt: str | None
    """As JSON text: a prompt may hold what a server's text does not take."""
    labels: tuple[str, ...] = ()
    """What the metadata is found by: see `labels.label`."""


class ThreadQuery(NamedTuple):
    """Which threads to list: newest first, so many, after the last one of the page before."""

    parent_thread_id: str | None
    status: str | None
    labels: tuple[str, ...]
    include_deleted: bool
    limit: int
    after: ThreadRecord | None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Where a text was found: in a message, or in the title of the thread, and then message_id and seq are None."""

    thread_id: str
    title: str | None
    message_id: str | None
    seq: int | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: open while `completed_at` is None."""

    run_id: str
    claimed_at: datetime
    completed_at: datetime | None
    completion_seq: int | None


# ---- messages by their id, their parts, and what they cost -----------------------------------------------


class StoredEntry(NamedTuple):
    """A message as a store gives it back, with what is known of it."""

    message: StoredMessage
    message_id: str
    role: str
    run_id: str | None
    created_at: datetime | None


class NewPart(NamedTuple):
    """A part to be added to a message, encoded."""

    thread_id: str
    message_id: str
    part_type: str
    content: str
    tool_name: str | None
    tool_call_id: str | None
    tool_state: str | None
    started_at: datetime | None
    token_estimate: int


class StoredPart(NamedTuple):
    """A part as a store gives it back: values as JSON text."""

    message_id: str
    part_index: int
    part_type: str
    content: str
    tool_name: str | None
    tool_call_id: str | None
    tool_state: str | None
    started_at: datetime | None
    completed_at: datetime | None
    compacted_at: datetime | None
    output: str | None
    error: str | None
    token_estimate: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message, stored while the rest was still to come. Only its status ever changes."""

    thread_id: str
    message_id: str
    index: int
    """0, 1, 2, …: its place in the message."""
    type: str
    content: Any
    tool_name: str | None
    tool_call_id: str | None
    tool_state: str | None
    started_at: datetime | None
    completed_at: datetime | None
    compacted_at: datetime | None
    output: Any
    error: str | None
    token_estimate: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message of the log, or a summary, with what is known of it."""

    thread_id: str
    message_id: str
    seq: int | None
    """None for a summary, which is not in the log."""
    role: str
    run_id: str | None
    created_at: datetime | None
    """None where cubepi wrote the message on MySQL."""
    message: Any
    is_summary: bool = False
    parts: list[Part] | None = None
    """None where they were not asked for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Parts of a message that has not come: its streaming goes on, or was cut off."""

    message_id: str
    parts: list[Part]


class UsageRow(NamedTuple):
    """What one answer took, ready for a store. `cost` is in billionths of a dollar, so that sums are exact."""

    thread_id: str
    message_id: str
    run_id: str | None
    model_id: str
    provider_id: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int
    finish_reason: str


class StoredTotals(NamedTuple):
    """Sums over some answers. The key is the run or the model they have in common."""

    key: str | None
    answers: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What one answer took."""

    thread_id: str
    message_id: str
    run_id: str | None
    model_id: str
    provider_id: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """What some answers took together."""

    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0


# ---- the context window ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContextItem:
    """A message of the log, or a summary in the place of some, as it stands in the context window."""

    thread_id: str
    message_id: str
    position: int
    """The message's seq; of a summary, that of the first message it stands for."""
    is_summary: bool = False


class PlacedItem(NamedTuple):
    """The same, for a store."""

    position: int
    message_id: str
    number: int | None
    """Of a summary, its number in the thread."""


# ---- files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file that was seen: which content, at which path. The content itself is kept elsewhere."""

    content_id: str
    path: str
    media_type: str
    size: int | None
    token_count: int | None
    summary: str
    metadata: dict[str, Any]
    stored_at: datetime


class StoredFile(NamedTuple):
    """The same, encoded."""

    content_id: str
    path: str
    media_type: str
    size: int | None
    token_count: int | None
    summary: str
    metadata: str
    stored_at: datetime


# ---- the ledger of tool calls ---------------------------------------------------------------------------


class CallState(StrEnum):
    """How far a tool call got."""

    IN_FLIGHT = "in_flight"
    """Issued, and its owner is alive."""
    UNKNOWN = "unknown"
    """Issued, and its owner is not: it may or may not have happened."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It did not happen, and may be tried again."""


ISSUED = "issued"
"""How IN_FLIGHT and UNKNOWN are stored: only the clock tells them apart."""


class NewCall(NamedTuple):
    """A call that wants to be executed, encoded."""

    thread_id: str
    call_id: str
    tool_name: str
    args: str
    idempotency_key: str
    run_id: str | None


class Worker(NamedTuple):
    """Who executes calls: a name that may outlive a restart, and one life of it."""

    owner: str
    process: str


class Execution(NamedTuple):
    """One time that a call was issued: by which process, and as which attempt."""

    process: str
    attempt: int


class StoredOutcome(NamedTuple):
    """How a call ended: its status, and its result or error as JSON text."""

    status: str
    result: str | None = None
    error: str | None = None


class Believed(NamedTuple):
    """What a repair has seen, and what must still be so when it is written."""

    last_seq: int
    call_ids: Sequence[str]
    keys: Sequence[str]
    calls: Sequence[StoredCall]
    """Those of the ledger with one of these ids or keys."""

    def still_holds(self, calls: Iterable[StoredCall]) -> bool:
        """Whether these are the same calls, and none of them has ended or was issued again."""
        before, now = ({(call.call_id, call.status, call.attempt) for call in some} for some in (self.calls, calls))
        return before == now


class StoredCall(NamedTuple):
    """A call as a store gives it back."""

    thread_id: str
    call_id: str
    tool_name: str
    args: str
    idempotency_key: str
    run_id: str | None
    status: str
    result: str | None
    error: str | None
    owner: str
    process: str
    attempt: int
    issued_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    is_expired: bool

    @property
    def execution(self) -> Execution:
        """The last time that it was issued."""
        return Execution(self.process, self.attempt)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A tool call: what was asked for, how far it got, and what came of it."""

    thread_id: str
    call_id: str
    tool_name: str
    args: dict[str, Any]
    idempotency_key: str
    run_id: str | None
    state: CallState
    result: Any
    error: str | None
    owner: str
    attempt: int
    """1, 2, …: how often it was issued."""
    issued_at: datetime
    expires_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Issued:
    """The answer to `ledger.issue`: execute the call if `execute` says so, or else see what the entry says."""

    entry: LedgerEntry
    execute: bool


@dataclass(frozen=True, slots=True)
class Completed:
    """An outcome: the call happened, and gave this result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An outcome: the call did not happen. It may be tried again."""

    error: str = ""


# ---- checkpoints ----------------------------------------------------------------------------------------


class StoredCheckpoint(NamedTuple):
    """A checkpoint as a store gives it back: values as JSON text."""

    version: int
    seq: int
    plan: str
    budget_spent_usd: str
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A moment of a thread. `seq` says how far the transcript went, and `messages` are those up to there."""

    thread_id: str
    version: int
    seq: int
    plan: Any
    budget_spent_usd: float
    state: Any
    created_at: datetime
    messages: list[Any] | None = None
    """None where they were not asked for."""


# ---- leases and the resume report -----------------------------------------------------------------------


class Fence(NamedTuple):
    """What a leased write must still hold: this token of the run's lease."""

    thread_id: str
    run_id: str
    token: int


class StoredLease(NamedTuple):
    """A lease as a store gives it back."""

    run_id: str
    token: int
    owner: str
    is_exclusive: bool
    is_expired: bool


class StoredOpenRun(NamedTuple):
    """A run that is not complete, with its lease, if it ever had one."""

    run_id: str
    claimed_at: datetime
    owner: str | None
    is_expired: bool | None


class StoredState(NamedTuple):
    """What a resume report is made of, all from one snapshot."""

    status: str
    deleted_at: datetime | None
    checkpoint: StoredCheckpoint | None
    pending: StoredPending | None
    runs: list[StoredOpenRun]
    calls: list[StoredCall]
    messages: list[StoredMessage]
    draft_parts: list[StoredPart]
    """Parts whose message is not there."""


class RunState(StrEnum):
    """What is known of a run that is not complete."""

    CLAIMED = "claimed"
    """By a plain claim: only the host knows whether anybody still works on it."""
    LEASED = "leased"
    """A worker is alive and works on it."""
    ABANDONED = "abandoned"
    """It was leased, and the lease has ended: another worker may take it."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that was claimed and not completed."""

    run_id: str
    claimed_at: datetime
    age: timedelta
    state: RunState
    owner: str | None
    """Who leased it last."""


@dataclass(frozen=True, slots=True)
class UnansweredCall:
    """A tool call in the transcript that has no result: a model's API would refuse the thread."""

    call_id: str
    tool_name: str
    seq: int
    run_id: str | None


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """Where a thread stood when its last worker left it."""

    thread_id: str
    status: str
    checkpoint: Checkpoint | None
    pending_request: Any | None
    pending_run_id: str | None
    open_runs: list[OpenRun] = field(default_factory=list)
    calls_in_doubt: list[LedgerEntry] = field(default_factory=list)
    """Issued and not settled. Those in flight have an owner that is alive."""
    unanswered_calls: list[UnansweredCall] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    """What was being streamed. Append the message under its id, or discard the parts."""
    deleted_at: datetime | None = None
    """When the thread was deleted softly: it takes no writes until it is restored."""

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to settle before the next run."""
        is_asked, is_deleted = self.pending_request is not None, self.deleted_at is not None
        in_doubt = self.open_runs or self.calls_in_doubt or self.unanswered_calls or self.drafts
        return not (is_asked or is_deleted or in_doubt)
