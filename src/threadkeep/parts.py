"""`cp.parts`: output that is still being streamed, kept piece by piece before its message is whole."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from threadkeep.codec import Codec
from threadkeep.errors import ImmutableFieldError, UnstorableValueError
from threadkeep.ids import check_id, check_optional_id
from threadkeep.message_ids import check_given_id, listed, message_ids_in, refuse_foreign
from threadkeep.records import NewPart, Part, StoredPart
from threadkeep.store import Store

_UNCHANGED: Final[Any] = object()
_IMMUTABLE = {"type", "part_type", "content", "index", "tool_name", "tool_call_id", "token_estimate", "created_at"}
MAX_INDEX = 2**31 - 1


class Parts:
    """The parts of a checkpointer's messages, or of a transaction's."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def append(
        self,
        thread_id: str,
        message_id: str,
        type: str,
        content: Any,
        *,
        tool_name: str | None = None,
        tool_call_id: str | None = None,
        tool_state: str | None = None,
        started_at: datetime | None = None,
        token_estimate: int = 0,
    ) -> Part:
        """Add a part to the message, at the next index: 0, 1, 2, … Its content is JSON, and stays as it is.

        The message need not be there yet: its parts are a draft until it is appended under this id. More may follow
        after that. Creates the thread when needed.
        """
        part = NewPart(
            thread_id=check_id("thread_id", thread_id),
            message_id=check_given_id("message_id", message_id),
            part_type=check_id("type", type),
            content=self._codec.encode_value(content, "content"),
            tool_name=check_optional_id("tool_name", tool_name),
            tool_call_id=check_optional_id("tool_call_id", tool_call_id),
            tool_state=check_optional_id("tool_state", tool_state),
            started_at=_checked_time("started_at", started_at),
            token_estimate=checked_count("token_estimate", token_estimate),
        )
        return part_of(self._codec, part.thread_id, await self._store.append_part(part))

    async def update_status(
        self,
        thread_id: str,
        message_id: str,
        index: int,
        *,
        tool_state: str | None = _UNCHANGED,
        started_at: datetime | None = _UNCHANGED,
        completed_at: datetime | None = _UNCHANGED,
        compacted_at: datetime | None = _UNCHANGED,
        output: Any = _UNCHANGED,
        error: str | None = _UNCHANGED,
        **others: Any,
    ) -> Part:
        """Change what is given of the part's status. Raises PartNotFoundError.

        Anything else of it raises ImmutableFieldError: the log is not rewritten.
        """
        for name in others:
            if name in _IMMUTABLE:
                raise ImmutableFieldError(name)
            raise TypeError(f"a part has no {name!r}")
        changes: dict[str, Any] = {}
        if tool_state is not _UNCHANGED:
            changes["tool_state"] = check_optional_id("tool_state", tool_state)
        times = {"started_at": started_at, "completed_at": completed_at, "compacted_at": compacted_at}
        changes |= {name: _checked_time(name, time) for name, time in times.items() if time is not _UNCHANGED}
        if output is not _UNCHANGED:
            changes["output"] = None if output is None else self._codec.encode_value(output, "output")
        if error is not _UNCHANGED:
            if error is not None and not isinstance(error, str):
                raise UnstorableValueError("error", f"is a {type(error).__name__}, not a str")
            changes["error"] = None if error is None else self._codec.encode_value(error, "error")
        thread_id, message_id = check_id("thread_id", thread_id), check_id("message_id", message_id)
        if type(index) is not int or not 0 <= index <= MAX_INDEX:
            raise ValueError(f"index is {index!r}: it must be that of a part")
        return part_of(self._codec, thread_id, await self._store.update_part(thread_id, message_id, index, changes))

    async def of(self, thread_id: str, message_ids: Iterable[Any]) -> dict[str, list[Part]]:
        """The parts of these messages, by id and in order, a thousand messages to a query. One without parts has none.

        The messages are given by their ids, or as records of them.
        """
        thread_id = check_id("thread_id", thread_id)
        messages = listed("message_ids", message_ids)
        ids = message_ids_in("message_ids", messages)
        refuse_foreign(thread_id, *messages)
        found: dict[str, list[Part]] = {message_id: [] for message_id in ids}
        for part in await self._store.parts_of(thread_id, ids) if ids else ():
            found[part.message_id].append(part_of(self._codec, thread_id, part))
        return found

    async def discard(self, thread_id: str, message_id: str) -> bool:
        """Forget a draft: all parts of a message that never came. Says whether there were any.

        Parts whose message is there belong to the log, and raise ImmutableFieldError.
        """
        return await self._store.discard_draft(check_id("thread_id", thread_id), check_id("message_id", message_id))


def part_of(codec: Codec, thread_id: str, stored: StoredPart) -> Part:
    """The record that users get."""
    key = {"thread_id": thread_id, "message_id": stored.message_id, "part_index": stored.part_index}
    content, output, error = (
        None if text is None else codec.decode_value(text, "cubepi_parts", key)
        for text in (stored.content, stored.output, stored.error)
    )
    return Part(
        thread_id=thread_id,
        message_id=stored.message_id,
        index=stored.part_index,
        type=stored.part_type,
        content=content,
        tool_name=stored.tool_name,
        tool_call_id=stored.tool_call_id,
        tool_state=stored.tool_state,
        started_at=stored.started_at,
        completed_at=stored.completed_at,
        compacted_at=stored.compacted_at,
        output=output,
        error=error,
        token_estimate=stored.token_estimate,
        created_at=stored.created_at,
    )


def checked_count(name: str, value: Any) -> int:
    """A number of things, such as tokens."""
    if type(value) is not int or not 0 <= value < 2**53:
        raise UnstorableValueError(name, f"is {value!r:.40}: it must be a whole number, from 0 to {2**53 - 1}")
    return value


def _checked_time(name: str, time: Any) -> datetime | None:
    if time is None:
        return None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UnstorableValueError(name, "it must be an aware datetime: datetime.now(UTC), for instance")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise UnstorableValueError(name, f"is {time}, and in UTC no year that a datetime can have") from None
