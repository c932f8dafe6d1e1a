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

    async def send(take: Take) -> dict[int, Any]:
        calls = take()
        sent.extend(calls)
        if len(sent) >= crowd - 2:
            after_turns(turns, loop, has_come)
        return {place: name for place, (name,) in enumerate(calls)}

    gathering = Gathering(send, interruptible=True)

    async def call(name: str, waits_for: asyncio.Future[None] | None = None) -> bool:
        with gathering:
            if waits_for is not None:
                await waits_for
            return bool(await gathering.made([name]) == name)

    late = [asyncio.create_task(call(f"late {number}", has_come)) for number in range(3)]
    await asyncio.sleep(0)  # they are present, and make a crowd of whoever comes
    async with asyncio.timeout(PATIENCE):
        made = await asyncio.gather(*(call(f"{number}") for number in range(crowd)), *late)
    assert all(made)
    assert len(sent) == crowd + len(late)


async def test_who_comes_late_waits_as_long_as_the_others_for_a_connection() -> None:
    no_connection, attempts = asyncio.Event(), 0

    async def send(take: Take) -> dict[int, Any]:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:  # as many as are under way at once
            await no_connection.wait()
            raise TimeoutError
        return {place: True for place, _ in enumerate(take())}

    gathering = Gathering(send, interruptible=True)

    async def call(name: str) -> bool:
        with gathering:
            return bool(await gathering.made([name]))

    async def come(*names: str) -> list[asyncio.Task[bool]]:
        tasks = [asyncio.create_task(call(name)) for name in names]
        for _ in range(3):
            await asyncio.sleep(0)
        return tasks

    with gathering, gathering:  # with two more, it is a crowd
        first, second = await come("first", "second")
        (late,) = await come("late")
        assert attempts == 2
        no_connection.set()
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(first, second, late, return_exceptions=True)
    assert isinstance(outcomes[0], TimeoutError)
    assert outcomes[2] is True
