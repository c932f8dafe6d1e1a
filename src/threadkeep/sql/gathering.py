"""Calls that come while others are under way go to the server together: one statement, one flush to its disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from threadkeep.sql.cancelling import until_done

Call = Sequence[Any]
"""The arguments of a shortcut."""
Take = Callable[[], list[Call]]
"""Gives the calls of a group, none of which can be taken back any more. None, if all who waited have left."""

NOT_MADE = object()
"""Of such a call nothing has happened, and it goes alone."""

_ALONE = 2
"""As many calls at once need no company: each has the server's attention."""
_GROUPS = 2
"""Under way at once: one is written down while the other is made ready."""
_TOGETHER = 100


class _Caller:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.group: _Group | None = None
        """That it was sent with, once it was."""


class _Group:
    sending: asyncio.Future[dict[int, Any]]

    def __init__(self) -> None:
        self.callers: list[_Caller] = []
        self.left = 0
        """How many of them were cancelled meanwhile."""


class Gathering:
    """The calls of one shortcut. A group never waits for a thread's lock, so that nobody in it waits for another's."""

    def __init__(self, send: Callable[[Take], Awaitable[dict[int, Any]]], *, interruptible: bool) -> None:
        """`send` takes calls and makes them, and says what those return that it has made, by their numbers.

        With `interruptible` it is cancelled when none of its callers is left, and then goes on with nothing.
        """
        self._send = send
        self._interruptible = interruptible
        self._present = 0
        self._waiting: deque[_Caller] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    def __enter__(self) -> None:
        self._present += 1

    def __exit__(self, *_: object) -> None:
        self._present -= 1

    async def made(self, call: Call) -> Any:
        """What the call returns, which was made with others; or NOT_MADE."""
        if self._present <= _ALONE:
            return NOT_MADE
        caller = _Caller(call)
        self._waiting.append(caller)
        if len(self._senders) < _GROUPS:
            # It begins when all that are awake now have come.
            sender = asyncio.create_task(self._send_groups())
            self._senders.add(sender)
        try:
            return await asyncio.shield(caller.answer)
        except asyncio.CancelledError:
            await self._leave(caller)
            raise

    async def _leave(self, caller: _Caller) -> None:
        if caller.group is None:
            if caller in self._waiting:
                self._waiting.remove(caller)
            return
        caller.group.left += 1
        if self._interruptible and caller.group.left == len(caller.group.callers):
            caller.group.sending.cancel()
        await until_done(caller.answer)

    async def _send_groups(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._waiting:
                await self._send_group()
        finally:
            # Now, and not by a callback of the task, which comes later: who came in between would wait for nobody.
            self._senders.discard(task)

    async def _send_group(self) -> None:
        group = _Group()
        first = [*self._waiting]
        group.sending = asyncio.ensure_future(self._send(partial(self._take, group)))
        try:
            made = await group.sending
        except asyncio.CancelledError:
            for caller in group.callers:
                caller.answer.cancel()
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Else only this group was cancelled, because nobody was left in it.
        except Exception as error:
            if not group.callers:
                # There was no connection, for all the time that those have waited. Who came later waits on.
                group.callers = [caller for caller in first if caller in self._waiting]
                for caller in group.callers:
                    self._waiting.remove(caller)
            for caller in group.callers:
                caller.answer.set_exception(error)
        else:
            for place, caller in enumerate(group.callers):
                caller.answer.set_result(made.get(place, NOT_MADE))

    def _take(self, group: _Group) -> list[Call]:
        group.callers = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
        for caller in group.callers:
            caller.group = group
        return [caller.call for caller in group.callers]
