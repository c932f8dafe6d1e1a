"""Workers that are killed and paused: an agent whose tools have side effects, and one that only holds a lease.

Run as a program, this reads a job a line and forks a process for each: importing takes longer than most of them live.
The process says what it does, a line each, from "started PID" on; then comes how it ended, as "ended CODE". A process
that has ended stays in the system's table until the next job, so that a signal never reaches another one.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import count
from random import Random
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from crash.side_effects import append_line, lines_of
from threadkeep import (
    AskRequest,
    AssistantMessage,
    CallState,
    CheckpointerLockTimeoutError,
    Completed,
    Failed,
    HitlRequest,
    ImageContent,
    LeaseHeldError,
    LeaseLostError,
    LedgerEntry,
    Question,
    TextContent,
    ToolCall,
    ToolCallInFlightError,
    ToolCallInterruptedError,
    ToolResultMessage,
    TransactionConflictError,
    UserMessage,
    open_checkpointer,
)

PAY = "pay"
"""Changes the world, and nobody can ask whether it did."""
EMAIL = "email"
"""Changes the world, and has a way to find out."""
LOOK_UP = "look_up"
"""May be run again."""
TRANSFER = "transfer"
"""As `pay`, but recorded step by step, in the transaction that appends its result."""

SURFACED = 3
"""The exit code of an agent that needs a person: a call was interrupted."""
COST = 0.25


@dataclass(frozen=True)
class Call:
    """A turn of the agent: the tool that its model asks for."""

    tool: str
    id: str
    args: dict[str, Any]

    @property
    def effect(self) -> str:
        """The line that the tool leaves behind."""
        return f"{self.tool} {json.dumps(self.args, sort_keys=True)}"

    @property
    def result(self) -> str:
        return f"done: {self.effect}"


@dataclass(frozen=True)
class Job:
    """What a worker is to do."""

    url: str
    thread_id: str
    owner: str
    effects: str
    """The file that side effects are appended to."""
    calls: list[Call] = field(default_factory=list)
    ttl: float = 30.0
    run_id: str | None = None
    """The run to lease, if any. Whoever wants it waits until it is free."""
    only_hold: bool = False
    """Write through the lease until it is lost, instead of working on calls."""
    wait_at: str = ""
    """Having said this line, do nothing more."""
    seed: int = 0

    def say(self, line: str) -> None:
        os.write(1, f"{line}\n".encode())
        if line == self.wait_at:
            threading.Event().wait()


# ---- the agent -------------------------------------------------------------------------------------------------


def text(words: str) -> list[TextContent | ImageContent]:
    return [TextContent(text=words)]


def asking(call: Call) -> AssistantMessage:
    """The turn in which the model wants the tool."""
    return AssistantMessage(content=[ToolCall(id=call.id, name=call.tool, arguments=call.args)], stop_reason="tool_use")


def answering(call: Call) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call.id, tool_name=call.tool, content=text(call.result))


def transcript(calls: list[Call]) -> list[Any]:
    """What a conversation with these calls says when it is over."""
    asked_and_answered = [message for call in calls for message in (asking(call), answering(call))]
    return [UserMessage(content=text("Go")), *asked_and_answered]


class Agent:
    """Goes on from wherever the thread stands: it remembers nothing that is not in the database."""

    def __init__(self, cp: Any, job: Job) -> None:
        self._cp = cp
        self._job = job

    async def run(self) -> None:
        thread_id = self._job.thread_id
        # First a write: it waits for a commit that a killed worker has sent and the server is still busy with. What is
        # read after it is all that will ever come from that worker.
        await self._cp.save_extra(thread_id, {"worker": self._job.owner})
        self._known = len((await self._cp.load(thread_id)).messages)
        latest = await self._cp.checkpoints.latest(thread_id, messages=False)
        self._turns = latest.state["turns"] if latest else 0
        self._budget = latest.budget_spent_usd if latest else 0
        said = transcript(self._job.calls)
        await self._append_at(0, said[0])
        for turn, call in enumerate(self._job.calls[self._turns :], self._turns + 1):
            await self._append_at(2 * turn - 1, said[2 * turn - 1])
            self._job.say(f"asked {call.id}")
            try:
                await self._call(call, 2 * turn)
            except ToolCallInterruptedError:
                self._job.say(f"interrupted {call.id}")
                sys.exit(SURFACED)
            self._job.say(f"answered {call.id}")
            await self._checkpoint(turn)
            self._job.say(f"turn {turn}")

    async def _append_at(self, place: int, message: Any) -> None:
        """Say it, unless it has been said."""
        if self._known <= place:
            await self._cp.append(self._job.thread_id, [message])
            self._known += 1

    async def _checkpoint(self, turn: int) -> None:
        self._budget += COST
        plan = [call.id for call in self._job.calls[turn:]]
        await self._cp.checkpoints.save(
            self._job.thread_id, plan=plan, budget_spent_usd=self._budget, state={"turns": turn}
        )

    async def _call(self, call: Call, place: int) -> None:
        for attempt in count():
            try:
                if call.tool == TRANSFER:
                    await self._step_by_step(call, place)
                else:
                    await self._append_result(call, place, await self._once(call))
                return
            except ToolCallInFlightError:
                # Its owner is alive, or has died and the call will expire: only the database can tell.
                if attempt == 0:
                    self._job.say(f"in flight {call.id}")
                await asyncio.sleep(0.02)

    async def _append_result(self, call: Call, place: int, result: str) -> None:
        assert result == call.result
        self._job.say(f"returned {call.id}")
        await self._append_at(place, answering(call))

    async def _once(self, call: Call) -> Any:
        def verify(entry: LedgerEntry) -> Completed | Failed:
            self._job.say(f"verified {entry.call_id}")
            return outcome_of(call, self._job.effects)

        def happen(**args: Any) -> str:
            return self._happen(call)

        async def happen_on_the_loop(**args: Any) -> str:
            return self._happen(call)

        return await self._cp.ledger.once(
            self._job.thread_id,
            call.id,
            call.tool,
            call.args,
            happen_on_the_loop if call.tool == LOOK_UP else happen,
            verify=verify if call.tool == EMAIL else None,
            replay_safe=call.tool == LOOK_UP,
            ttl=self._job.ttl,
        )

    async def _step_by_step(self, call: Call, place: int) -> None:
        ledger, thread_id = self._cp.ledger, self._job.thread_id
        issued = await ledger.issue(thread_id, call.id, call.tool, call.args, ttl=self._job.ttl)
        match issued.entry.state:
            case CallState.COMPLETED:
                await self._append_result(call, place, issued.entry.result)
                return
            case CallState.UNKNOWN:
                raise ToolCallInterruptedError(thread_id, call.id)
        if not issued.execute:
            raise ToolCallInFlightError(thread_id, call.id)
        result = await asyncio.to_thread(self._happen, call)
        while True:
            try:
                async with self._cp.transaction() as tx:
                    await tx.append(thread_id, [answering(call)])
                    await tx.ledger.complete(thread_id, call.id, result)
                break
            except TransactionConflictError:
                continue  # as its documentation says: run all of it again
        self._known += 1

    def _happen(self, call: Call) -> str:
        """The tool itself."""
        self._job.say(f"running {call.id}")
        time.sleep(0.002)  # the way to a service and back takes its time, too, and it may be killed on it
        append_line(self._job.effects, call.effect)
        time.sleep(0.002)
        self._job.say(f"happened {call.id}")
        return call.result


def outcome_of(call: Call, effects: str) -> Completed | Failed:
    """What somebody finds out who looks at the world."""
    return Completed(call.result) if call.effect in lines_of(effects) else Failed("it did not happen")


# ---- writing through a lease -----------------------------------------------------------------------------------


async def append(lease: Any, job: Job, number: int) -> None:
    await lease.append(job.thread_id, [UserMessage(content=text(f"{job.owner} {number}"))])


async def append_in_a_transaction(lease: Any, job: Job, number: int) -> None:
    async with lease.transaction() as tx:
        await append(tx, job, number)
        await save_extra(tx, job, number)


async def save_extra(lease: Any, job: Job, number: int) -> None:
    await lease.save_extra(job.thread_id, {"writer": job.owner, "number": number})


async def save_checkpoint(lease: Any, job: Job, number: int) -> None:
    await lease.checkpoints.save(job.thread_id, state={"writer": job.owner, "number": number})


async def ask_a_person(lease: Any, job: Job, number: int) -> None:
    payload = AskRequest(questions=[Question(key="q", prompt=f"{job.owner} {number}")])
    request = HitlRequest(question_id=f"{number}", thread_id=job.thread_id, payload=payload, created_at=0)
    await lease.save_pending_request(job.thread_id, request)


async def call_a_tool(lease: Any, job: Job, number: int) -> None:
    call = Call(PAY, f"{job.owner} {number}", {"writer": job.owner, "number": number})
    await lease.ledger.once(job.thread_id, call.id, call.tool, call.args, lambda **_: call.result)


async def complete_the_run(lease: Any, job: Job, number: int) -> None:
    await lease.mark_run_complete(job.thread_id, job.run_id)


Write = Callable[[Any, Job, int], Coroutine[Any, Any, None]]
WRITES: list[Write] = [append, append_in_a_transaction, save_extra, save_checkpoint, ask_a_person, call_a_tool]


async def write_until_lost(lease: Any, job: Job) -> None:
    """Every kind of write in turn, until one is refused; then every kind once more, and none may get through."""
    thinking = Random(job.seed)  # noqa: S311 - nothing secret
    numbers = count(1)
    try:
        for number in numbers:
            try:
                await WRITES[number % len(WRITES)](lease, job, number)
            except CheckpointerLockTimeoutError:
                continue  # others may be slow; it has written nothing
            job.say(f"wrote {number}")
            await asyncio.sleep(thinking.uniform(0, 0.02))  # so that it is also stopped outside of transactions
    except LeaseLostError:
        job.say("lost")
    for write in (*WRITES, complete_the_run):
        try:
            await write(lease, job, next(numbers))
            job.say(f"not refused: {write.__name__}")
        except LeaseLostError:
            job.say(f"refused: {write.__name__}")


# ---- a worker's life -------------------------------------------------------------------------------------------


async def leased_when_free(cp: Any, stack: AsyncExitStack, job: Job) -> Any:
    """The lease, exclusive, as soon as it can be had."""
    while True:
        try:
            return await stack.enter_async_context(
                cp.runs.lease(job.thread_id, job.run_id, ttl=job.ttl, exclusive=True)
            )
        except LeaseHeldError:
            await asyncio.sleep(0.02)


async def work(job: Job) -> None:
    async with AsyncExitStack() as stack:
        cp = await stack.enter_async_context(open_checkpointer(job.url, owner=job.owner))
        if job.run_id is not None:
            cp = await leased_when_free(cp, stack, job)
            job.say(f"leased {cp.token}")
        await (write_until_lost(cp, job) if job.only_hold else Agent(cp, job).run())


def encoded(job: Job) -> str:
    return json.dumps(asdict(job))


def decoded(line: str) -> Job:
    fields = json.loads(line)
    return Job(**fields | {"calls": [Call(**call) for call in fields["calls"]]})


def main() -> None:
    for driver in ("postgresql+asyncpg", "mysql+asyncmy"):
        create_async_engine(f"{driver}:///")  # so that the drivers are there, too
    child = 0
    for line in sys.stdin:
        if child:
            os.waitpid(child, 0)
        child = os.fork()
        if child == 0:
            job = decoded(line)
            job.say(f"started {os.getpid()}")
            asyncio.run(work(job))
            sys.exit()
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(1, f"ended {code}\n".encode())


if __name__ == "__main__":
    main()
