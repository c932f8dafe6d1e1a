"""Calls that are sent together: nobody is left behind, whenever it comes."""

import asyncio
from typing import Any

import pytest

from threadkeep.sql.gathering import Gathering, Take

PATIENCE = 10
"""Seconds after which somebody was forgotten."""


def after_turns(turns: int, loop: asyncio.AbstractEventLoop, then: asyncio.Future[None]) -> None:
    """Let the loop turn so often, and then wake who waits, without a turn in between."""

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        elif not then.done():
            then.set_result(None)

    loop.call_soon(turn, turns)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("crowd", [3, 4, 60, 210])
async def test_who_comes_while_the_last_group_ends_is_not_forgotten(turns: int, crowd: int) -> None:
    loop = asyncio.get_running_loop()
    has_come: asyncio.Future[None] = loop.create_future()
    sent: list[Any] = []

    async def send(take: Take) -> set[int]:
        calls = take()
        sent.extend(calls)
        if len(sent) >= crowd - 2:
            after_turns(turns, loop, has_come)
        return set(range(len(calls)))

    gathering = Gathering(send, interruptible=True)

    async def call(name: str, waits_for: asyncio.Future[None] | None = None) -> bool:
        with gathering:
            if waits_for is not None:
                await waits_for
            return await gathering.has_made([name])

    late = [asyncio.create_task(call(f"late {number}", has_come)) for number in range(3)]
    await asyncio.sleep(0)  # they are present, and make a crowd of whoever comes
    async with asyncio.timeout(PATIENCE):
        made = await asyncio.gather(*(call(f"{number}") for number in range(crowd)), *late)
    assert all(made)
    assert len(sent) == crowd + len(late)
