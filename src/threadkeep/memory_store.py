"""`store.Store` over the threads in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from threadkeep import rules
from threadkeep.errors import (
    LeaseLostError,
    RunNotClaimedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    ToolCallNotFoundError,
)
from threadkeep.memory_log import MemoryLog, Writing
from threadkeep.memory_threads import Lease, Thread, Threads
from threadkeep.records import (
    ISSUED,
    Believed,
    CallState,
    Execution,
    Fence,
    MessageRow,
    NewCall,
    NewThread,
    RunRecord,
    SearchHit,
    StoredCall,
    StoredCheckpoint,
    StoredMessage,
    StoredOpenRun,
    StoredOutcome,
    StoredPending,
    StoredState,
    StoredThread,
    ThreadQuery,
    ThreadRecord,
    Worker,
)
from threadkeep.store import Decode


class MemoryStore(MemoryLog):
    """`store.Store` over dictionaries. An operation decides first and changes last: one that raises leaves no trace."""

    def __init__(
        self,
        threads: Threads,
        max_value_bytes: int,
        writing: Writing,
        saying: Writing | None = None,
    ) -> None:
        super().__init__(threads, writing)
        self._max_value_bytes = max_value_bytes
        self._saying = saying or writing
        """For what a worker may say of its own calls, whether it still has a lease or not."""

    async def load(self, thread_id: str, decode: Decode) -> StoredThread | None:
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        return StoredThread(thread.parent_thread_id, thread.extra, decode(thread.up_to(thread.last_seq)))

    async def append(self, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
        async with self._writing():
            return self._append(thread_id, rows, stem)

    def _append(self, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
        thread = self._threads.to_write(thread_id)
        if thread is not None:
            runs = thread.runs
            named = dict.fromkeys(row.run_id for row in rows if row.run_id is not None)
            completed = (run for run in named if run in runs and runs[run].completed_at is not None)
            rules.refuse_completed(thread_id, completed)
            thread.refuse_taken(rows)
        return self._threads.touch_or_create(thread_id).append(rows, stem)

    async def save_extra(self, thread_id: str, changes: str) -> None:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            merged = rules.merged_extra(thread_id, thread.extra if thread else "{}", changes, self._max_value_bytes)
            self._threads.touch_or_create(thread_id).extra = merged

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            rules.refuse_second_claim(thread_id, run_id, thread.runs.get(run_id) if thread else None)
            runs = self._threads.touch_or_create(thread_id).runs
            runs[run_id] = RunRecord(run_id, rules.utc_now(), None, None)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            run = thread.runs.get(run_id) if thread else None
            if thread is None or run is None:
                raise RunNotClaimedError(thread_id, run_id)
            thread = self._threads.touch(thread)
            if run.completed_at is None:
                thread.last_completion_seq += 1
                thread.runs[run_id] = replace(
                    run, completed_at=rules.utc_now(), completion_seq=thread.last_completion_seq
                )

    async def list_runs(self, thread_id: str) -> list[RunRecord]:
        thread = self._threads.get(thread_id)
        return sorted(thread.runs.values(), key=lambda run: (run.claimed_at, run.run_id)) if thread else []

    async def snapshot(self, thread_id: str, after_run_id: str) -> list[StoredMessage]:
        thread = self._threads.get(thread_id)
        if thread is None:
            raise ThreadNotFoundError(thread_id)
        _, seqs = thread.slice_after(after_run_id)
        return thread.stored(seqs)

    async def fork(self, source: str, target: str, after_run_id: str, metadata: str | None) -> None:
        async with self._writing():
            thread = self._required(source)
            if self._threads.get(target) is not None:
                raise ThreadAlreadyExistsError(target)
            cutoff, seqs = thread.slice_after(after_run_id)
            extra = rules.forked_extra(source, thread.extra, metadata, self._max_value_bytes)
            self._threads.put(thread.fork(target, cutoff, seqs, extra))

    async def set_pending(self, thread_id: str, question_id: str | None, request: str, run_id: str | None) -> None:
        async with self._writing():
            thread = self._threads.touch_or_create(thread_id)
            thread.pending = question_id, StoredPending(request, run_id)

    async def clear_pending(self, thread_id: str) -> None:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is not None:
                self._threads.touch(thread).pending = None

    async def clear_pending_if_matches(self, thread_id: str, question_id: str, run_id: str | None) -> bool:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is None or thread.pending is None:
                return False
            waiting_for, pending = thread.pending
            if (waiting_for, pending.run_id) != (question_id, run_id):
                return False
            self._threads.touch(thread).pending = None
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
            thread = self._threads.to_write(thread_id)
            if thread is not None:
                self._threads.touch(thread).answers = {
                    (run, question): answer
                    for (run, question), answer in thread.answers.items()
                    if run != run_key or (question_ids is not None and question not in question_ids)
                }

    # ---- threads --------------------------------------------------------------------------------------------

    async def get_thread(self, thread_id: str) -> ThreadRecord | None:
        thread = self._threads.get(thread_id)
        return rules.thread_record(thread) if thread else None

    async def create_thread(self, thread: NewThread) -> ThreadRecord:
        async with self._writing():
            if thread.parent_thread_id is not None:
                self._required(thread.parent_thread_id)
            if self._threads.get(thread.thread_id) is not None:
                raise ThreadAlreadyExistsError(thread.thread_id)
            now = rules.utc_now()
            columns = {**thread._asdict(), "labels": frozenset(thread.labels)}
            made = Thread(created_at=now, updated_at=now, **columns)
            self._threads.put(made)
            return rules.thread_record(made)

    async def update_thread(
        self, thread_id: str, changes: Mapping[str, str | None], labels: Sequence[str] | None
    ) -> ThreadRecord:
        async with self._writing():
            thread = self._threads.touch(self._required(thread_id))
            for column, value in changes.items():
                setattr(thread, column, value)
            if labels is not None:
                thread.labels = frozenset(labels)
            return rules.thread_record(thread)

    async def list_threads(self, query: ThreadQuery) -> list[ThreadRecord]:
        found = [
            thread
            for thread in self._newest_first()
            if (query.parent_thread_id is None or thread.parent_thread_id == query.parent_thread_id)
            and (query.status is None or thread.status == query.status)
            and (query.include_deleted or thread.deleted_at is None)
            and thread.labels.issuperset(query.labels)
            and (query.after is None or _place(thread) < _place(query.after))
        ]
        return [rules.thread_record(thread) for thread in found[: query.limit]]

    async def search(self, folded: str, thread_id: str | None, include_deleted: bool, limit: int) -> list[SearchHit]:
        hits = (
            hit
            for thread in self._newest_first()
            if (thread_id is None or thread.thread_id == thread_id) and (include_deleted or thread.deleted_at is None)
            for hit in thread.hits(folded)
        )
        return list(islice(hits, limit))

    async def set_status(self, thread_id: str, status: str) -> None:
        async with self._writing():
            self._threads.touch(self._required(thread_id)).status = status

    async def soft_delete_thread(self, thread_id: str) -> None:
        async with self._writing():
            thread = self._threads.get(thread_id)
            if thread is None:
                raise ThreadNotFoundError(thread_id)
            if thread.deleted_at is None:
                self._threads.touch(thread).deleted_at = rules.utc_now()

    async def restore_thread(self, thread_id: str) -> None:
        async with self._writing():
            thread = self._threads.get(thread_id)
            if thread is None:
                raise ThreadNotFoundError(thread_id)
            if thread.deleted_at is not None:
                self._threads.touch(thread).deleted_at = None

    async def delete_thread(self, thread_id: str) -> bool:
        async with self._writing():
            if self._threads.get(thread_id) is None:
                return False
            for child in [child for child in self._threads.all() if child.parent_thread_id == thread_id]:
                self._threads.touch(child).parent_thread_id = None
            self._threads.delete(thread_id)
            return True

    def _newest_first(self) -> list[Thread]:
        return sorted(self._threads.all(), key=_place, reverse=True)

    def _required(self, thread_id: str) -> Thread:
        """The thread that a write needs. Raises ThreadNotFoundError and ThreadDeletedError."""
        thread = self._threads.to_write(thread_id)
        if thread is None:
            raise ThreadNotFoundError(thread_id)
        return thread

    # ---- the ledger -----------------------------------------------------------------------------------------

    async def issue_call(self, call: NewCall, worker: Worker, ttl: float, takes_over: bool) -> tuple[StoredCall, bool]:
        async with self._writing():
            thread = self._threads.to_write(call.thread_id)
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
            thread = self._threads.to_write(thread_id)
            if thread is None or call_id not in thread.calls:
                raise ToolCallNotFoundError(thread_id, call_id)
            call = _looked_at(thread.calls[call_id])
            is_news = rules.must_be_settled(call, outcome, execution, by_hand)
            return _end(self._threads.touch(thread), call, outcome) if is_news else call

    async def let_go_of_call(self, thread_id: str, call_id: str, execution: Execution) -> None:
        async with self._saying():
            thread = self._threads.get(thread_id)
            call = thread.calls.get(call_id) if thread else None
            if thread is not None and call is not None and call.execution == execution:
                self._threads.touch(thread).calls[call_id] = call._replace(expires_at=rules.utc_now())

    async def renew_call(self, thread_id: str, call_id: str, execution: Execution, ttl: float) -> bool:
        async with self._saying():
            thread = self._threads.get(thread_id)
            call = thread.calls.get(call_id) if thread else None
            if thread is None or call is None or call.execution != execution:
                return False
            if call.status != ISSUED or _looked_at(call).is_expired:
                return False
            self._threads.touch(thread).calls[call_id] = call._replace(expires_at=_after(ttl))
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
        threads: Iterable[Thread | None] = [self._threads.get(thread_id)] if thread_id else self._threads.all()
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
            saved = StoredCheckpoint(version, thread.last_seq, plan, budget, state, rules.utc_now())
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
        return checkpoint, thread.up_to(checkpoint.seq if with_messages else 0)

    async def list_checkpoints(self, thread_id: str) -> list[StoredCheckpoint]:
        thread = self._threads.get(thread_id)
        return [thread.checkpoints[version] for version in sorted(thread.checkpoints)] if thread else []

    async def delete_checkpoint(self, thread_id: str, version: int) -> bool:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            return thread is not None and self._threads.touch(thread).checkpoints.pop(version, None) is not None

    # ---- leases ---------------------------------------------------------------------------------------------

    async def acquire_lease(self, thread_id: str, run_id: str, owner: str, ttl: float, is_exclusive: bool) -> int:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            run = thread.runs.get(run_id) if thread else None
            leases = [lease.stored() for lease in thread.leases.values()] if thread else []
            is_new = rules.is_to_be_claimed(thread_id, run_id, run, leases, is_exclusive)
            thread = self._threads.touch_or_create(thread_id)
            if is_new:
                thread.runs[run_id] = RunRecord(run_id, rules.utc_now(), None, None)
            thread.last_token = rules.next_token(thread.last_token, rules.utc_now())
            thread.leases[run_id] = Lease(run_id, thread.last_token, owner, is_exclusive, _after(ttl))
            return thread.last_token

    async def renew_lease(self, fence: Fence, ttl: float) -> bool:
        async with self._writing():
            thread = self._threads.get(fence.thread_id)
            lease = thread.leases.get(fence.run_id) if thread else None
            if thread is None or lease is None or not rules.is_alive(fence, lease.stored()):
                return False
            self._threads.touch(thread).leases[fence.run_id] = replace(lease, expires_at=_after(ttl))
            return True

    async def release_lease(self, fence: Fence) -> None:
        async with self._writing():
            thread = self._threads.get(fence.thread_id)
            lease = thread.leases.get(fence.run_id) if thread else None
            if thread is not None and lease is not None and lease.token == fence.token:
                self._threads.touch(thread).leases[fence.run_id] = replace(lease, expires_at=rules.utc_now())

    def fenced(self, fence: Fence) -> MemoryStore:
        is_fenced = False

        @asynccontextmanager
        async def writing() -> AsyncIterator[None]:
            nonlocal is_fenced
            async with self._writing():
                thread = self._threads.get(fence.thread_id) if is_fenced else self._threads.to_write(fence.thread_id)
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
            deleted_at=thread.deleted_at,
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
            messages=thread.up_to(thread.last_seq),
            draft_parts=thread.drafts(),
        )

    async def calls_about(self, thread_id: str, call_ids: Sequence[str], keys: Sequence[str]) -> list[StoredCall]:
        self._threads.to_write(thread_id)
        return [
            call
            for call in await self.list_calls(thread_id, only_issued=False)
            if call.call_id in call_ids or call.idempotency_key in keys
        ]

    async def append_after(self, thread_id: str, rows: Sequence[MessageRow], stem: str, believed: Believed) -> bool:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is None or thread.last_seq != believed.last_seq:
                return False
            if not believed.still_holds(await self.calls_about(thread_id, believed.call_ids, believed.keys)):
                return False
            self._append(thread_id, rows, stem)
            return True


def _looked_at(call: StoredCall) -> StoredCall:
    """The call, and whether its time is over by now."""
    return call._replace(is_expired=call.expires_at <= rules.utc_now())


def _end(thread: Thread, call: StoredCall, outcome: StoredOutcome) -> StoredCall:
    ended = call._replace(**outcome._asdict(), ended_at=rules.utc_now())
    thread.calls[call.call_id] = ended
    return ended


def _after(seconds: float) -> datetime:
    return rules.utc_now() + timedelta(seconds=seconds)


def _place(thread: Thread | ThreadRecord) -> tuple[datetime, str]:
    return thread.created_at, thread.thread_id
