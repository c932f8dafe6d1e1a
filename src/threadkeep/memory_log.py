"""The log in memory: messages by their ids, their parts and usage, the context window over them, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from threadkeep import rules, windows
from threadkeep.errors import (
    ImmutableFieldError,
    MessageNotFoundError,
    PartNotFoundError,
    SummaryNotFoundError,
    ThreadNotFoundError,
)
from threadkeep.memory_threads import Thread, Threads
from threadkeep.records import (
    MessageRow,
    NewPart,
    PlacedItem,
    StoredEntry,
    StoredFile,
    StoredPart,
    StoredTotals,
    UsageRow,
)

Writing = Callable[[], AbstractAsyncContextManager[None]]
"""Waits until one may write."""


class MemoryLog:
    """This part of `store.Store`, over dictionaries."""

    def __init__(self, threads: Threads, writing: Writing) -> None:
        self._threads = threads
        self._writing = writing

    async def get_message(self, thread_id: str, message_id: str) -> StoredEntry | None:
        thread = self._threads.get(thread_id)
        if thread is None or not thread.has(message_id):
            return None
        seq = thread.seqs.get(message_id)
        return thread.summary_entry(thread.numbers[message_id]) if seq is None else thread.entry(seq)

    async def list_messages(
        self, thread_id: str, since: str | int, before: str | int | None, limit: int | None, reverse: bool, parts: bool
    ) -> tuple[list[StoredEntry], list[StoredPart]]:
        thread = self._threads.get(thread_id)
        lower = _seq(thread_id, thread, since)
        upper = None if before is None else _seq(thread_id, thread, before)
        if thread is None:
            return [], []
        last = thread.last_seq if upper is None else min(thread.last_seq, upper - 1)
        page = range(lower + 1, last + 1)[:: -1 if reverse else 1][:limit]
        entries = [thread.entry(seq) for seq in page]
        return entries, _parts(thread, (entry.message_id for entry in entries)) if parts else []

    async def last_summary(self, thread_id: str) -> StoredEntry | None:
        thread = self._threads.get(thread_id)
        return thread.summary_entry(max(thread.summaries)) if thread and thread.summaries else None

    # ---- parts ----------------------------------------------------------------------------------------------

    async def append_part(self, part: NewPart) -> StoredPart:
        async with self._writing():
            parts = self._threads.touch_or_create(part.thread_id).parts.setdefault(part.message_id, [])
            stored = StoredPart(
                message_id=part.message_id,
                part_index=len(parts),
                part_type=part.part_type,
                content=part.content,
                tool_name=part.tool_name,
                tool_call_id=part.tool_call_id,
                tool_state=part.tool_state,
                started_at=part.started_at,
                completed_at=None,
                compacted_at=None,
                output=None,
                error=None,
                token_estimate=part.token_estimate,
                created_at=rules.utc_now(),
            )
            parts.append(stored)
            return stored

    async def update_part(self, thread_id: str, message_id: str, index: int, changes: Mapping[str, Any]) -> StoredPart:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is None or index >= len(thread.parts.get(message_id, ())):
                raise PartNotFoundError(thread_id, message_id, index)
            parts = self._threads.touch(thread).parts[message_id]
            parts[index] = parts[index]._replace(**changes)
            return parts[index]

    async def parts_of(self, thread_id: str, message_ids: Sequence[str]) -> list[StoredPart]:
        thread = self._threads.get(thread_id)
        return _parts(thread, message_ids) if thread else []

    async def discard_draft(self, thread_id: str, message_id: str) -> bool:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is None:
                return False
            if thread.has(message_id):
                raise ImmutableFieldError("content")
            return self._threads.touch(thread).parts.pop(message_id, None) is not None

    # ---- usage ----------------------------------------------------------------------------------------------

    async def record_usage(self, row: UsageRow) -> UsageRow:
        async with self._writing():
            thread = self._threads.touch_or_create(row.thread_id)
            row = rules.with_model_of_thread(row, thread.model_id, thread.provider_id)
            thread.usage[row.message_id] = row
            return row

    async def get_usage(self, thread_id: str, message_id: str) -> UsageRow | None:
        thread = self._threads.get(thread_id)
        return thread.usage.get(message_id) if thread else None

    async def usage_totals(self, thread_id: str, by: str | None) -> list[StoredTotals]:
        thread = self._threads.get(thread_id)
        groups: dict[str | None, list[UsageRow]] = {}
        for row in thread.usage.values() if thread else ():
            groups.setdefault(getattr(row, by) if by else None, []).append(row)
        summed = StoredTotals._fields[2:]
        return [
            StoredTotals(key, len(rows), *(sum(getattr(row, name) for row in rows) for name in summed))
            for key, rows in groups.items()
        ]

    # ---- the context window ---------------------------------------------------------------------------------

    async def context_items(self, thread_id: str) -> list[PlacedItem]:
        thread = self._threads.get(thread_id)
        return thread.items() if thread else []

    async def load_context(self, thread_id: str) -> list[StoredEntry]:
        thread = self._threads.get(thread_id)
        return thread.in_window() if thread else []

    async def swap_context(self, thread_id: str, remove: Sequence[str], summary: MessageRow) -> PlacedItem:
        async with self._writing():
            thread = self._threads.to_write(thread_id)
            if thread is None:
                raise ThreadNotFoundError(thread_id)
            change = windows.compact(thread_id, thread.compacted_seq, thread.items(), remove)
            thread.refuse_taken([summary])
            return self._threads.touch(thread).compact(summary, change)

    async def expand(self, thread_id: str, summary_id: str, deep: bool) -> list[StoredEntry]:
        thread = self._threads.get(thread_id)
        if thread is None or summary_id not in thread.numbers:
            raise SummaryNotFoundError(thread_id, summary_id)
        return thread.under(thread.numbers[summary_id], deep)

    # ---- files ----------------------------------------------------------------------------------------------

    async def put_file(self, file: StoredFile) -> None:
        async with self._writing():
            self._threads.files.put((file.content_id, file.path), file)

    async def file_by_content(self, content_id: str) -> StoredFile | None:
        return _latest(file for file in self._threads.files.values() if file.content_id == content_id)

    async def file_by_path(self, path: str) -> StoredFile | None:
        return _latest(file for file in self._threads.files.values() if file.path == path)

    async def delete_file(self, content_id: str) -> bool:
        async with self._writing():
            files = self._threads.files
            paths = [file.path for file in files.values() if file.content_id == content_id]
            for path in paths:
                files.delete((content_id, path))
            return bool(paths)


def _seq(thread_id: str, thread: Thread | None, message: str | int) -> int:
    """Where this message is, which is named by its id or by its seq."""
    if isinstance(message, int):
        return message
    if thread is None or message not in thread.seqs:
        raise MessageNotFoundError(thread_id, message)
    return thread.seqs[message]


def _parts(thread: Thread, message_ids: Iterable[str]) -> list[StoredPart]:
    return [part for message_id in message_ids for part in thread.parts.get(message_id, ())]


def _latest(files: Iterable[StoredFile]) -> StoredFile | None:
    return max(files, key=lambda file: (file.stored_at, file.content_id, file.path), default=None)
