"""What the racers of `test_shortcut_races` do: the writes of every turn. Each job says what it has managed to do."""

import asyncio
from itertools import count
from typing import Any

from crash.side_effects import append_line
from racing import said
from threadkeep import (
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    ThreadDeletedError,
    ThreadNotFoundError,
    open_checkpointer,
)

CROWD = 8
"""Callers in one process that write at once."""


async def whole_turns(cp: Any, racer: int, rounds: int) -> None:
    """Runs, messages and keys of its own, all in one thread."""
    for number in range(rounds):
        run_id = f"{racer}:{number}"
        await cp.claim_run("thread", run_id)
        await cp.append("thread", [said("asked", run_id), said("thought", run_id)])
        await cp.save_extra("thread", {run_id: number})
        await cp.append("thread", [said("answered", run_id)])
        await cp.mark_run_complete("thread", run_id)


async def claim_and_complete_each(cp: Any, racer: int, rounds: int) -> list[int]:
    """Claim runs that others append to, and complete them. How many messages each had when that had happened."""
    counts = []
    for number in range(rounds):
        await asyncio.sleep(0.005)  # lets some appends through first; nothing depends on how many
        if number % 2:
            await cp.claim_run("thread", f"run {number}")
            await cp.mark_run_complete("thread", f"run {number}")
        else:
            # At one moment, so that an append which waits for it has never seen the run.
            async with cp.transaction() as tx:
                await tx.claim_run("thread", f"run {number}")
                await tx.mark_run_complete("thread", f"run {number}")
        data = await cp.load("thread")
        counts.append(sum(message.run_id == f"run {number}" for message in data.messages) if data else 0)
    return counts


async def claim_and_complete_all(cp: Any, racer: int, rounds: int) -> list[int]:
    """Try to claim every run, and complete it, whoever got it. Those it got."""
    won = []
    for number in range(rounds):
        try:
            await cp.claim_run("thread", f"run {number}")
            won.append(number)
        except (RunAlreadyClaimedError, RunAlreadyCompletedError):
            pass
        await cp.mark_run_complete("thread", f"run {number}")
        try:
            await cp.append("thread", [said("late", f"run {number}")])
            raise AssertionError("it is complete, and takes messages")
        except RunAlreadyCompletedError:
            pass
    return won


async def figures(cp: Any, thread_id: str) -> dict[str, int]:
    """What is in a thread, counted."""
    runs = await cp.runs.list(thread_id)
    data = await cp.load(thread_id)
    return {
        "claimed": len(runs),
        "appended": len(data.messages),
        "saved": len(data.extra),
        "completed": sum(run.completed_at is not None for run in runs),
    }


async def turns_until_put_away(cp: Any, racer: int, rounds: int) -> list[dict[str, int]]:
    """In each thread, turn after turn until it is put away. What was written there."""
    written = []
    for number in range(rounds):
        thread_id = f"thread {number}"
        counts = {"claimed": 0, "appended": 0, "saved": 0, "completed": 0}
        for turn in count():
            run_id = f"{racer}:{turn}"
            try:
                await cp.claim_run(thread_id, run_id)
                counts["claimed"] += 1
                await cp.append(thread_id, [said("x", run_id)])
                counts["appended"] += 1
                await cp.save_extra(thread_id, {run_id: turn})
                counts["saved"] += 1
                await cp.mark_run_complete(thread_id, run_id)
                counts["completed"] += 1
            except ThreadDeletedError:
                break
        written.append(counts)
    return written


async def put_away_each(cp: Any, racer: int, rounds: int) -> list[dict[str, int]]:
    """Put the threads away one by one. What each held when that had happened."""
    held = []
    for number in range(rounds):
        while True:
            await asyncio.sleep(0.01)  # lets some writes through first; nothing depends on how many
            try:
                await cp.threads.soft_delete(f"thread {number}")
                break
            except ThreadNotFoundError:
                pass
        held.append(await figures(cp, f"thread {number}"))
    return held


async def append_in_crowds(cp: Any, racer: int, rounds: int) -> tuple[list[str], list[str]]:
    """Append twos, many at once, some of which are cancelled. Those that were answered, and those that were not."""
    answered: list[str] = []
    cancelled: list[str] = []
    for number in range(rounds):
        names = [f"{racer}:{number}:{caller}" for caller in range(CROWD)]
        writing = [asyncio.ensure_future(cp.append("thread", [said(name), said(f"{name} too")])) for name in names]
        for _ in range(1 + number % 7):
            await asyncio.sleep(0)
        writing[number % CROWD].cancel()
        for name, outcome in zip(names, await asyncio.gather(*writing, return_exceptions=True), strict=True):
            (answered if outcome is None else cancelled).append(name)
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)
    return answered, cancelled


def append_in_crowds_forever(url: str, thread_id: str, path: str) -> None:
    """Append, many at once, and note what was answered, until killed."""

    async def call(cp: Any, caller: int) -> None:
        for number in count():
            await cp.append(thread_id, [said(f"{caller}:{number}")])
            append_line(path, f"{caller}:{number}")

    async def run() -> None:
        async with open_checkpointer(url) as cp:
            await asyncio.gather(*(call(cp, caller) for caller in range(CROWD)))

    asyncio.run(run())
