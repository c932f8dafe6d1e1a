"""`cp.messages`: the log, by the ids of its messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from threadkeep import rules
from threadkeep.codec import Codec
from threadkeep.errors import InvalidIdError, MessageNotFoundError
from threadkeep.ids import check_id, shown
from threadkeep.message_ids import made_id, message_id_in, new_stem, refuse_foreign
from threadkeep.parts import part_of
from threadkeep.records import MessageRecord, MessageRow, Part, StoredEntry
from threadkeep.store import Store

MAX_SEQ = 2**63 - 1


async def append(
    store: Store, codec: Codec, thread_id: str, messages: Sequence[Any], message_ids: Sequence[str | None] | None = None
) -> tuple[list[MessageRow], str, int]:
    """Append the messages: as which rows, what the ids begin with that are made for them, and the last seq."""
    rows = codec.encode_messages(messages, message_ids)
    rules.refuse_same_id_twice(thread_id, rows)
    stem = new_stem()
    return rows, stem, await store.append(thread_id, rows, stem) if rows else 0


class MessageLog:
    """The messages of a checkpointer, or of a transaction. They are never changed: this reads, and appends."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def append(
        self, thread_id: str, messages: Sequence[Any], *, message_ids: Sequence[str | None] | None = None
    ) -> list[str]:
        """`cp.append`, which also says the messages' ids.

        `message_ids` gives one to each, for message classes that have no `message_id` of their own; None lets us make
        it. Raises DuplicateIdError if one is taken, and then nothing was written.
        """
        thread_id = check_id("thread_id", thread_id)
        # One string would be taken apart, and which of the ids in a set would be whose?
        if isinstance(message_ids, str) or not isinstance(message_ids, Sequence | None):
            reason = f"it is a {type(message_ids).__name__} where a list of ids belongs"
            raise InvalidIdError("message_ids", shown(message_ids), reason)
        rows, stem, last_seq = await append(self._store, self._codec, thread_id, messages, message_ids)
        seqs = range(last_seq - len(rows) + 1, last_seq + 1)
        return [row.message_id or made_id(stem, seq) for row, seq in zip(rows, seqs, strict=True)]

    async def get(self, thread_id: str, message_id: str) -> MessageRecord:
        """The message, or the summary, of this id. Raises MessageNotFoundError."""
        thread_id, message_id = check_id("thread_id", thread_id), check_id("message_id", message_id)
        entry = await self._store.get_message(thread_id, message_id)
        if entry is None:
            raise MessageNotFoundError(thread_id, message_id)
        return records_of(self._codec, thread_id, [entry])[0]

    async def list(
        self,
        thread_id: str,
        *,
        since: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        with_parts: bool = False,
    ) -> list[MessageRecord]:
        """The log's messages in their order, or with `reverse` the newest first. An unknown thread has none.

        Only what comes after `since`, and before `before`: each is an id, a seq, or a record, an item or a message that
        has an id. One that the thread does not have raises MessageNotFoundError. `with_parts` brings their parts, a
        thousand messages to a query.
        """
        thread_id = check_id("thread_id", thread_id)
        lower, upper = _checked_places(thread_id, since, before)
        if limit is not None:
            _check_count("limit", limit)
        page = (lower, upper, limit, bool(reverse), bool(with_parts))
        entries, parts = await self._store.list_messages(thread_id, *page)
        of: dict[str, list[Part]] = {entry.message_id: [] for entry in entries}
        for part in parts:
            # One may have been appended between the two queries.
            of.setdefault(part.message_id, []).append(part_of(self._codec, thread_id, part))
        return records_of(self._codec, thread_id, entries, of if with_parts else None)

    def stream(
        self,
        thread_id: str,
        *,
        since: Any = None,
        before: Any = None,
        chunk_size: int = 1_000,
    ) -> AsyncIterator[MessageRecord]:
        """The same messages for an `async for`, read in chunks: a thread of any length takes the memory of one.

        What is appended meanwhile is not in it. No connection is held between two chunks.
        """
        thread_id = check_id("thread_id", thread_id)
        lower, upper = _checked_places(thread_id, since, before)
        _check_count("chunk_size", chunk_size)
        return self._chunks(thread_id, lower, upper, chunk_size)

    async def _chunks(
        self, thread_id: str, lower: str | int, upper: str | int | None, size: int
    ) -> AsyncIterator[MessageRecord]:
        thread = await self._store.get_thread(thread_id)
        last_seq = thread.last_seq if thread else 0
        while True:
            entries, _ = await self._store.list_messages(thread_id, lower, upper, size, False, False)
            for record in records_of(self._codec, thread_id, entries):
                if record.seq is None or record.seq > last_seq:
                    return
                yield record
            if len(entries) < size:
                return
            lower = entries[-1].message.seq

    async def last_summary(self, thread_id: str) -> MessageRecord | None:
        """The newest summary that a compaction has made, or None."""
        thread_id = check_id("thread_id", thread_id)
        entry = await self._store.last_summary(thread_id)
        return None if entry is None else records_of(self._codec, thread_id, [entry])[0]


def records_of(
    codec: Codec, thread_id: str, entries: Sequence[StoredEntry], parts: dict[str, list[Part]] | None = None
) -> list[MessageRecord]:
    """The records that users get."""
    messages = codec.decode_messages(thread_id, [entry.message for entry in entries])
    return [
        MessageRecord(
            thread_id=thread_id,
            message_id=entry.message_id,
            seq=None if entry.message.is_summary else entry.message.seq,
            role=entry.role,
            run_id=entry.run_id,
            created_at=entry.created_at,
            message=message,
            is_summary=entry.message.is_summary,
            parts=None if parts is None else parts[entry.message_id],
        )
        for entry, message in zip(entries, messages, strict=True)
    ]


def _checked_places(thread_id: str, since: Any, before: Any) -> tuple[str | int, str | int | None]:
    lower = 0 if since is None else _checked_place("since", thread_id, since)
    upper = None if before is None else _checked_place("before", thread_id, before)
    return lower, upper


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= MAX_SEQ:
        raise ValueError(f"{name} is {value!r}: it must be 1 or more")


def _checked_place(name: str, thread_id: str, value: Any) -> str | int:
    if type(value) is not int:
        refuse_foreign(thread_id, value)
        return message_id_in(name, value)
    if not 0 <= value <= MAX_SEQ:
        raise ValueError(f"{name} is {value}: it must be the seq of a message")
    return value
