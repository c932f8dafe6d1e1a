"""MemoryCheckpointer: the contract in plain dictionaries, for tests and for hosts that need nothing durable.

Values are stored encoded, so what is loaded is never shared with the store, and what another backend would refuse is
refused here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from threadkeep import rules
from threadkeep.codec import DEFAULT_MAX_VALUE_BYTES, Codec
from threadkeep.errors import (
    CheckpointerError,
    CheckpointerLockTimeoutError,
    LeaseLostError,
    RunNotClaimedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    ToolCallNotFoundError,
)
from threadkeep.frontdoor import CheckpointerMethods
from threadkeep.heartbeats import Heartbeats
from threadkeep.messages import HitlRequest, Message
from threadkeep.records import (
    ISSUED,
    CallState,
    Execution,
    Fence,
    MessageRow,
    NewCall,
    RunRecord,
    StoredCall,
    StoredCheckpoint,
    StoredLease,
    StoredMessage,
    StoredOpenRun,
    StoredOutcome,
    StoredPending,
    StoredState,
    StoredThread,
    ThreadRecord,
    Worker,
)


@dataclass(frozen=True)
class _Lease:
    """A lease on a run of a thread."""

    run_id: str
    token: int
    owner: str
    is_exclusive: bool
    expires_at: datetime

    def stored(self) -> StoredLease:
        return StoredLease(self.run_id, self.token, self.owner, self.is_exclusive, self.expires_at <= rules.utc_now())


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
    status: str = "active"
    calls: dict[str, StoredCall] = field(default_factory=dict)
    checkpoints: dict[int, StoredCheckpoint] = field(default_factory=dict)
    last_version: int = 0
    leases: dict[str, _Lease] = field(default_factory=dict)
    last_token: int = 0

    def copy(self) -> _Thread:
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


class _Threads:
    """The threads, as committed or as a transaction sees them: committed ones shine through until written."""

    def __init__(self, committed: _Threads | None = None) -> None:
        self._committed = committed
        self._own: dict[str, _Thread | None] = {}
        self.over = False

    @property
    def is_transaction(self) -> bool:
        """Whether these are not the committed ones."""
        return self._committed is not None

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
        self._saying = writing
        """For what a worker may say of its own calls, whether it still has a lease or not."""

    async def load(self, thread_id: str) -> StoredThread | None:
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        return StoredThread(thread.parent_thread_id, thread.extra, _stored(enumerate(thread.messages, 1)))

    async def append(self, thread_id: str, rows: Sequence[MessageRow]) -> None:
        async with self._writing():
            self._append(thread_id, rows)

    def _append(self, thread_id: str, rows: Sequence[MessageRow]) -> None:
        thread = self._threads.get(thread_id)
        runs = thread.runs if thread else {}
        named = dict.fromkeys(row.run_id for row in rows if row.run_id is not None)
        rules.refuse_completed(thread_id, (run for run in named if run in runs and runs[run].completed_at is not None))
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
            # As long as nothing is left out, a message keeps its place.
            whole = next((place for place, (seq, _) in enumerate(rows) if seq != place + 1), len(rows))
            is_all = len(rows) == len(thread.messages)
            checkpoints = {
                version: checkpoint
                for version, checkpoint in thread.checkpoints.items()
                if is_all or checkpoint.seq <= whole
            }
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
                checkpoints=checkpoints,
                last_version=max(checkpoints, default=0),
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
        self, parent_thread_id: str | None, status: str | None, limit: int, after: ThreadRecord | None
    ) -> list[ThreadRecord]:
        def place(record: ThreadRecord) -> tuple[datetime, str]:
            return record.created_at, record.thread_id

        records = [
            thread.record(thread_id)
            for thread_id, thread in self._threads.items()
            if (parent_thread_id is None or thread.parent_thread_id == parent_thread_id)
            and (status is None or thread.status == status)
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

    async def set_status(self, thread_id: str, status: str) -> None:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            if thread is None:
                raise ThreadNotFoundError(thread_id)
            thread.status = status

    # ---- the ledger -----------------------------------------------------------------------------------------

    async def issue_call(self, call: NewCall, worker: Worker, ttl: float, takes_over: bool) -> tuple[StoredCall, bool]:
        async with self._writing():
            thread = self._threads.get(call.thread_id)
            same = [
                _looked_at(other)
                for other in (thread.calls.values() if thread else ())
                if other.call_id == call.call_id or other.idempotency_key == call.idempotency_key
            ]
            in_the_way = rules.standing_in_the_way(call, same, worker, takes_over)
            if in_the_way is not None:
                return in_the_way, False
            thread = self._threads.touch_or_create(call.thread_id)
            for other in rules.taken_over(call, same):
                _end(thread, other, rules.run_again_as(call))
            now = rules.utc_now()
            issued = StoredCall(
                *call,
                status=ISSUED,
                result=None,
                error=None,
                owner=worker.owner,
                process=worker.process,
                attempt=rules.next_attempt(call, same),
                issued_at=now,
                expires_at=_after(ttl),
                ended_at=None,
                is_expired=False,
            )
            thread.calls[call.call_id] = issued
            return issued, True

    async def settle_call(
        self, thread_id: str, call_id: str, outcome: StoredOutcome, execution: Execution | None, by_hand: Worker | None
    ) -> StoredCall:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            if thread is None or call_id not in thread.calls:
                raise ToolCallNotFoundError(thread_id, call_id)
            call = _looked_at(thread.calls[call_id])
            return _end(thread, call, outcome) if rules.must_be_settled(call, outcome, execution, by_hand) else call

    async def let_go_of_call(self, thread_id: str, call_id: str, execution: Execution) -> None:
        async with self._saying():
            thread = self._threads.touch(thread_id)
            call = thread.calls.get(call_id) if thread else None
            if thread is not None and call is not None and call.execution == execution:
                thread.calls[call_id] = call._replace(expires_at=rules.utc_now())

    async def renew_call(self, thread_id: str, call_id: str, execution: Execution, ttl: float) -> bool:
        async with self._saying():
            thread = self._threads.touch(thread_id)
            call = thread.calls.get(call_id) if thread else None
            if thread is None or call is None or call.execution != execution:
                return False
            if call.status != ISSUED or _looked_at(call).is_expired:
                return False
            thread.calls[call_id] = call._replace(expires_at=_after(ttl))
            return True

    async def get_call(self, thread_id: str, call_id: str) -> StoredCall | None:
        thread = self._threads.get(thread_id)
        return _looked_at(thread.calls[call_id]) if thread and call_id in thread.calls else None

    async def list_calls(self, thread_id: str, only_issued: bool) -> list[StoredCall]:
        thread = self._threads.get(thread_id)
        if thread is None:
            return []
        calls = [_looked_at(call) for call in thread.calls.values() if not only_issued or call.status == ISSUED]
        return sorted(calls, key=lambda call: (call.issued_at, call.call_id))

    async def find_completed_call(self, thread_id: str | None, key: str) -> StoredCall | None:
        threads = [self._threads.get(thread_id)] if thread_id else [thread for _, thread in self._threads.items()]
        completed = [
            call
            for thread in threads
            for call in (thread.calls.values() if thread else ())
            if call.idempotency_key == key and call.status == CallState.COMPLETED
        ]
        return min(completed, key=lambda call: (call.ended_at, call.call_id), default=None)

    # ---- checkpoints ----------------------------------------------------------------------------------------

    async def save_checkpoint(self, thread_id: str, plan: str, budget: str, state: str) -> int:
        async with self._writing():
            thread = self._threads.touch_or_create(thread_id)
            thread.last_version += 1
            version = thread.last_version
            saved = StoredCheckpoint(version, len(thread.messages), plan, budget, state, rules.utc_now())
            thread.checkpoints[version] = saved
            return version

    async def get_checkpoint(
        self, thread_id: str, version: int | None, with_messages: bool
    ) -> tuple[StoredCheckpoint, list[StoredMessage]] | None:
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        checkpoint = thread.checkpoints.get(max(thread.checkpoints, default=0) if version is None else version)
        if checkpoint is None:
            return None
        return checkpoint, _stored(enumerate(thread.messages[: checkpoint.seq if with_messages else 0], 1))

    async def list_checkpoints(self, thread_id: str) -> list[StoredCheckpoint]:
        thread = self._threads.get(thread_id)
        return [thread.checkpoints[version] for version in sorted(thread.checkpoints)] if thread else []

    async def delete_checkpoint(self, thread_id: str, version: int) -> bool:
        async with self._writing():
            thread = self._threads.touch(thread_id)
            return thread is not None and thread.checkpoints.pop(version, None) is not None

    # ---- leases ---------------------------------------------------------------------------------------------

    async def acquire_lease(self, thread_id: str, run_id: str, owner: str, ttl: float, is_exclusive: bool) -> int:
        async with self._writing():
            thread = self._threads.get(thread_id)
            run = thread.runs.get(run_id) if thread else None
            leases = [lease.stored() for lease in thread.leases.values()] if thread else []
            is_new = rules.is_to_be_claimed(thread_id, run_id, run, leases, is_exclusive)
            thread = self._threads.touch_or_create(thread_id)
            if is_new:
                thread.runs[run_id] = RunRecord(run_id, rules.utc_now(), None, None)
            thread.last_token = rules.next_token(thread.last_token)
            thread.leases[run_id] = _Lease(run_id, thread.last_token, owner, is_exclusive, _after(ttl))
            return thread.last_token

    async def renew_lease(self, fence: Fence, ttl: float) -> bool:
        async with self._writing():
            thread = self._threads.touch(fence.thread_id)
            lease = thread.leases.get(fence.run_id) if thread else None
            if thread is None or lease is None or not rules.is_alive(fence, lease.stored()):
                return False
            thread.leases[fence.run_id] = replace(lease, expires_at=_after(ttl))
            return True

    async def release_lease(self, fence: Fence) -> None:
        async with self._writing():
            thread = self._threads.touch(fence.thread_id)
            lease = thread.leases.get(fence.run_id) if thread else None
            if thread is not None and lease is not None and lease.token == fence.token:
                thread.leases[fence.run_id] = replace(lease, expires_at=rules.utc_now())

    def fenced(self, fence: Fence) -> _MemoryStore:
        is_fenced = False

        @asynccontextmanager
        async def writing() -> AsyncIterator[None]:
            nonlocal is_fenced
            async with self._writing():
                thread = self._threads.get(fence.thread_id)
                lease = thread.leases.get(fence.run_id) if thread else None
                if not is_fenced and not rules.is_alive(fence, lease.stored() if lease else None):
                    raise LeaseLostError(fence.thread_id, fence.run_id)
                yield
                is_fenced = self._threads.is_transaction  # which has the lock that a new lease would need

        fenced = _MemoryStore(self._threads, self._max_value_bytes, writing)
        fenced._saying = self._writing
        return fenced

    # ---- resuming -------------------------------------------------------------------------------------------

    async def read_state(self, thread_id: str) -> StoredState | None:
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        leases = {run_id: lease.stored() for run_id, lease in thread.leases.items()}
        return StoredState(
            status=thread.status,
            checkpoint=thread.checkpoints[max(thread.checkpoints)] if thread.checkpoints else None,
            pending=thread.pending[1] if thread.pending else None,
            runs=[
                StoredOpenRun(
                    run.run_id,
                    run.claimed_at,
                    leases[run.run_id].owner if run.run_id in leases else None,
                    leases[run.run_id].is_expired if run.run_id in leases else None,
                )
                for run in await self.list_runs(thread_id)
                if run.completed_at is None
            ],
            calls=await self.list_calls(thread_id, only_issued=True),
            messages=_stored(enumerate(thread.messages, 1)),
        )

    async def append_after(self, thread_id: str, rows: Sequence[MessageRow], last_seq: int) -> bool:
        async with self._writing():
            thread = self._threads.get(thread_id)
            if thread is None or len(thread.messages) != last_seq:
                return False
            self._append(thread_id, rows)
            return True

    def _source(self, thread_id: str) -> _Thread:
        thread = self._threads.get(thread_id)
        if thread is None:
            raise ThreadNotFoundError(thread_id)
        return thread


def _looked_at(call: StoredCall) -> StoredCall:
    """The call, and whether its time is over by now."""
    return call._replace(is_expired=call.expires_at <= rules.utc_now())


def _end(thread: _Thread, call: StoredCall, outcome: StoredOutcome) -> StoredCall:
    ended = call._replace(**outcome._asdict(), ended_at=rules.utc_now())
    thread.calls[call.call_id] = ended
    return ended


def _after(seconds: float) -> datetime:
    return rules.utc_now() + timedelta(seconds=seconds)


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
        owner: str | None = None,
    ) -> None:
        self._committed = _Threads()
        self._lock = asyncio.Lock()
        self._lock_timeout = lock_timeout
        codec = Codec(message_type, request_type, max_value_bytes)
        super().__init__(_MemoryStore(self._committed, max_value_bytes, self._writing), codec, Heartbeats(owner))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let go of what is held. What was written stays for as long as the object does."""
        await self._heartbeats.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[CheckpointerMethods]:
        """The same methods on one transaction: all of it happens, or nothing. Other writers wait, readers do not."""
        async with self._writing():
            threads = _Threads(self._committed)
            store = _MemoryStore(threads, self._codec.max_value_bytes, _no_waiting)
            try:
                yield CheckpointerMethods(store, self._codec, self._heartbeats, is_transaction=True)
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
