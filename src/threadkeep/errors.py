"""Everything an operation may raise, on one screen per family.

Every error keeps its ids as attributes and in `args`, so that it survives pickling; the text is built from them.
"""

from __future__ import annotations

from typing import Any


class CheckpointerError(Exception):
    """The root of what an operation may raise."""


class _About(CheckpointerError):
    """An error about the ids in `fields`; `template` makes its text of them."""

    template = ""
    fields: tuple[str, ...] = ()

    def __init__(self, *ids: Any, **named: Any) -> None:
        if len(ids) > len(self.fields) or set(named) != set(self.fields[len(ids) :]):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.fields)}")
        values = (*ids, *(named[field] for field in self.fields[len(ids) :]))
        super().__init__(*values)
        for field, value in zip(self.fields, values, strict=True):
            setattr(self, field, value)

    def __str__(self) -> str:
        return self.template.format(**{field: getattr(self, field) for field in self.fields})


class _AboutThread(_About):
    fields = ("thread_id",)
    thread_id: str


class _AboutRun(_About):
    fields = ("thread_id", "run_id")
    thread_id: str
    run_id: str


class ThreadNotFoundError(_AboutThread):
    """No such thread."""

    template = "there is no thread {thread_id!r}: threads.list() has those that are there"


class ThreadAlreadyExistsError(_AboutThread):
    """The id is taken; nothing was written."""

    template = "a thread {thread_id!r} exists already: choose another id for the new one"


class ThreadDeletedError(_AboutThread):
    """The thread was deleted softly: it can be read, and is not written to any more. Nothing was written."""

    template = "thread {thread_id!r} is deleted and takes no writes: bring it back with threads.restore() first"


class RunNotClaimedError(_AboutRun):
    """A run can only be completed after it was claimed."""

    template = "run {run_id!r} of thread {thread_id!r} was never claimed: call claim_run first"


class RunNotCompletedError(_AboutRun):
    """A fork or snapshot starts at a completed run; this one is unknown, open or abandoned."""

    template = "run {run_id!r} of thread {thread_id!r} is not completed: take one that is, see runs.list()"


class RunAlreadyClaimedError(_AboutRun):
    """Somebody else has claimed the run and not completed it."""

    template = "run {run_id!r} of thread {thread_id!r} is claimed already: let its owner go on, or use a new run id"


class RunAlreadyCompletedError(_AboutRun):
    """The run is complete: it can neither be claimed again nor get more messages."""

    template = "run {run_id!r} of thread {thread_id!r} is completed: start a new run"


class CompletionMarkerFailedError(_About):
    """For hosts: the run's last append succeeded, but marking it complete did not. Mark it again to recover."""

    fields = ("thread_id", "run_id", "cause")
    thread_id: str
    run_id: str
    cause: BaseException
    template = "marking run {run_id!r} of thread {thread_id!r} complete failed: {cause}"

    def __init__(self, *ids: Any, **named: Any) -> None:
        super().__init__(*ids, **named)
        self.__cause__ = self.cause


class LeaseHeldError(RunAlreadyClaimedError):
    """Another worker holds a lease that is alive: on this run, or, where one of the two is exclusive, on its thread."""

    template = "run {run_id!r} of thread {thread_id!r} is leased to another worker: try again when its lease has ended"


class LeaseLostError(_AboutRun):
    """The lease has expired or was taken over: the write through it did not happen. Stop working on this run."""

    template = "the lease on run {run_id!r} of thread {thread_id!r} is lost, and nothing was written: stop working"


class _AboutCall(_About):
    fields = ("thread_id", "call_id")
    thread_id: str
    call_id: str


class ToolCallNotFoundError(_AboutCall):
    """The ledger has no such call."""

    template = "the ledger of thread {thread_id!r} has no call {call_id!r}: issue it first"


class ToolCallInFlightError(_AboutCall):
    """Another worker, or another task, is executing this call right now."""

    template = "call {call_id!r} of thread {thread_id!r} is in flight: wait for its result, do not run it a second time"


class ToolCallInterruptedError(_AboutCall):
    """The call was issued, and whether it happened is unknown. It is never run again by itself."""

    template = (
        "call {call_id!r} of thread {thread_id!r} was interrupted, and nobody knows whether it happened: find out, then"
        " settle it with ledger.resolve()"
    )


class ToolCallSettledError(_About):
    """The call has ended in another way already, or somebody has taken it over: what was recorded stands."""

    fields = ("thread_id", "call_id", "state")
    thread_id: str
    call_id: str
    state: str
    template = "call {call_id!r} of thread {thread_id!r} is {state}, and that stands: read it with ledger.get()"


class ToolCallMismatchError(_AboutCall):
    """The call's id is in the ledger for another tool or other arguments."""

    template = (
        "call {call_id!r} of thread {thread_id!r} is in the ledger with another idempotency key: use a new id for"
        " another tool or other arguments"
    )


