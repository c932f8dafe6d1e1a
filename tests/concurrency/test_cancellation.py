"""An operation can be cancelled wherever it waits: it has happened or not, and nothing stays held."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from backends import BACKENDS, Backend, connections_in_use
from threadkeep import HitlRequest, TextContent, UserMessage
from threadkeep.messages import ConfirmRequest


class CancelledAt:
    """Awaits a coroutine, and cancels the task while it waits for the n-th time."""

    def __init__(self, work: Awaitable[Any], step: int) -> None:
        self._work = work
        self._step = step
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        waiting = self._work.__await__()
        steps = 0
        try:
            future = next(waiting)
            while True:
                steps += 1
                if steps == self._step:
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


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def in_transaction(cp: Any) -> None:
    async with cp.transaction() as tx:
        await tx.append("thread", [said("1"), said("2")])
        await tx.save_extra("thread", {"saved": True})


async def append_much(cp: Any) -> None:
    """More than is sent at once, and with ids, which no shortcut takes."""
    text = [TextContent(text="0123456789" * 2_000)]
    await cp.append("thread", [UserMessage(content=text, message_id=f"id-{number}") for number in range(20)])


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


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_cancelled_wherever_it_waits(backend: Backend, operation: Callable[[Any], Awaitable[Any]]) -> None:
    async with backend.opened() as cp:
        await prepare(cp)
        before = await state(cp)
        await operation(cp)
        after = await state(cp)

        for step in range(1, 1_000):
            await prepare(cp)
            attempt = CancelledAt(operation(cp), step)

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
