"""`cp.context`: what a model is shown of a thread. Compaction changes this view, and never the log behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from threadkeep.codec import Codec
from threadkeep.errors import StaleContextError, SummaryNotFoundError
from threadkeep.ids import check_id
from threadkeep.message_ids import is_foreign, listed, message_id_in, message_ids_in
from threadkeep.message_log import records_of
from threadkeep.parts import Parts
from threadkeep.records import ContextItem, MessageRecord, PlacedItem
from threadkeep.store import Store


class Context:
    """The context windows of a checkpointer's threads, or of a transaction's."""

    def __init__(self, store: Store, codec: Codec, parts: Parts) -> None:
        self._store = store
        self._codec = codec
        self._parts = parts

    async def items(self, thread_id: str) -> list[ContextItem]:
        """What is in the window, in order: messages of the log, and summaries in the places of others.

        Until something is compacted, that is the whole log. What is appended later is in the window by itself.
        """
        thread_id = check_id("thread_id", thread_id)
        return [_item(thread_id, placed) for placed in await self._store.context_items(thread_id)]

    async def load(self, thread_id: str) -> list[Any]:
        """The messages in the window themselves. It costs what is in there, however long the log is."""
        thread_id = check_id("thread_id", thread_id)
        entries = await self._store.load_context(thread_id)
        return self._codec.decode_messages(thread_id, [entry.message for entry in entries])

    async def records(self, thread_id: str, *, with_parts: bool = False) -> list[MessageRecord]:
        """The same with their ids, from one snapshot: what a summary is made of, and what `swap` is told to remove.

        `with_parts` brings the parts of all of them in one query more.
        """
        thread_id = check_id("thread_id", thread_id)
        entries = await self._store.load_context(thread_id)
        parts = await self._parts.of(thread_id, [entry.message_id for entry in entries]) if with_parts else None
        return records_of(self._codec, thread_id, entries, parts)

    async def swap(
        self, thread_id: str, remove: Iterable[Any], summary: Any, *, summary_id: str | None = None
    ) -> ContextItem:
        """Put a summary in the place of some items: where the first of them stood. All of it happens, or nothing.

        `remove` holds what `items` or `records` gave, or ids; messages and summaries may be mixed, and need not be
        neighbours. `summary` is a message, which gets `summary_id`, or its own `message_id`, or a new one. It is not
        appended: the log stays as it is, and so does what `load` of the checkpointer returns.

        Raises StaleContextError if one of them is not in the window (any more), DuplicateIdError if the summary's id is
        taken, and ThreadNotFoundError. Of two at once that remove the same, one wins, and the other is told.
        """
        thread_id = check_id("thread_id", thread_id)
        items = listed("remove", remove)
        ids = message_ids_in("remove", items)
        if not ids:
            raise ValueError("remove is empty: say which items the summary stands for")
        (row,) = self._codec.encode_messages([summary], [summary_id])
        foreign = [item.message_id for item in items if is_foreign(thread_id, item)]
        if foreign:
            raise StaleContextError(thread_id, foreign)
        return _item(thread_id, await self._store.swap_context(thread_id, ids, row))

    async def expand(self, thread_id: str, summary: Any, *, deep: bool = False) -> list[MessageRecord]:
        """What the summary stands for, in order: the messages, and the summaries, that it took the place of.

        With `deep`, only messages: those of the log that it stands for in the end. The summary is given by its id, or
        as an item or record of it. Raises SummaryNotFoundError.
        """
        thread_id, summary_id = check_id("thread_id", thread_id), message_id_in("summary", summary)
        if is_foreign(thread_id, summary):
            raise SummaryNotFoundError(thread_id, summary_id)
        entries = await self._store.expand(thread_id, summary_id, bool(deep))
        return records_of(self._codec, thread_id, entries)


def _item(thread_id: str, placed: PlacedItem) -> ContextItem:
    return ContextItem(thread_id, placed.message_id, placed.position, is_summary=placed.number is not None)