class _AboutMessage(_About):
    fields = ("thread_id", "message_id")
    thread_id: str
    message_id: str


class MessageNotFoundError(_AboutMessage):
    """The thread has no message, and no summary, of this id."""

    template = "thread {thread_id!r} has no message {message_id!r}: messages.list() has those that are there"


class SummaryNotFoundError(MessageNotFoundError):
    """The thread has no summary of this id. Only summaries stand for something else."""

    template = "thread {thread_id!r} has no summary {message_id!r}: context.items() says which are summaries"


class DuplicateIdError(_AboutMessage):
    """The thread has a message or a summary of this id already, and nothing was written.

    For one that was appended with unknown outcome, that is the answer: it is there.
    """

    template = "thread {thread_id!r} has a message or summary {message_id!r} already: each needs an id of its own"


class PartNotFoundError(_About):
    """The message has no such part."""

    fields = ("thread_id", "message_id", "index")
    thread_id: str
    message_id: str
    index: int
    template = "message {message_id!r} of thread {thread_id!r} has no part {index}: parts.of() has those that are there"


class ImmutableFieldError(_About):
    """What was stored of a message stays as it is: of a part, only its status may change."""

    fields = ("name",)
    name: str
    template = (
        "{name}: what was stored of a message stays as it is. Of its parts only the status may change, and none is"
        " discarded"
    )


class StaleContextError(_About):
    """These are not in the context window: another compaction came first, or they are of another thread.

    Nothing was changed. Look at context.items() again, and summarize what is there.
    """

    fields = ("thread_id", "message_ids")
    thread_id: str
    message_ids: list[str]

    def __str__(self) -> str:
        shown = str(self.message_ids[:5])
        more = len(self.message_ids) - 5
        if more > 0:
            shown += f" and {more:,} more"
        return f"not in the context window of thread {self.thread_id!r}: {shown}. Nothing was changed: read it again"


class CheckpointerLockTimeoutError(CheckpointerError):
    """Another writer held what this call needed for longer than the lock timeout. Nothing was written."""


class TransactionConflictError(CheckpointerError):
    """The server has ended this transaction over a deadlock, serialization or snapshot conflict.

    Only inside `transaction()` or `using()`: roll back and run all of it again.
    """


class OutcomeUnknownError(CheckpointerError):
    """The connection broke after the write was sent: it may or may not have happened. Load, then decide."""


class CheckpointCorruptionError(_About):
    """A stored row does not decode. Nothing is skipped: the whole read fails."""

    fields = ("table", "key", "reason")
    table: str
    key: dict[str, Any]
    reason: str
    template = "the row of {table} at {key} does not decode: {reason}"

    @property
    def thread_id(self) -> str | None:
        """The thread the row belongs to."""
        return self.key.get("thread_id")

    @property
    def row_ref(self) -> str:
        """Table and key as one line, for logs."""
        return f"{self.table} " + " ".join(f"{column}={value}" for column, value in self.key.items())


class InvalidIdError(_About, ValueError):
    """An id that no backend takes. Raised before a connection is taken."""

    fields = ("name", "value", "reason")
    name: str
    value: Any
    reason: str
    template = "{name} {value!r:.100} cannot be an id: {reason}"


class UnstorableValueError(_About, ValueError):
    """A value that would not come back as it went in. Raised before a connection is taken."""

    fields = ("path", "reason")
    path: str
    reason: str
    template = "{path}: {reason}"


class MessageTooLargeError(_About):
    """One message, extra, request or answer is larger than the limit. Nothing was written."""

    fields = ("what", "size", "limit")
    what: str
    size: int
    limit: int
    template = (
        "{what} takes {size:,} bytes, more than the {limit:,} allowed: store large content elsewhere and keep a"
        " reference, or raise max_value_bytes"
    )


class CubepiSchemaError(Exception):
    """The root of schema trouble. The tables keep cubepi's names, and so do these errors."""


class CubepiSchemaUninitialized(CubepiSchemaError):
    """The database has none of our tables."""

    def __init__(
        self, message: str = "the database has no Threadkeep tables: run 'threadkeep upgrade URL' first"
    ) -> None:
        super().__init__(message)


class CubepiSchemaMismatch(CubepiSchemaError):
    """The schema is older than this library needs, or newer and no longer open to it."""

    def __init__(self, expected: int, actual: int, hint: str = "") -> None:
        super().__init__(expected, actual, hint)
        self.expected = expected
        self.actual = actual
        self.hint = hint

    def __str__(self) -> str:
        text = f"the database schema is version {self.actual}, this library needs {self.expected}"
        return f"{text}: {self.hint}" if self.hint else text
