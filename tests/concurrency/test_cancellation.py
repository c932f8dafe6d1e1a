"""An operation can be cancelled wherever it waits: it has happened or not, and nothing stays held."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backends import BACKENDS, Backend, connections_in_use
from cancelled import CancelledAt
from threadkeep import HitlRequest, TextContent, UserMessage
from threadkeep.messages import ConfirmRequest


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def in_transaction(cp: Any) -> None:
    async with cp.transaction() as tx:
        await tx.append("thread", [said("1"), said("2")])
        await tx.save_extra("thread", {"saved": True})


async def append_much(cp: Any) -> None:
    """More than is sent at once, and with ids, which no shortcut takes."""
    text = TextContent(text="0123456789" * 2_000)
    await cp.append("thread", [UserMessage(content=[text], message_id=f"id-{number}") for number in range(20)])


async def in_failing_transaction(cp: Any) -> None:
    with suppress(LookupError):
        async with cp.transaction() as tx:
            await tx.append("thread", [said("1"), said("2")])
            raise LookupError


ASKED = HitlRequest(question_id="q", payload=ConfirmRequest(prompt="?"), created_at=0.0)

OPERATIONS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "load": lambda cp: cp.load("source"),
    "append": lambda cp: cp.append("thread", [said("1"), said("2")]),
    "append of much": append_much,
    "save_extra": lambda cp: cp.save_extra("thread", {"saved": True}),
    "claim_run": lambda cp: cp.claim_run("thread", "run"),
    "mark_run_complete": lambda cp: cp.mark_run_complete("source", "open"),
    "save_pending_request": lambda cp: cp.save_pending_request("thread", ASKED, run_id="run"),
    "fork": lambda cp: cp.fork("source", "thread", after_run_id="done"),
    "delete": lambda cp: cp.threads.delete("source"),
    "transaction": in_transaction,
    "failing transaction": in_failing_transaction,
}


async def prepare(cp: Any) -> None:
    for name in ("thread", "source"):
        await cp.threads.delete(name)
    for run_id in ("done", "open"):
        await cp.claim_run("source", run_id)
        await cp.append("source", [said(run_id, run_id)])
    await cp.mark_run_complete("source", "done")


async def state(cp: Any) -> Any:
    """All that the operations may change."""
    records = [await cp.threads.get(name) for name in ("thread", "source")]
    return (
        [await cp.load(name) for name in ("thread", "source")],
        [(record.last_seq, record.last_completion_seq) if record else None for record in records],
        [[(run.run_id, run.completion_seq) for run in await cp.runs.list(name)] for name in ("thread", "source")],
        await cp.load_pending("thread"),
    )


async def settled_state(cp: Any) -> Any:
    """What two looks agree on: the commit of a cancelled call may still be on its way, and land between two reads."""
    seen = await state(cp)
    while seen != (again := await state(cp)):
        seen = again
    return seen


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_cancelled_wherever_it_waits(
    backend: Backend, operation: Callable[[Any], Awaitable[Any]], times: int
) -> None:
    async with backend.opened() as cp:
        await prepare(cp)
        before = await state(cp)
        await operation(cp)
        after = await state(cp)

        for step in range(1, 1_000):
            await prepare(cp)
            attempt = CancelledAt(operation(cp), step, times)

            async def run(attempt: CancelledAt = attempt) -> Any:
                return await attempt

            outcome = (await asyncio.gather(asyncio.create_task(run()), return_exceptions=True))[0]
            assert await connections_in_use(cp) == 0
            if not attempt.reached:
                assert not isinstance(outcome, BaseException)
                break
            assert outcome is None or not isinstance(outcome, Exception), f"{outcome!r} came out at step {step}"
            assert await settled_state(cp) in (before, after)
            await cp.append("source", [said("the next one works")])
        else:
            raise AssertionError("it never ended")


async def test_a_transaction_cancelled_while_it_begins_holds_no_lock(backend: Backend) -> None:
    """After so many turns of the loop, wherever that is: a thread of ours may be beginning at that moment."""
    async with backend.opened(lock_timeout=2.0) as cp:
        for turns in range(1, 12):
            task = asyncio.create_task(in_transaction(cp))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cp.append("other", [said("not locked out")])
        assert len((await cp.load("other")).messages) == 11


async def test_who_comes_while_a_cancelled_transaction_rolls_back_gets_a_clean_connection(backend: Backend) -> None:
    async with backend.opened() as cp:
        await cp.threads.delete("other")
        rounds = [(turns, times) for turns in range(6) for times in (1, 2)]
        for turns, times in rounds:
            fails = asyncio.Event()

            async def fail(fails: asyncio.Event = fails) -> None:
                async with cp.transaction() as tx:
                    await tx.append("thread", [said("never")])
                    fails.set()
                    raise LookupError

            task = asyncio.create_task(fail())
            await fails.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            await cp.append("other", [said("at the same time")])
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(outcome, (asyncio.CancelledError, LookupError))

        assert [record.seq for record in await cp.messages.list("other")] == [*range(1, len(rounds) + 1)]
        assert await cp.load("thread") is None
