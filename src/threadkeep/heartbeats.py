"""What this process holds, and keeps from expiring for as long as it lives: tool calls in flight, leases."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from threadkeep.ids import check_id
from threadkeep.records import Execution, Worker

T = TypeVar("T")

MAX_TTL = 7 * 24 * 3600
_BEATS = 3
"""In the time it takes to expire: one that fails, or comes late, ends nothing yet."""


_process = uuid.uuid4().hex
"""This life of the process. A child that is forked has one of its own."""


def _begin_a_life() -> None:
    global _process
    _process = uuid.uuid4().hex


os.register_at_fork(after_in_child=_begin_a_life)


class Heartbeats:
    """Renews what is held, each in a task of its own."""

    def __init__(self, owner: str | None) -> None:
        own = f"{_place()}:{uuid.uuid4().hex[:12]}"
        self.worker = Worker(own if owner is None else check_id("owner", owner), _process)
        self.executing: dict[tuple[str, str], Execution] = {}
        """The calls that this process has issued and not settled, by thread and call: the latest execution of each."""
        self.settled: set[tuple[str, str, Execution]] = set()
        """Executions that this process has settled in transactions, which may still be rolled back."""
        self._beating: dict[Hashable, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def start(self, key: Hashable, ttl: float, renew: Callable[[], Awaitable[bool]]) -> None:
        """Renew it until it is stopped, or cannot be renewed any more."""
        self.stop(key)
        task = self._beating[key] = asyncio.create_task(_beat(ttl / _BEATS, renew))
        task.add_done_callback(partial(self._has_ended, key))

    def stop(self, key: Hashable) -> None:
        """It has ended."""
        task = self._beating.pop(key, None)
        if task is not None:
            task.cancel()
            self._wait_for(task)  # it may be beating right now, and has a connection to give back

    def _has_ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        if self._beating.get(key) is task:
            del self._beating[key]

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that goes on when whoever waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._wait_for(task)
        return task

    def _wait_for(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def or_undone(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]) -> T:
        """Its result. If the caller is cancelled meanwhile, it is undone as soon as it is done."""
        task = self.in_background(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.in_background(_undone(task, undo))
            raise

    async def close(self) -> None:
        """Wait for what goes on in the background, and stop all heartbeats: what this process leaves behind expires."""
        while self._background:
            await asyncio.wait(list(self._background))
        tasks = list(self._beating.values())
        self._beating.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _undone(task: asyncio.Task[T], undo: Callable[[T], Awaitable[None]]) -> None:
    with suppress(Exception):  # what cannot be undone expires
        await undo(await task)


async def _beat(every: float, renew: Callable[[], Awaitable[bool]]) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            if not await renew():
                return
        except Exception:  # noqa: S112 - whatever the database says now, the next beat may get through
            continue


def checked_ttl(ttl: float) -> float:
    """The ttl of a call or lease, or ValueError."""
    if not isinstance(ttl, int | float) or not 0 < ttl <= MAX_TTL:
        raise ValueError(f"ttl is {ttl!r}: it must be a number of seconds, positive and at most {MAX_TTL:,}")
    return ttl


def _place() -> str:
    """Where this process runs, for a person who looks at what it holds."""
    host = "".join(character if character.isascii() and character.isprintable() else "?" for character in _host())
    return f"{host[:100]}:{os.getpid()}"


def _host() -> str:
    return socket.gethostname().strip() or "host"
