"""`store.Store` over the threads in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from threadkeep import rules
from threadkeep.errors import (
    LeaseLostError,
    RunNotClaimedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    ToolCallNotFoundError,
)
from threadkeep.memory_threads import Lease, Thread, Threads
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
    StoredMessage,
    StoredOpenRun,
    StoredOutcome,
    StoredPending,
    StoredState,
    StoredThread,
    ThreadRecord,
    Worker,
)

Writing = Callable[[], AbstractAsyncContextManager[None]]
"""Waits until one may write."""


class MemoryStore:
    """`store.Store` over dictionaries. An operation decides first and changes last: one that raises leaves no trace."""

    def __init__(
        self,
        threads: Threads,
        max_value_bytes: int,
        writing: Writing,
        saying: Writing | None = None,
    ) -> None:
        self._threads = threads
        self._max_value_bytes = max_value_bytes
        self._writing = writing
        self._saying = saying or writing
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
            fork = Thread(
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
            thread.leases[run_id] = Lease(run_id, thread.last_token, owner, is_exclusive, _after(ttl))
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

    def fenced(self, fence: Fence) -> MemoryStore:
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

        return MemoryStore(self._threads, self._max_value_bytes, writing, saying=self._writing)

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

    def _source(self, thread_id: str) -> Thread:
        thread = self._threads.get(thread_id)
        if thread is None:
            raise ThreadNotFoundError(thread_id)
        return thread


def _looked_at(call: StoredCall) -> StoredCall:
    """The call, and whether its time is over by now."""
    return call._replace(is_expired=call.expires_at <= rules.utc_now())


def _end(thread: Thread, call: StoredCall, outcome: StoredOutcome) -> StoredCall:
    ended = call._replace(**outcome._asdict(), ended_at=rules.utc_now())
    thread.calls[call.call_id] = ended
    return ended


def _after(seconds: float) -> datetime:
    return rules.utc_now() + timedelta(seconds=seconds)


def _stored(rows: Any) -> list[StoredMessage]:
    return [StoredMessage(seq, row.format, row.payload) for seq, row in rows]
