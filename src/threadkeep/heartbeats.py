"""What this process holds, and keeps from expiring for as long as it lives: tool calls in flight, leases."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable

from threadkeep.ids import check_id
from threadkeep.records import Execution, Worker

_BEATS = 3
"""In the time it takes to expire: one that fails, or comes late, ends nothing yet."""

Key = tuple[str, str]


class Heartbeats:
    """Renews what is held, each in a task of its own."""

    def __init__(self, owner: str | None) -> None:
        process = uuid.uuid4().hex
        self.worker = Worker(f"{_place()}:{process[:12]}" if owner is None else check_id("owner", owner), process)
        self.executing: dict[Key, Execution] = {}
        """The calls that this process has issued and not settled."""
        self._beating: dict[Key, asyncio.Task[None]] = {}

    def start(self, key: Key, ttl: float, renew: Callable[[], Awaitable[bool]]) -> None:
        """Renew it until it is stopped, or cannot be renewed any more."""
        self.stop(key)
        self._beating[key] = asyncio.create_task(_beat(ttl / _BEATS, renew))

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


async def _beat(every: float, renew: Callable[[], Awaitable[bool]]) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            if not await renew():
                return
        except Exception:  # noqa: S112 - whatever the database says now, the next beat may get through
            continue


def _place() -> str:
    """Where this process runs, for a person who looks at what it holds."""
    host = "".join(character if character.isascii() and character.isprintable() else "?" for character in _host())
    return f"{host[:100]}:{os.getpid()}"


def _host() -> str:
    return socket.gethostname().strip() or "host"
