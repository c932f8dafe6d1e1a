"""`cp.threads`: threads as a whole. Making, finding, naming and deleting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from threadkeep import searching
from threadkeep.codec import Codec
from threadkeep.errors import ThreadNotFoundError, UnstorableValueError
from threadkeep.ids import check_id, check_optional_id
from threadkeep.labels import labels_of
from threadkeep.records import NewThread, SearchHit, ThreadQuery, ThreadRecord
from threadkeep.store import Store

T = TypeVar("T")

MAX_LIMIT = 10_000
MAX_SEARCH = 1_000
MAX_KEYS = 1_000
_NAMES = ("model_id", "provider_id", "agent")
STATUSES = ("active", "completed", "failed", "cancelled")


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final[Any] = _Unchanged()
"""What `update` leaves as it is."""


class Threads:
    """The threads of a checkpointer, or of a transaction."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def create(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent_thread_id: str | None = None,
        model_id: str = "",
        provider_id: str = "",
        agent: str = "default",
        system_prompt: str = "",
    ) -> ThreadRecord:
        """Make a thread before its first message, and say what it is. Any other first write makes one, too.

        An empty string, as agent too, is the default.

        Raises ThreadAlreadyExistsError if the id is taken, also by a thread that was deleted softly. The parent must be
        there, else ThreadNotFoundError, and not be deleted softly, else ThreadDeletedError.
        """
        columns = self._columns(
            title=title,
            metadata={} if metadata is None else metadata,
            model_id=model_id,
            provider_id=provider_id,
            agent=agent,
            system_prompt=system_prompt,
        )
        return await self._store.create_thread(
            NewThread(
                thread_id=check_id("thread_id", thread_id),
                parent_thread_id=check_optional_id("parent_thread_id", parent_thread_id),
                labels=labels_of({} if metadata is None else metadata),
                **columns,
            )
        )

    async def update(
        self,
        thread_id: str,
        *,
        title: str | None = UNCHANGED,
        metadata: dict[str, Any] = UNCHANGED,
        model_id: str = UNCHANGED,
        provider_id: str = UNCHANGED,
        agent: str = UNCHANGED,
        system_prompt: str = UNCHANGED,
    ) -> ThreadRecord:
        """Change what is given, as a whole: new metadata replaces the old. Raises ThreadNotFoundError."""
        given = {
            "title": title,
            "metadata": metadata,
            "model_id": model_id,
            "provider_id": provider_id,
            "agent": agent,
            "system_prompt": system_prompt,
        }
        changes = self._columns(**{name: value for name, value in given.items() if value is not UNCHANGED})
        labels = None if metadata is UNCHANGED else labels_of(metadata)
        return await self._store.update_thread(check_id("thread_id", thread_id), changes, labels)

    async def get(self, thread_id: str) -> ThreadRecord | None:
        """The thread's record, also of one that was deleted softly, or None."""
        return await self._store.get_thread(check_id("thread_id", thread_id))

    async def search(
        self, text: str, *, thread_id: str | None = None, include_deleted: bool = False, limit: int = 100
    ) -> list[SearchHit]:
        """Where this text stands: in titles, and in the messages of checkpointers made with `searchable=`.

        Anywhere in a word, and whatever its case. The hits of the newest thread come first, its title before its
        messages, and those in their order. With `thread_id`, only this thread is searched.
        """
        if not isinstance(text, str):
            raise UnstorableValueError("text", f"is a {type(text).__name__}, not a str")
        folded = searching.fold(text)
        if not folded.strip():
            raise ValueError("text has nothing to search for")
        if len(folded) > MAX_SEARCH:
            raise ValueError(f"text has {len(folded):,} characters: search for at most {MAX_SEARCH:,}")
        thread_id = check_optional_id("thread_id", thread_id)
        return await self._store.search(folded, thread_id, bool(include_deleted), checked_limit(limit))

    async def list(
        self,
        *,
        parent_thread_id: str | None = None,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        include_deleted: bool = False,
        limit: int = 100,
        after: str | ThreadRecord | None = None,
    ) -> list[ThreadRecord]:
        """Threads, newest first. No message is read.

        With `parent_thread_id`, only the forks and sub-threads of that one; with `status`, only those that have it:
        "active", "completed", "failed" or "cancelled"; with `metadata`, only those that have every one of these values
        under these keys. Threads that were deleted softly only with `include_deleted`.

        `after` is the last record of the page before, or its thread_id (which must then still exist, else
        ThreadNotFoundError). Threads made or deleted between two pages shift nothing.
        """
        parent_thread_id = check_optional_id("parent_thread_id", parent_thread_id)
        status = None if status is None else _checked_status(status)
        labels = self._labels(metadata or {})
        limit = checked_limit(limit)
        if after is not None and not isinstance(after, ThreadRecord):
            thread_id = check_id("after", after)
            after = await self._store.get_thread(thread_id)
            if after is None:
                raise ThreadNotFoundError(thread_id)
        query = ThreadQuery(parent_thread_id, status, labels, bool(include_deleted), limit, after)
        return await self._store.list_threads(query)

    async def set_status(self, thread_id: str, status: str) -> None:
        """Say how the thread stands: "active", as every thread is at first, "completed", "failed" or "cancelled".

        It is a note for hosts and for `list`: no other method looks at it. Raises ThreadNotFoundError.
        """
        await self._store.set_status(check_id("thread_id", thread_id), _checked_status(status))

    async def soft_delete(self, thread_id: str) -> None:
        """Put the thread away: it is not listed any more and refuses writes with ThreadDeletedError. All of it stays.

        A second time changes nothing. Raises ThreadNotFoundError.
        """
        await self._store.soft_delete_thread(check_id("thread_id", thread_id))

    async def restore(self, thread_id: str) -> None:
        """Bring back a thread that was deleted softly; one that was not stays as it is. Raises ThreadNotFoundError."""
        await self._store.restore_thread(check_id("thread_id", thread_id))

    async def delete(self, thread_id: str) -> bool:
        """Delete the thread and every row of it, in one transaction; say whether there was one.

        Its forks and sub-threads lose their `parent_thread_id`, and nothing else. A later write starts a new thread of
        that id.
        """
        return await self._store.delete_thread(check_id("thread_id", thread_id))

    def _columns(self, **given: Any) -> dict[str, Any]:
        """What is stored for each, or None for what is the default anyway."""
        columns: dict[str, Any] = {}
        for name, value in given.items():
            if name == "metadata":
                columns[name] = self._codec.encode_object(value, name) if value != {} else None
            elif name == "title" and value is None:
                columns[name] = None
            elif name in _NAMES:
                columns[name] = check_id(name, value) if value != "" else None
            elif not isinstance(value, str):
                raise UnstorableValueError(name, f"is a {type(value).__name__}, not a str")
            else:
                columns[name] = self._codec.encode_value(value, name) if name == "title" or value else None
        return columns

    def _labels(self, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        wanted = dict(metadata)
        if len(wanted) > MAX_KEYS:
            raise ValueError(f"metadata has {len(wanted):,} keys: look for at most {MAX_KEYS:,} at once")
        self._codec.encode_object(wanted, "metadata")
        return labels_of(wanted)


def checked_limit(limit: Any) -> int:
    """A page's size, or ValueError."""
    if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit is {limit!r}: it must be from 1 to {MAX_LIMIT:,}")
    return limit


def _checked_status(status: str) -> str:
    if status not in STATUSES:
        raise ValueError(f"status is {status!r}: it must be one of {', '.join(STATUSES)}")
    return str(status)
