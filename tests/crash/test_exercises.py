"""The exercises that a chapter on resumability sets its readers, each with real processes."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

import threadkeep
from crash.processes import Worker
from crash.side_effects import lines_of
from crash.worker import (
    COST,
    EMAIL,
    LOOK_UP,
    PAY,
    SURFACED,
    TRANSFER,
    Call,
    Job,
    asking,
    outcome_of,
    transcript,
)
from threadkeep import CallState, ToolCallInterruptedError


def open_checkpointer(url: str, **options: Any) -> Any:
    """Untyped: here a missing thread is a failure, not a case."""
    return threadkeep.open_checkpointer(url, **options)


def six_turns(fifth: str) -> list[Call]:
    tools = (PAY, EMAIL, LOOK_UP, TRANSFER, fifth, PAY)
    return [Call(tool, f"call {turn}", {"turn": turn}) for turn, tool in enumerate(tools, 1)]


def killed_at(worker: Worker, job: Job) -> None:
    worker.start(job)
    assert worker.wait_for(job.wait_at)
    worker.kill()
    assert worker.end() == -signal.SIGKILL


def resumed(worker: Worker, job: Job) -> tuple[int, list[str]]:
    """How it ended, and what it said."""
    worker.start(job)
    return worker.end(), worker.lines


# ---- kill -9 after turn 4, and resume --------------------------------------------------------------------------


async def test_transcript_plan_and_budget_are_back_after_kill_9(url: str, worker: Worker, effects: str) -> None:
    calls = six_turns(fifth=PAY)
    killed_at(worker, Job(url, "t", "host", effects, calls, wait_at="turn 4"))

    async with open_checkpointer(url, owner="host") as cp:
        report = await cp.resume("t")
        assert report.is_clean
        assert (report.status, report.checkpoint.version) == ("active", 4)
        assert report.checkpoint.plan == ["call 5", "call 6"]
        assert report.checkpoint.budget_spent_usd == 4 * COST
        assert (await cp.checkpoints.latest("t")).messages == transcript(calls[:4])
        assert (await cp.load("t")).messages == transcript(calls[:4])

        assert resumed(worker, Job(url, "t", "host", effects, calls))[0] == 0
        assert lines_of(effects) == [call.effect for call in calls]
        assert (await cp.load("t")).messages == transcript(calls)
        latest = await cp.checkpoints.latest("t")
        assert (latest.version, latest.plan, latest.budget_spent_usd) == (6, [], 6 * COST)


@pytest.mark.parametrize("line", ["running call 5", "happened call 5"])
@pytest.mark.parametrize("tool", [PAY, EMAIL, LOOK_UP, TRANSFER])
async def test_a_pending_call_is_verified_or_run_again_safely_or_surfaced(
    url: str, worker: Worker, effects: str, tool: str, line: str
) -> None:
    calls = six_turns(fifth=tool)
    pending = calls[4]
    happened = line.startswith("happened")
    killed_at(worker, Job(url, "t", "host", effects, calls, wait_at=line))
    assert lines_of(effects).count(pending.effect) == happened
    job = Job(url, "t", "host", effects, calls)

    async with open_checkpointer(url, owner="host") as cp:
        report = await cp.resume("t")
        (in_doubt,) = report.calls_in_doubt
        assert (in_doubt.call_id, in_doubt.args, in_doubt.state) == (pending.id, pending.args, CallState.UNKNOWN)
        assert [call.call_id for call in report.unanswered_calls] == [pending.id]
        assert (await cp.load("t")).messages == [*transcript(calls[:4]), asking(pending)]

        code, lines = resumed(worker, job)
        # The same host is back: it knows at once that nobody else executes the call.
        assert f"in flight {pending.id}" not in lines
        # Only a tool that can be asked is asked.
        assert (f"verified {pending.id}" in lines) == (tool == EMAIL)
        if tool in (PAY, TRANSFER):
            # Surfaced; and as long as nobody has settled it, nothing happens.
            assert (code, lines[-1]) == (SURFACED, f"interrupted {pending.id}")
            assert resumed(worker, job)[0] == SURFACED
            assert lines_of(effects).count(pending.effect) == happened
            await cp.ledger.resolve("t", pending.id, outcome_of(pending, effects))
            code, lines = resumed(worker, job)
        assert code == 0
        # It ran again where it had not happened, and where that does no harm.
        ran_again = not happened or tool == LOOK_UP
        assert (f"running {pending.id}" in lines) == ran_again
        assert lines_of(effects).count(pending.effect) == happened + ran_again

        assert [lines_of(effects).count(call.effect) for call in calls if call != pending] == [1] * 5
        assert (await cp.load("t")).messages == transcript(calls)
        assert (await cp.resume("t")).is_clean


async def test_a_transcript_with_an_interrupted_call_can_be_repaired(url: str, worker: Worker, effects: str) -> None:
    calls = six_turns(fifth=PAY)
    killed_at(worker, Job(url, "t", "host", effects, calls, wait_at="happened call 5"))
    async with open_checkpointer(url, owner="host") as cp:
        (appended,) = await cp.repair("t")
        assert (appended.tool_call_id, appended.is_error) == ("call 5", True)
        report = await cp.resume("t")
        assert report.unanswered_calls == []
        # The transcript can go to a model again. Whether the payment was made is still to be found out.
        with pytest.raises(ToolCallInterruptedError):
            await cp.ledger.once("t", "call 5", PAY, calls[4].args, lambda **_: None)


# ---- the email that must be sent once --------------------------------------------------------------------------


async def test_an_email_is_sent_once_when_the_agent_is_run_twice(url: str, worker: Worker, effects: str) -> None:
    words = {"to": "ann@example.org", "subject": "Hello"}
    first = Call(EMAIL, "call of the first run", words)
    # The model asks again, under an id of its own, and puts the arguments in another order.
    second = Call(EMAIL, "call of the second run", dict(reversed(words.items())))

    assert resumed(worker, Job(url, "t", "first", effects, [first]))[0] == 0
    code, lines = resumed(worker, Job(url, "t", "second", effects, [first, second]))
    assert code == 0
    assert not any(line.startswith(("running", "verified")) for line in lines)
    assert lines_of(effects) == [first.effect]
    async with open_checkpointer(url) as cp:
        # The second call has the first one's result, and the ledger knows of one email.
        assert (await cp.load("t")).messages == transcript([first, second])
        assert [entry.call_id for entry in await cp.ledger.list("t")] == [first.id]

    # Another thread may send the same email.
    assert resumed(worker, Job(url, "u", "first", effects, [first]))[0] == 0
    assert lines_of(effects) == [first.effect] * 2


# ---- delete a middle version, and resume -----------------------------------------------------------------------


async def test_a_thread_resumes_without_a_middle_version(url: str, worker: Worker, effects: str) -> None:
    calls = six_turns(fifth=PAY)
    assert resumed(worker, Job(url, "t", "host", effects, calls[:5]))[0] == 0

    async with open_checkpointer(url) as cp:
        assert await cp.checkpoints.delete("t", 3)
        assert not await cp.checkpoints.delete("t", 3)
        assert [checkpoint.version for checkpoint in await cp.checkpoints.list("t")] == [1, 2, 4, 5]
        # Every other moment of the conversation can still be read back, messages included.
        for turn in (1, 2, 4, 5):
            checkpoint = await cp.checkpoints.get("t", turn)
            assert (checkpoint.messages, checkpoint.state) == (transcript(calls[:turn]), {"turns": turn})
            assert checkpoint.budget_spent_usd == turn * COST
        assert (await cp.resume("t")).checkpoint.version == 5

        assert resumed(worker, Job(url, "t", "host", effects, calls))[0] == 0
        assert [checkpoint.version for checkpoint in await cp.checkpoints.list("t")] == [1, 2, 4, 5, 6]
        assert (await cp.checkpoints.latest("t")).messages == transcript(calls)
    assert lines_of(effects) == [call.effect for call in calls]


# ---- two workers on one thread ---------------------------------------------------------------------------------


def two_jobs(url: str, effects: str, calls: list[Call], ttl: float) -> tuple[Job, Job]:
    first, second = (Job(url, "t", owner, effects, calls, ttl=ttl, run_id="run") for owner in ("first", "second"))
    return first, second


async def test_of_two_workers_one_does_the_work(url: str, new_worker: Callable[[], Worker], effects: str) -> None:
    calls = six_turns(fifth=PAY)
    workers = new_worker(), new_worker()
    async with open_checkpointer(url) as cp:
        for worker, job in zip(workers, two_jobs(url, effects, calls, ttl=300), strict=True):
            worker.start(job)
        assert [worker.end() for worker in workers] == [0, 0]
        # The one that waited for the lease found everything done.
        ran = [[line for line in worker.lines if line.startswith("running")] for worker in workers]
        assert sorted(ran) == [[], [f"running {call.id}" for call in calls]]
        assert lines_of(effects) == [call.effect for call in calls]
        assert (await cp.load("t")).messages == transcript(calls)
        assert len(await cp.checkpoints.list("t")) == len(calls)


@pytest.mark.parametrize("tool", [PAY, EMAIL, LOOK_UP])
async def test_when_one_of_two_workers_is_killed_the_other_goes_on(
    url: str, new_worker: Callable[[], Worker], effects: str, tool: str
) -> None:
    calls = six_turns(fifth=tool)
    pending = calls[4]
    first, second = new_worker(), new_worker()
    one, other = two_jobs(url, effects, calls, ttl=1)
    async with open_checkpointer(url) as cp:
        killed_at(first, Job(**vars(one) | {"wait_at": "happened call 5"}))
        (run,) = (await cp.resume("t")).open_runs
        assert run.owner == "first"

        # It has another name, and so has to wait until what the first one held has expired: the lease, and the call.
        code, lines = resumed(second, other)
        if tool == PAY:
            assert (code, lines[-1]) == (SURFACED, f"interrupted {pending.id}")
            await cp.ledger.resolve("t", pending.id, outcome_of(pending, effects))
            code, lines = resumed(second, other)
        assert code == 0
        ran = [line for line in lines if line.startswith("running")]
        assert ran == (["running call 5", "running call 6"] if tool == LOOK_UP else ["running call 6"])
        assert [lines_of(effects).count(call.effect) for call in calls] == [1, 1, 1, 1, 1 + (tool == LOOK_UP), 1]
        assert (await cp.load("t")).messages == transcript(calls)
