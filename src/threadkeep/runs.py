"""`cp.runs`: looking at the runs of a thread."""

from __future__ import annotations

from threadkeep.ids import check_id
from threadkeep.records import RunRecord
from threadkeep.store import Store


class Runs:
    """The runs of a checkpointer, or of a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, thread_id: str) -> list[RunRecord]:
        """The thread's runs in the order they were claimed; none for a thread that does not exist."""
        return await self._store.list_runs(check_id("thread_id", thread_id))
