"""Cancelling an operation at any of the moments at which it waits."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any


class CancelledAt:
    """Awaits a coroutine, and cancels the task while it waits for the n-th time, or for several times in a row."""

    def __init__(self, work: Awaitable[Any], step: int, times: int, *, is_counting: bool = True) -> None:
        self._work = work
        self._step = step
        self._times = times
        self.is_counting = is_counting
        """Whether it counts from the beginning, or only when somebody says so."""
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        waiting = self._work.__await__()
        steps = 0
        try:
            future = next(waiting)
            while True:
                steps += self.is_counting
                if self.is_counting and self._step <= steps < self._step + self._times:
                    self.reached = True
                    asyncio.get_running_loop().call_soon(task.cancel)
                try:
                    value = yield future
                except BaseException as error:
                    future = waiting.throw(error)
                else:
                    future = waiting.send(value)
        except StopIteration as stop:
            return stop.value
