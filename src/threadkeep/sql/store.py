"""The SQL store: each method names its operation, a runner runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from threadkeep.records import MessageRow, RunRecord, StoredMessage, StoredPending, StoredThread, ThreadRecord
from threadkeep.sql.database import Runner
from threadkeep.sql.dialects import Hooks
from threadkeep.sql.operations import answers, extras, forks, messages, pending, runs, threads

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[sa.Connection, Hooks, P], T]


class SQLStore:
    """`store.Store` on a database, or inside one transaction of it."""

    def __init__(self, runner: Runner, hooks: Hooks, max_value_bytes: int) -> None:
        self._runner = runner
        self._hooks = hooks
        self._max_value_bytes = max_value_bytes

    async def _read(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runner.read(lambda conn: operation(conn, self._hooks, *args, **kwargs))

    async def _write(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runner.write(lambda conn: operation(conn, self._hooks, *args, **kwargs))

    async def load(self, thread_id: str) -> StoredThread | None:
        return await self._read(messages.load, thread_id)

    async def append(self, thread_id: str, rows: Sequence[MessageRow]) -> None:
        await self._write(messages.append, thread_id, rows)

    async def save_extra(self, thread_id: str, changes: str) -> None:
        await self._write(extras.save_extra, thread_id, changes, self._max_value_bytes)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        await self._write(runs.claim_run, thread_id, run_id)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        await self._write(runs.mark_run_complete, thread_id, run_id)

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

    async def list_threads(
        self, parent_thread_id: str | None, limit: int, after: ThreadRecord | None
    ) -> list[ThreadRecord]:
        return await self._read(threads.list_threads, parent_thread_id, limit, after)

    async def delete_thread(self, thread_id: str) -> bool:
        return await self._write(threads.delete_thread, thread_id)
