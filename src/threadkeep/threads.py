"""`cp.threads`: looking at threads as a whole, and deleting them."""

from __future__ import annotations

from threadkeep.errors import ThreadNotFoundError
from threadkeep.ids import check_id, check_optional_id
from threadkeep.records import ThreadRecord
from threadkeep.store import Store

MAX_LIMIT = 10_000
STATUSES = ("active", "completed", "failed", "cancelled")


class Threads:
    """The threads of a checkpointer, or of a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, thread_id: str) -> ThreadRecord | None:
        """The thread's record, or None."""
        return await self._store.get_thread(check_id("thread_id", thread_id))

    async def list(
        self,
        *,
        parent_thread_id: str | None = None,
        status: str | None = None,
        limit: int = 100,
        after: str | ThreadRecord | None = None,
    ) -> list[ThreadRecord]:
        """Threads, newest first; with `parent_thread_id` only the forks of that one. No message is read.

        With `status`, only those that have it: "active", "completed", "failed" or "cancelled".

        `after` is the last record of the page before, or its thread_id (which must then still exist, else
        ThreadNotFoundError). Threads made or deleted between two pages shift nothing.
        """
        parent_thread_id = check_optional_id("parent_thread_id", parent_thread_id)
        status = None if status is None else _checked_status(status)
        if not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit is {limit}: it must be from 1 to {MAX_LIMIT:,}")
        if after is not None and not isinstance(after, ThreadRecord):
            thread_id = check_id("after", after)
            after = await self._store.get_thread(thread_id)
            if after is None:
                raise ThreadNotFoundError(thread_id)
        return await self._store.list_threads(parent_thread_id, status, limit, after)

    async def set_status(self, thread_id: str, status: str) -> None:
        """Say how the thread stands: "active", as every thread is at first, "completed", "failed" or "cancelled".

        It is a note for hosts and for `list`: no other method looks at it. Raises ThreadNotFoundError.
        """
        await self._store.set_status(check_id("thread_id", thread_id), _checked_status(status))

    async def delete(self, thread_id: str) -> bool:
        """Delete the thread and every row of it, in one transaction; say whether there was one.

        Its forks keep their messages and lose their `parent_thread_id`. A later write starts a new thread of that id.
        """
        return await self._store.delete_thread(check_id("thread_id", thread_id))


def _checked_status(status: str) -> str:
    if status not in STATUSES:
        raise ValueError(f"status is {status!r}: it must be one of {', '.join(STATUSES)}")
    return str(status)
