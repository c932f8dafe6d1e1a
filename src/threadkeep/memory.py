"""MemoryCheckpointer: the contract in plain dictionaries, for tests and for hosts that need nothing durable.

Values are stored encoded, so what is loaded is never shared with the store, and what another backend would refuse is
refused here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from threadkeep.codec import DEFAULT_MAX_VALUE_BYTES, Codec
from threadkeep.errors import CheckpointerLockTimeoutError
from threadkeep.frontdoor import CheckpointerMethods
from threadkeep.heartbeats import Heartbeats
from threadkeep.memory_store import MemoryStore
from threadkeep.memory_threads import Threads
from threadkeep.messages import HitlRequest, Message
from threadkeep.searching import Searchable


class MemoryCheckpointer(CheckpointerMethods):
    """Keeps everything in this process. Needs no `async with`, but takes it, so that backends can be swapped."""

    def __init__(
        self,
        *,
        message_type: Any = Message,
        request_type: Any = HitlRequest,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        lock_timeout: float = 5.0,
        owner: str | None = None,
        searchable: Searchable = False,
    ) -> None:
        self._committed = Threads()
        self._lock = asyncio.Lock()
        self._lock_timeout = lock_timeout
        codec = Codec(message_type, request_type, max_value_bytes, searchable=searchable)
        super().__init__(MemoryStore(self._committed, max_value_bytes, self._writing), codec, Heartbeats(owner))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let go of what is held. What was written stays for as long as the object does."""
        await self._heartbeats.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[CheckpointerMethods]:
        """The same methods on one transaction: all of it happens, or nothing. Other writers wait, readers do not."""
        async with self._writing():
            threads = Threads(self._committed)
            store = MemoryStore(threads, self._codec.max_value_bytes, _no_waiting)
            try:
                yield CheckpointerMethods(store, self._codec, self._heartbeats, is_transaction=True)
                threads.commit()
            finally:
                threads.over = True

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._lock_timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise CheckpointerLockTimeoutError(
                f"another writer held the lock for more than {self._lock_timeout:g} s"
            ) from None
        try:
            yield
        finally:
            self._lock.release()


@asynccontextmanager
async def _no_waiting() -> AsyncIterator[None]:
    yield
