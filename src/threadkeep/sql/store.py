"""The SQL store: each method names its operation, a runner runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from threadkeep.records import (
    Believed,
    Execution,
    Fence,
    MessageRow,
    NewCall,
    NewPart,
    NewThread,
    PlacedItem,
    RunRecord,
    SearchHit,
    StoredCall,
    StoredCheckpoint,
    StoredEntry,
    StoredFile,
    StoredMessage,
    StoredOutcome,
    StoredPart,
    StoredPending,
    StoredState,
    StoredThread,
    StoredTotals,
    ThreadQuery,
    ThreadRecord,
    UsageRow,
    Worker,
)
from threadkeep.sql.database import AtOnce, Joined, Runner
from threadkeep.sql.dialects import Hooks
from threadkeep.sql.operations import (
    answers,
    checkpoints,
    context,
    extras,
    files,
    forks,
    leases,
    ledger,
    log,
    messages,
    parts,
    pending,
    resuming,
    runs,
    threads,
    usage,
)
from threadkeep.store import Decode

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[sa.Connection, Hooks, P], T]


class SQLStore:
    """`store.Store` on a database, or inside one transaction of it."""

    def __init__(self, runner: Runner, hooks: Hooks, max_value_bytes: int, fence: Fence | None = None) -> None:
        self._runner = runner
        self._hooks = hooks
        self._max_value_bytes = max_value_bytes
        self._fence = fence
        self._is_fenced = False

    def fenced(self, fence: Fence) -> SQLStore:
        return SQLStore(self._runner, self._hooks, self._max_value_bytes, fence)

    async def _read(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runner.read(lambda conn: operation(conn, self._hooks, *args, **kwargs))

    async def _write_unfenced(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what a worker may say of its own calls, whether it still has a lease or not."""
        return await self._runner.write(lambda conn: operation(conn, self._hooks, *args, **kwargs))

    async def _write(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work(conn: sa.Connection) -> T:
            if self._fence is not None and not self._is_fenced:
                leases.require(conn, self._hooks, self._fence)
            return operation(conn, self._hooks, *args, **kwargs)

        result = await self._runner.write(work)
        # The rest of a transaction holds the thread's lock, without which nobody takes the lease.
        self._is_fenced = isinstance(self._runner, Joined)
        return result

    async def _write_at_once(self, shortcut: str, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what every turn writes: by the shortcut of this name, where there is one. None looks at a lease."""
        if self._fence is not None:
            return await self._write(operation, *args, **kwargs)
        return await self._runner.write(
            lambda conn: operation(conn, self._hooks, *args, **kwargs), AtOnce(shortcut, args)
        )

    async def load(self, thread_id: str, decode: Decode) -> StoredThread | None:
        def decoded(stored: StoredThread | None) -> StoredThread | None:
            return stored and stored._replace(messages=decode(stored.messages))

        if self._hooks.decodes_where_it_reads:
            return await self._runner.read(lambda conn: decoded(messages.load(conn, self._hooks, thread_id)))
        stored = await self._read(messages.load, thread_id)
        # The loop lets go of the driver's answer when this task lets go of the loop. Else all rows are there twice.
        await asyncio.sleep(0)
        return decoded(stored)

    async def append(self, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
        return await self._write_at_once("append", messages.append, thread_id, rows, stem)

    async def save_extra(self, thread_id: str, changes: str) -> None:
        await self._write_at_once("save_extra", extras.save_extra, thread_id, changes, self._max_value_bytes)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        await self._write_at_once("claim_run", runs.claim_run, thread_id, run_id)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        await self._write_at_once("mark_run_complete", runs.mark_run_complete, thread_id, run_id)

    async def list_runs(self, thread_id: str) -> list[RunRecord]:
        return await self._read(runs.list_runs, thread_id)

    async def snapshot(self, thread_id: str, after_run_id: str) -> list[StoredMessage]:
        return await self._read(forks.snapshot, thread_id, after_run_id)

    async def fork(self, source: str, target: str, after_run_id: str, metadata: str | None) -> None:
        await self._write(forks.fork, source, target, after_run_id, metadata, self._max_value_bytes)

    async def set_pending(self, thread_id: str, question_id: str | None, request: str, run_id: str | None) -> None:
        await self._write(pending.set_pending, thread_id, question_id, request, run_id)

    async def clear_pending(self, thread_id: str) -> None:
        await self._write(pending.clear_pending, thread_id)

    async def clear_pending_if_matches(self, thread_id: str, question_id: str, run_id: str | None) -> bool:
        return await self._write(pending.clear_pending_if_matches, thread_id, question_id, run_id)

    async def load_pending(self, thread_id: str) -> StoredPending | None:
        return await self._read(pending.load_pending, thread_id)

    async def save_answer(self, thread_id: str, run_key: str, question_id: str, answer: str) -> None:
        await self._write(answers.save_answer, thread_id, run_key, question_id, answer)

    async def load_answer(self, thread_id: str, run_key: str, question_id: str) -> str | None:
        return await self._read(answers.load_answer, thread_id, run_key, question_id)

    async def clear_answers(self, thread_id: str, run_key: str, question_ids: Sequence[str] | None) -> None:
        await self._write(answers.clear_answers, thread_id, run_key, question_ids)

    async def get_thread(self, thread_id: str) -> ThreadRecord | None:
        return await self._read(threads.get_thread, thread_id)

    async def create_thread(self, thread: NewThread) -> ThreadRecord:
        return await self._write(threads.create_thread, thread)

    async def update_thread(
        self, thread_id: str, changes: Mapping[str, str | None], labels: Sequence[str] | None
    ) -> ThreadRecord:
        return await self._write(threads.update_thread, thread_id, changes, labels)

    async def list_threads(self, query: ThreadQuery) -> list[ThreadRecord]:
        return await self._read(threads.list_threads, query)

    async def search(self, folded: str, thread_id: str | None, include_deleted: bool, limit: int) -> list[SearchHit]:
        return await self._read(threads.search, folded, thread_id, include_deleted, limit)

    async def soft_delete_thread(self, thread_id: str) -> None:
        await self._write(threads.soft_delete_thread, thread_id)

    async def restore_thread(self, thread_id: str) -> None:
        await self._write(threads.restore_thread, thread_id)

    async def set_status(self, thread_id: str, status: str) -> None:
        await self._write(threads.set_status, thread_id, status)

    async def delete_thread(self, thread_id: str) -> bool:
        return await self._write(threads.delete_thread, thread_id)

    async def get_message(self, thread_id: str, message_id: str) -> StoredEntry | None:
        return await self._read(log.get_message, thread_id, message_id)

    async def list_messages(
        self, thread_id: str, since: str | int, before: str | int | None, limit: int | None, reverse: bool, parts: bool
    ) -> tuple[list[StoredEntry], list[StoredPart]]:
        return await self._read(log.list_messages, thread_id, since, before, limit, reverse, parts)

    async def last_summary(self, thread_id: str) -> StoredEntry | None:
        return await self._read(log.last_summary, thread_id)

    async def append_part(self, part: NewPart) -> StoredPart:
        return await self._write(parts.append, part)

    async def update_part(self, thread_id: str, message_id: str, index: int, changes: Mapping[str, Any]) -> StoredPart:
        return await self._write(parts.update, thread_id, message_id, index, changes)

    async def parts_of(self, thread_id: str, message_ids: Sequence[str]) -> list[StoredPart]:
        return await self._read(parts.of, thread_id, message_ids)

    async def discard_draft(self, thread_id: str, message_id: str) -> bool:
        return await self._write(parts.discard, thread_id, message_id)

    async def record_usage(self, row: UsageRow) -> UsageRow:
        return await self._write(usage.record, row)

    async def get_usage(self, thread_id: str, message_id: str) -> UsageRow | None:
        return await self._read(usage.get, thread_id, message_id)

    async def usage_totals(self, thread_id: str, by: str | None) -> list[StoredTotals]:
        return await self._read(usage.totals, thread_id, by)

    async def context_items(self, thread_id: str) -> list[PlacedItem]:
        return await self._read(context.items, thread_id)

    async def load_context(self, thread_id: str) -> list[StoredEntry]:
        return await self._read(context.load, thread_id)

    async def swap_context(self, thread_id: str, remove: Sequence[str], summary: MessageRow) -> PlacedItem:
        return await self._write(context.swap, thread_id, remove, summary)

    async def expand(self, thread_id: str, summary_id: str, deep: bool) -> list[StoredEntry]:
        return await self._read(context.expand, thread_id, summary_id, deep)

    async def put_file(self, file: StoredFile) -> None:
        await self._write(files.put, file)

    async def file_by_content(self, content_id: str) -> StoredFile | None:
        return await self._read(files.by_content, content_id)

    async def file_by_path(self, path: str) -> StoredFile | None:
        return await self._read(files.by_path, path)

    async def delete_file(self, content_id: str) -> bool:
        return await self._write(files.delete, content_id)

    async def issue_call(self, call: NewCall, worker: Worker, ttl: float, takes_over: bool) -> tuple[StoredCall, bool]:
        return await self._write(ledger.issue, call, worker, ttl, takes_over)

    async def settle_call(
        self, thread_id: str, call_id: str, outcome: StoredOutcome, execution: Execution | None, by_hand: Worker | None
    ) -> StoredCall:
        return await self._write(ledger.settle, thread_id, call_id, outcome, execution, by_hand)

    async def let_go_of_call(self, thread_id: str, call_id: str, execution: Execution) -> None:
        await self._write_unfenced(ledger.let_go, thread_id, call_id, execution)

    async def renew_call(self, thread_id: str, call_id: str, execution: Execution, ttl: float) -> bool:
        return await self._write_unfenced(ledger.renew, thread_id, call_id, execution, ttl)

    async def get_call(self, thread_id: str, call_id: str) -> StoredCall | None:
        return await self._read(ledger.get_call, thread_id, call_id)

    async def list_calls(self, thread_id: str, only_issued: bool) -> list[StoredCall]:
        return await self._read(ledger.list_calls, thread_id, only_issued)

    async def find_completed_call(self, thread_id: str | None, key: str) -> StoredCall | None:
        return await self._read(ledger.find_completed, thread_id, key)

    async def save_checkpoint(self, thread_id: str, plan: str, budget: str, state: str) -> int:
        return await self._write(checkpoints.save, thread_id, plan, budget, state)

    async def get_checkpoint(
        self, thread_id: str, version: int | None, with_messages: bool
    ) -> tuple[StoredCheckpoint, list[StoredMessage]] | None:
        return await self._read(checkpoints.get, thread_id, version, with_messages)

    async def list_checkpoints(self, thread_id: str) -> list[StoredCheckpoint]:
        return await self._read(checkpoints.list_checkpoints, thread_id)

    async def delete_checkpoint(self, thread_id: str, version: int) -> bool:
        return await self._write(checkpoints.delete, thread_id, version)

    async def acquire_lease(self, thread_id: str, run_id: str, owner: str, ttl: float, is_exclusive: bool) -> int:
        return await self._write(leases.acquire, thread_id, run_id, owner, ttl, is_exclusive)

    async def renew_lease(self, fence: Fence, ttl: float) -> bool:
        return await self._write(leases.renew, fence, ttl)

    async def release_lease(self, fence: Fence) -> None:
        await self._write(leases.release, fence)

    async def read_state(self, thread_id: str) -> StoredState | None:
        return await self._read(resuming.read_state, thread_id)

    async def calls_about(self, thread_id: str, call_ids: Sequence[str], keys: Sequence[str]) -> list[StoredCall]:
        return await self._write(ledger.calls_about, thread_id, call_ids, keys)

    async def append_after(self, thread_id: str, rows: Sequence[MessageRow], stem: str, believed: Believed) -> bool:
        return await self._write(messages.append_after, thread_id, rows, stem, believed)
