"""MemoryCheckpointer: the contract in plain dictionaries, for tests and for hosts that need nothing durable.

Values are stored encoded, so what is loaded is never shared with the store, and what another backend would refuse is
refused here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from threadkeep import rules
from threadkeep.codec import DEFAULT_MAX_VALUE_BYTES, Codec
from threadkeep.errors import (
    CheckpointerError,
    CheckpointerLockTimeoutError,
    RunNotClaimedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
)
from threadkeep.frontdoor import CheckpointerMethods
from threadkeep.messages import HitlRequest, Message
from threadkeep.records import (
    MessageRow,
    RunRecord,
    StoredMessage,
    StoredPending,
    StoredThread,
    ThreadRecord,
)


@dataclass
class _Thread:
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

    def copy(self) -> _Thread:
        return replace(self, messages=list(self.messages), runs=dict(self.runs), answers=dict(self.answers))

    def record(self, thread_id: str) -> ThreadRecord:
        return ThreadRecord(
            thread_id=thread_id,
            parent_thread_id=self.parent_thread_id,
            forked_at_seq=self.forked_at_seq,
            last_seq=len(self.messages),
            last_completion_seq=self.last_completion_seq,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    def slice_after(self, thread_id: str, after_run_id: str) -> tuple[int, list[tuple[int, MessageRow]]]:
        """The cutoff, and what a fork copies with the seqs it has here."""
        run = self.runs.get(after_run_id)
        cutoff = rules.require_cutoff(thread_id, after_run_id, run.completion_seq if run else None)
        completed = {run.run_id for run in self.runs.values() if run.completion_seq and run.completion_seq <= cutoff}
        return cutoff, [
            (seq, row) for seq, row in enumerate(self.messages, 1) if row.run_id is None or row.run_id in completed
        ]


class _Threads:
    """The threads, as committed or as a transaction sees them: committed ones shine through until written."""

    def __init__(self, committed: _Threads | None = None) -> None:
        self._committed = committed
        self._own: dict[str, _Thread | None] = {}
        self.over = False

    def get(self, thread_id: str) -> _Thread | None:
        """The thread to read."""
        if self.over:
            raise CheckpointerError("the transaction is over")
        if thread_id in self._own or self._committed is None:
            return self._own.get(thread_id)
        return self._committed.get(thread_id)

    def touch(self, thread_id: str) -> _Thread | None:
        """The thread to write, or None if there is none."""
        thread = self.get(thread_id)
        if thread is None:
            return None
        if self._committed is not None and thread_id not in self._own:
            thread = self._own[thread_id] = thread.copy()
        thread.updated_at = rules.utc_now()
        return thread

    def touch_or_create(self, thread_id: str) -> _Thread:
        """The thread to write, new if there was none."""
        thread = self.touch(thread_id)
        if thread is None:
            now = rules.utc_now()
            thread = self._own[thread_id] = _Thread(created_at=now, updated_at=now)
        return thread

    def put(self, thread_id: str, thread: _Thread) -> None:
        """Add a thread."""
        self._own[thread_id] = thread

    def delete(self, thread_id: str) -> None:
        """Remove a thread; in a transaction, a None hides the committed one until the commit removes it."""
        if self._committed is None:
            del self._own[thread_id]
        else:
            self._own[thread_id] = None

    def items(self) -> Iterator[tuple[str, _Thread]]:
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


class _MemoryStore:
    """`store.Store` over dictionaries. An operation decides first and changes last: one that raises leaves no trace."""

    def __init__(
        self,
        threads: _Threads,
        max_value_bytes: int,
        writing: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._threads = threads
        self._max_value_bytes = max_value_bytes
        self._writing = writing

    async def load(self, thread_id: str) -> StoredThread | None:
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        return StoredThread(thread.parent_thread_id, thread.extra, _stored(enumerate(thread.messages, 1)))

    async def append(self, thread_id: str, rows: Sequence[MessageRow]) -> None:
        async with self._writing():
            thread = self._threads.get(thread_id)
            runs = thread.runs if thread else {}
            named = dict.fromkeys(row.run_id for row in rows if row.run_id is not None)
            rules.refuse_completed(
                thread_id, (run for run in named if run in runs and runs[run].completed_at is not None)
            )
            self._threads.touch_or_create(thread_id).messages += rows

    async def save_extra(self, thread_id: str, changes: str) -> None:
        async with self._writing():
            thread = self._threads.get(thread_id)
            merged = rules.merged_extra(thread_id, thread.extra if thread else "{}", changes, self._max_value_bytes)
            self._threads.touch_or_create(thread_id).extra = merged

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        async with self._writing():
            thread = self._threads.get(thread_id)
            rules.refuse_second_claim(thread_id, run_id, thread.runs.get(run_id) if thread else None)
            runs = self._threads.touch_or_create(thread_id).runs
            runs[run_id] = RunRecord(run_id, rules.utc_now(), None, None)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            run = thread.runs.get(run_id) if thread else None
            if thread is None or run is None:
                raise RunNotClaimedError(thread_id, run_id)
            if run.completed_at is None:
                thread.last_completion_seq += 1
                thread.runs[run_id] = replace(
                    run, completed_at=rules.utc_now(), completion_seq=thread.last_completion_seq
                )

    async def list_runs(self, thread_id: str) -> list[RunRecord]:
        thread = self._threads.get(thread_id)
        return sorted(thread.runs.values(), key=lambda run: (run.claimed_at, run.run_id)) if thread else []

    async def snapshot(self, thread_id: str, after_run_id: str) -> list[StoredMessage]:
        _, rows = self._source(thread_id).slice_after(thread_id, after_run_id)
        return _stored(rows)

    async def fork(self, source: str, target: str, after_run_id: str, metadata: str | None) -> None:
        async with self._writing():
            thread = self._source(source)
            if self._threads.get(target) is not None:
                raise ThreadAlreadyExistsError(target)
            cutoff, rows = thread.slice_after(source, after_run_id)
            now = rules.utc_now()
            fork = _Thread(
                created_at=now,
                updated_at=now,
                parent_thread_id=source,
                forked_at_seq=rows[-1][0] if rows else 0,
                extra=rules.forked_extra(source, thread.extra, metadata, self._max_value_bytes),
                last_completion_seq=cutoff,
                messages=[row for _, row in rows],
                runs={
                    run_id: run
                    for run_id, run in thread.runs.items()
                    if run.completion_seq and run.completion_seq <= cutoff
                },
            )
            self._threads.put(target, fork)

    async def set_pending(self, thread_id: str, question_id: str | None, request: str, run_id: str | None) -> None:
        async with self._writing():
            thread = self._threads.touch_or_create(thread_id)
            thread.pending = question_id, StoredPending(request, run_id)

    async def clear_pending(self, thread_id: str) -> None:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            if thread is not None:
                thread.pending = None

    async def clear_pending_if_matches(self, thread_id: str, question_id: str, run_id: str | None) -> bool:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            if thread is None or thread.pending is None:
                return False
            waiting_for, pending = thread.pending
            if (waiting_for, pending.run_id) != (question_id, run_id):
                return False
            thread.pending = None
            return True

    async def load_pending(self, thread_id: str) -> StoredPending | None:
        thread = self._threads.get(thread_id)
        return thread.pending[1] if thread and thread.pending else None

    async def save_answer(self, thread_id: str, run_key: str, question_id: str, answer: str) -> None:
        async with self._writing():
            self._threads.touch_or_create(thread_id).answers[run_key, question_id] = answer

    async def load_answer(self, thread_id: str, run_key: str, question_id: str) -> str | None:
        thread = self._threads.get(thread_id)
        return thread.answers.get((run_key, question_id)) if thread else None

    async def clear_answers(self, thread_id: str, run_key: str, question_ids: Sequence[str] | None) -> None:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            if thread is not None:
                thread.answers = {
                    (run, question): answer
                    for (run, question), answer in thread.answers.items()
                    if run != run_key or (question_ids is not None and question not in question_ids)
                }

    async def get_thread(self, thread_id: str) -> ThreadRecord | None:
        thread = self._threads.get(thread_id)
        return thread.record(thread_id) if thread else None

    async def list_threads(
        self, parent_thread_id: str | None, limit: int, after: ThreadRecord | None
    ) -> list[ThreadRecord]:
        def place(record: ThreadRecord) -> tuple[datetime, str]:
            return record.created_at, record.thread_id

        records = [
            thread.record(thread_id)
            for thread_id, thread in self._threads.items()
            if parent_thread_id is None or thread.parent_thread_id == parent_thread_id
        ]
        if after is not None:
            records = [record for record in records if place(record) < place(after)]
        return sorted(records, key=place, reverse=True)[:limit]

    async def delete_thread(self, thread_id: str) -> bool:
        async with self._writing():
            if self._threads.get(thread_id) is None:
                return False
            for child_id in [
                child_id for child_id, child in self._threads.items() if child.parent_thread_id == thread_id
            ]:
                child = self._threads.touch_or_create(child_id)
                child.parent_thread_id = None
            self._threads.delete(thread_id)
            return True

    def _source(self, thread_id: str) -> _Thread:
        thread = self._threads.get(thread_id)
        if thread is None:
            raise ThreadNotFoundError(thread_id)
        return thread


def _stored(rows: Any) -> list[StoredMessage]:
    return [StoredMessage(seq, row.format, row.payload) for seq, row in rows]


class MemoryCheckpointer(CheckpointerMethods):
    """Keeps everything in this process. Needs no `async with`, but takes it, so that backends can be swapped."""

    def __init__(
        self,
        *,
        message_type: Any = Message,
        request_type: Any = HitlRequest,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        lock_timeout: float = 5.0,
    ) -> None:
        self._committed = _Threads()
        self._lock = asyncio.Lock()
        self._lock_timeout = lock_timeout
        codec = Codec(message_type, request_type, max_value_bytes)
        super().__init__(_MemoryStore(self._committed, max_value_bytes, self._writing), codec)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close: what was written stays for as long as the object does."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[CheckpointerMethods]:
        """The same methods on one transaction: all of it happens, or nothing. Other writers wait, readers do not."""
        async with self._writing():
            threads = _Threads(self._committed)
            store = _MemoryStore(threads, self._codec.max_value_bytes, _no_waiting)
            try:
                yield CheckpointerMethods(store, self._codec)
                threads.commit()
            finally:
                threads.over = True

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._lock_timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise CheckpointerLockTimeoutError(
                f"another writer held the lock for more than {self._lock_timeout:g} s"
            ) from None
        try:
            yield
        finally:
            self._lock.release()


@asynccontextmanager
async def _no_waiting() -> AsyncIterator[None]:
    yield
