"""Calls that come while others are under way go to the server together: one statement, one flush to its disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from threadkeep.sql.cancelling import until_done

Call = Sequence[Any]
"""The arguments of a shortcut."""

_ALONE = 2
"""As many calls at once need no company: each has the server's attention."""
_GROUPS = 2
"""Under way at once: one is written down while the other is made ready."""
_TOGETHER = 100


class Gathering:
    """The calls of one shortcut. A group never waits for a thread's lock, so that nobody in it waits for another's."""

    def __init__(self, send: Callable[[list[Call]], Awaitable[set[int]]]) -> None:
        """`send` makes these calls, and says which it has made. Of the others, nothing has happened."""
        self._send = send
        self._present = 0
        self._waiting: deque[tuple[Call, asyncio.Future[bool]]] = deque()
        self._groups: set[asyncio.Task[None]] = set()

    def __enter__(self) -> None:
        self._present += 1

    def __exit__(self, *_: object) -> None:
        self._present -= 1

    async def has_made(self, call: Call) -> bool:
        """Whether the call was made with others. If not, nothing has happened, and it goes alone."""
        if self._present <= _ALONE:
            return False
        waiting = (call, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if len(self._groups) < _GROUPS:
            # It begins when all that are awake now have come.
            group = asyncio.create_task(self._make())
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)
        return await self._answer(*waiting)

    async def _answer(self, call: Call, answer: asyncio.Future[bool]) -> bool:
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done() and (call, answer) in self._waiting:
                self._waiting.remove((call, answer))
            else:
                await until_done(answer)
            raise

    async def _make(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
            try:
                made = await self._send([call for call, _ in group])
            except Exception as error:
                for _, answer in group:
                    answer.set_exception(error)
            except BaseException:
                for _, answer in group:
                    answer.cancel()
                raise
            else:
                for place, (_, answer) in enumerate(group):
                    answer.set_result(place in made)
