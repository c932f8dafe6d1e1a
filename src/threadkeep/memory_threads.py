"""What MemoryCheckpointer keeps: threads in plain dictionaries, as committed or as a transaction sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from threadkeep import rules
from threadkeep.errors import (
    CheckpointerError,
)
from threadkeep.records import (
    MessageRow,
    RunRecord,
    StoredCall,
    StoredCheckpoint,
    StoredLease,
    StoredPending,
    ThreadRecord,
)


@dataclass(frozen=True)
class Lease:
    """A lease on a run of a thread."""

    run_id: str
    token: int
    owner: str
    is_exclusive: bool
    expires_at: datetime

    def stored(self) -> StoredLease:
        return StoredLease(self.run_id, self.token, self.owner, self.is_exclusive, self.expires_at <= rules.utc_now())


@dataclass
class Thread:
    """One thread. Its containers are copied before a transaction changes them."""

    created_at: datetime
    updated_at: datetime
    parent_thread_id: str | None = None
    forked_at_seq: int | None = None
    extra: str = "{}"
    last_completion_seq: int = 0
    messages: list[MessageRow] = field(default_factory=list)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    pending: tuple[str | None, StoredPending] | None = None
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    status: str = "active"
    calls: dict[str, StoredCall] = field(default_factory=dict)
    checkpoints: dict[int, StoredCheckpoint] = field(default_factory=dict)
    last_version: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)
    last_token: int = 0

    def copy(self) -> Thread:
        return replace(
            self,
            messages=list(self.messages),
            runs=dict(self.runs),
            answers=dict(self.answers),
            calls=dict(self.calls),
            checkpoints=dict(self.checkpoints),
            leases=dict(self.leases),
        )

    def record(self, thread_id: str) -> ThreadRecord:
        return ThreadRecord(
            thread_id=thread_id,
            parent_thread_id=self.parent_thread_id,
            forked_at_seq=self.forked_at_seq,
            last_seq=len(self.messages),
            last_completion_seq=self.last_completion_seq,
            created_at=self.created_at,
            updated_at=self.updated_at,
            status=self.status,
        )

    def slice_after(self, thread_id: str, after_run_id: str) -> tuple[int, list[tuple[int, MessageRow]]]:
        """The cutoff, and what a fork copies with the seqs it has here."""
        run = self.runs.get(after_run_id)
        cutoff = rules.require_cutoff(thread_id, after_run_id, run.completion_seq if run else None)
        completed = {run.run_id for run in self.runs.values() if run.completion_seq and run.completion_seq <= cutoff}
        return cutoff, [
            (seq, row) for seq, row in enumerate(self.messages, 1) if row.run_id is None or row.run_id in completed
        ]


class Threads:
    """The threads, as committed or as a transaction sees them: committed ones shine through until written."""

    def __init__(self, committed: Threads | None = None) -> None:
        self._committed = committed
        self._own: dict[str, Thread | None] = {}
        self.over = False

    @property
    def is_transaction(self) -> bool:
        """Whether these are not the committed ones."""
        return self._committed is not None

    def get(self, thread_id: str) -> Thread | None:
        """The thread to read."""
        if self.over:
            raise CheckpointerError("the transaction is over")
        if thread_id in self._own or self._committed is None:
            return self._own.get(thread_id)
        return self._committed.get(thread_id)

    def touch(self, thread_id: str) -> Thread | None:
        """The thread to write, or None if there is none."""
        thread = self.get(thread_id)
        if thread is None:
            return None
        if self._committed is not None and thread_id not in self._own:
            thread = self._own[thread_id] = thread.copy()
        thread.updated_at = rules.utc_now()
        return thread

    def touch_or_create(self, thread_id: str) -> Thread:
        """The thread to write, new if there was none."""
        thread = self.touch(thread_id)
        if thread is None:
            now = rules.utc_now()
            thread = self._own[thread_id] = Thread(created_at=now, updated_at=now)
        return thread

    def put(self, thread_id: str, thread: Thread) -> None:
        """Add a thread."""
        self._own[thread_id] = thread

    def delete(self, thread_id: str) -> None:
        """Remove a thread; in a transaction, a None hides the committed one until the commit removes it."""
        if self._committed is None:
            del self._own[thread_id]
        else:
            self._own[thread_id] = None

    def items(self) -> Iterator[tuple[str, Thread]]:
        """All threads there are."""
        ids = dict.fromkeys([*(self._committed._own if self._committed else ()), *self._own])
        for thread_id in ids:
            thread = self.get(thread_id)
            if thread is not None:
                yield thread_id, thread

    def commit(self) -> None:
        """Make this transaction's threads the committed ones."""
        assert self._committed is not None
        for thread_id, thread in self._own.items():
            if thread is None:
                self._committed._own.pop(thread_id, None)
            else:
                self._committed._own[thread_id] = thread
