"""Races between processes: what each racer does, and how they are started together.

A few processes live as long as the tests; each race gives every one of them a job and lets them go at once.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import sqlalchemy as sa

from crash.side_effects import append_line
from threadkeep import (
    DuplicateIdError,
    LeaseHeldError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotCompletedError,
    StaleContextError,
    TextContent,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    ToolCallInFlightError,
    UserMessage,
    open_checkpointer,
)
from threadkeep.migrations.upgrading import on_connection

RACERS = 4
SIZE = int(os.environ.get("THREADKEEP_STRESS", "1"))
"""How much larger than usual the races are."""

Job = Callable[..., Awaitable[Any]]

_start: Barrier


def _line_up(start: Barrier) -> None:
    global _start
    _start = start


def start_racers() -> ProcessPoolExecutor:
    """Processes that wait for jobs."""
    context = get_context("spawn")  # a fork would share sockets and threads
    return ProcessPoolExecutor(RACERS, context, _line_up, (context.Barrier(RACERS),))


def race(racers: ProcessPoolExecutor, url: str, job: Job, *args: Any) -> list[Any]:
    """Every racer does the job at the same time, and is told which racer it is. What each has returned."""
    return race_of(racers, url, [(job, (number, *args)) for number in range(RACERS)])


def race_of(racers: ProcessPoolExecutor, url: str, jobs: Sequence[tuple[Job, tuple[Any, ...]]]) -> list[Any]:
    """Each racer does a job of its own, all at the same time. What each has returned."""
    assert len(jobs) == RACERS
    running = [racers.submit(_take_part, url, job, args) for job, args in jobs]
    return [result.result() for result in running]


def _take_part(url: str, job: Job, args: tuple[Any, ...]) -> Any:
    async def run() -> Any:
        async with open_checkpointer(url, lock_timeout=60) as checkpointer:
            # The barrier waits for processes, each of which waits with its only thread: nothing else is to be done.
            await asyncio.to_thread(_start.wait)
            return await job(checkpointer, *args)

    return asyncio.run(run())


@contextmanager
def killed_in_the_middle(url: str, job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does the job in a database, until the block ends: then it is killed, wherever it is."""
    program = (
        "import asyncio, racing, threadkeep\n"
        "async def main():\n"
        f"    async with threadkeep.open_checkpointer({url!r}) as cp:\n"
        f"        await racing.{job.__name__}(cp, 0)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def open_untyped(url: str, **options: Any) -> Any:
    """`open_checkpointer`, where a missing thread is a failure and not a case."""
    return open_checkpointer(url, **options)


async def rows(url: str, *columns: Any, **where: Any) -> list[Any]:
    """What the tables really hold."""
    statement = sa.select(*columns).filter_by(**where)
    return list(await on_connection(url, lambda conn: conn.execute(statement).all()))


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


# ---- jobs: each says what it has managed to do -----------------------------------------------------------------


async def claim_all(cp: Any, racer: int, rounds: int) -> list[int]:
    """Try to claim every run. Those it got."""
    won = []
    for number in range(rounds):
        try:
            await cp.claim_run("thread", f"run {number}")
            won.append(number)
        except RunAlreadyClaimedError:
            pass
    return won


async def append_batches(cp: Any, racer: int, rounds: int) -> int:
    """Append batches of one to three messages. How many messages that made."""
    count = 0
    for number in range(rounds):
        size = 1 + (number + racer) % 3
        await cp.append("thread", [said(f"{racer}:{number}:{part}:{size}") for part in range(size)])
        count += size
    return count


async def run_and_complete(cp: Any, racer: int, rounds: int) -> None:
    """Whole runs, all in one thread."""
    for number in range(rounds):
        run_id = f"{racer}:{number}"
        await cp.claim_run("thread", run_id)
        await cp.append("thread", [said("x", run_id), said("y", run_id)])
        await cp.mark_run_complete("thread", run_id)


async def add_keys(cp: Any, racer: int, rounds: int) -> None:
    """A key of its own in each merge."""
    for number in range(rounds):
        await cp.save_extra("thread", {f"{racer}:{number}": number})


async def append_until_completed(cp: Any, racer: int, rounds: int) -> list[int]:
    """For each run, append to it until it is closed. How many messages each run took."""
    counts = []
    for number in range(rounds):
        count = 0
        while True:
            try:
                await cp.append("thread", [said("x", f"run {number}")])
                count += 1
            except RunAlreadyCompletedError:
                break
        counts.append(count)
    return counts


async def complete_each(cp: Any, racer: int, rounds: int) -> list[int]:
    """Complete the runs one by one. How many messages each had when it was completed."""
    counts = []
    for number in range(rounds):
        await asyncio.sleep(0.005)  # lets some appends through first; nothing depends on how many
        async with cp.transaction() as tx:
            await tx.mark_run_complete("thread", f"run {number}")
            data = await tx.load("thread")
            counts.append(sum(message.run_id == f"run {number}" for message in data.messages))
    return counts


async def fork_completed(cp: Any, racer: int, rounds: int) -> list[tuple[int, int]]:
    """Fork after one run after another, as they are completed by others. Each run's place, and the fork's length."""
    forked = []
    for number in range(rounds):
        runs: list[Any] = []
        while len(runs) <= number:
            runs = sorted(
                (run for run in await cp.runs.list("thread") if run.completion_seq), key=lambda run: run.completion_seq
            )
        run = runs[number]
        await cp.fork("thread", f"fork {racer} {number}", after_run_id=run.run_id)
        data = await cp.load(f"fork {racer} {number}")
        forked.append((run.completion_seq, len(data.messages)))
    return forked


async def fork_across(cp: Any, racer: int, rounds: int) -> int:
    """Fork two threads onto each other, half of the racers the other way round. All are refused: both exist."""
    source, target = ("left", "right") if racer % 2 else ("right", "left")
    refused = 0
    for _ in range(rounds):
        try:
            await cp.fork(source, target, after_run_id="run")
        except ThreadAlreadyExistsError:
            refused += 1
    return refused


async def fork_to_same(cp: Any, racer: int, rounds: int) -> list[int]:
    """Fork to ids that all racers want. Those it got."""
    won = []
    for number in range(rounds):
        try:
            await cp.fork("left" if racer % 2 else "right", f"copy {number}", after_run_id="run")
            won.append(number)
        except ThreadAlreadyExistsError:
            pass
    return won


async def delete_again_and_again(cp: Any, racer: int, rounds: int) -> int:
    """Delete the thread whenever it is there. How often it was."""
    return sum([await cp.threads.delete("thread") for _ in range(rounds)])


async def write_everything(cp: Any, racer: int, rounds: int) -> None:
    """Every kind of write to one thread, which others delete."""
    for number in range(rounds):
        run_id = f"{racer}:{number}"
        await cp.claim_run("thread", run_id)
        await cp.append("thread", [said("x", run_id)] * 3)
        await cp.save_extra("thread", {run_id: 1})
        await cp.save_hitl_answer("thread", "q", 1, run_id=run_id)
        with suppress(RunNotCompletedError, ThreadNotFoundError):
            await cp.fork("thread", f"fork {run_id}", after_run_id=run_id)


async def append_forever(cp: Any, racer: int) -> None:
    """Append threes until killed."""
    number = 0
    while True:
        await cp.append("thread", [said(f"{number}:{part}") for part in range(3)])
        number += 1


# ---- the same for tool calls, leases and checkpoints -----------------------------------------------------------


async def issue_all(cp: Any, racer: int, rounds: int, effects: str) -> list[str]:
    """Try to execute the call of every key. What it was told of each."""
    seen = []
    for number in range(rounds):
        # Every other key under an id of the racer's own: neither the id nor the key alone is to decide.
        call_id = f"call {number}" if number % 2 else f"call {number} of {racer}"
        issued = await cp.ledger.issue("thread", call_id, "tool", {"number": number}, idempotency_key=f"key {number}")
        if issued.execute:
            append_line(effects, f"key {number}")
            await cp.ledger.complete("thread", call_id, number)
        seen.append("executed" if issued.execute else issued.entry.state)
    return seen


async def run_once_all(cp: Any, racer: int, rounds: int, effects: str) -> list[str]:
    """Run a function once for every key. What came of each."""

    def function(number: int) -> str:
        line = f"{number} by {racer}"
        append_line(effects, line)
        return line

    results = []
    for number in range(rounds):
        call_id = f"call {number}" if number % 2 else f"call {number} of {racer}"
        try:
            results.append(await cp.ledger.once("thread", call_id, "tool", {"number": number}, function))
        except ToolCallInFlightError:
            results.append("in flight")
    return results


async def lease_all(cp: Any, racer: int, rounds: int) -> list[int]:
    """Try to lease every run, and complete it. Those it got."""
    won = []
    for number in range(rounds):
        try:
            async with cp.runs.lease("thread", f"run {number}", ttl=300) as lease:
                won.append(number)
                await lease.append("thread", [said("x", f"run {number}")])
                await lease.mark_run_complete("thread", f"run {number}")
        except (LeaseHeldError, RunAlreadyCompletedError):
            pass
    return won


async def take_turns(cp: Any, racer: int, rounds: int, path: str) -> list[int]:
    """Lease the thread as often as asked for, whenever nobody else has it; say when it comes and goes. Its tokens."""
    tokens: list[int] = []
    while len(tokens) < rounds:
        try:
            async with cp.runs.lease("thread", f"run of {racer}", ttl=300, exclusive=True) as lease:
                append_line(path, f"in {racer} {lease.token}")
                tokens.append(lease.token)
                await lease.append("thread", [said("x")])
                append_line(path, f"out {racer} {lease.token}")
        except LeaseHeldError:
            await asyncio.sleep(0.002)  # so that those who ask do not keep the holder from writing
    return tokens


async def save_checkpoints(cp: Any, racer: int, rounds: int) -> list[int]:
    """Say something and save a checkpoint, again and again. Its versions."""
    versions = []
    for number in range(rounds):
        await cp.append("thread", [said("x")])
        versions.append(await cp.checkpoints.save("thread", state=f"{racer}:{number}"))
    return versions


# ---- the same for messages by id, parts and the context window -------------------------------------------------


async def append_same_ids(cp: Any, racer: int, rounds: int) -> list[int]:
    """Append messages under ids that all racers want. Those it got."""
    won = []
    for number in range(rounds):
        try:
            await cp.messages.append("thread", [said(f"{racer}")], message_ids=[f"message {number}"])
            won.append(number)
        except DuplicateIdError:
            pass
    return won


async def stream_parts(cp: Any, racer: int, rounds: int) -> list[int]:
    """Add parts to one message. Their indexes."""
    return [(await cp.parts.append("thread", "message", "text", racer)).index for _ in range(rounds)]


async def append_and_compact(cp: Any, racer: int, rounds: int) -> tuple[int, int]:
    """Append, and keep the window short, as all racers do at once. How often it won, and how often it was told."""
    won = told = 0
    for number in range(rounds):
        await cp.append("thread", [said(f"{racer}:{number}")])
        items = await cp.context.items("thread")
        if len(items) > 6:
            # Every other of the older ones: what stays between them needs a place of its own.
            try:
                await cp.context.swap("thread", items[number % 2 : 6 : 2], said(f"summary by {racer}"))
                won += 1
            except StaleContextError:
                told += 1
    return won, told


async def compact_forever(cp: Any, racer: int) -> None:
    """The same until killed."""
    while True:
        await append_and_compact(cp, racer, 10)
