"""What this process holds, and keeps from expiring for as long as it lives: tool calls in flight, leases."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from threadkeep.errors import LeaseLostError
from threadkeep.ids import check_id

_BEATS = 3
"""In the time it takes to expire: one that fails, or comes late, ends nothing yet."""

Key = tuple[str, str]


class Heartbeats:
    """Renews what is held, each in a task of its own. `owner` names this process to others."""

    def __init__(self, owner: str | None) -> None:
        self.owner = new_owner() if owner is None else check_id("owner", owner)
        self._held: Counter[Key] = Counter()
        self._beating: dict[Key, asyncio.Task[None]] = {}

    @contextmanager
    def holding(self, key: Key) -> Iterator[None]:
        """Hold it in this block: from before others can see it."""
        self._held[key] += 1
        try:
            yield
        finally:
            self._let_go(key)

    def holds(self, key: Key) -> bool:
        """Whether some task of this process holds it."""
        return key in self._held

    def start(self, key: Key, ttl: float, renew: Callable[[], Awaitable[bool]]) -> None:
        """Hold and renew it until it is stopped, or cannot be renewed any more."""
        self._held[key] += 1
        task = self._beating[key] = asyncio.create_task(_beat(ttl / _BEATS, renew))
        task.add_done_callback(lambda _: self._let_go(key))

    def stop(self, key: Key) -> None:
        """It has ended."""
        task = self._beating.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop all: what this process leaves behind expires."""
        tasks = list(self._beating.values())
        self._beating.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _let_go(self, key: Key) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]


async def _beat(every: float, renew: Callable[[], Awaitable[bool]]) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            if not await renew():
                return
        except LeaseLostError:
            return
        except Exception:  # noqa: S112 - whatever the database says now, the next beat may get through
            continue


def new_owner() -> str:
    """A name for this process that no other has, and that a person can place."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
