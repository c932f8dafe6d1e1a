"""The ledger: a tool call is recorded before it is executed, and executed once."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from threadkeep.errors import (
    CheckpointerError,
    InvalidIdError,
    ToolCallInFlightError,
    ToolCallInterruptedError,
    ToolCallMismatchError,
    ToolCallNotFoundError,
    ToolCallSettledError,
    UnstorableValueError,
)
from threadkeep.records import Completed, Failed
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import BAD_IDS, same

ARGS = {"to": "ada", "amount": 5}


class Tool:
    """A tool that counts how often it was run."""

    def __init__(self, result: Any = "done", error: Exception | None = None) -> None:
        self.runs: list[dict[str, Any]] = []
        self._result = result
        self._error = error

    def __call__(self, **args: Any) -> Any:
        self.runs.append(args)
        if self._error is not None:
            raise self._error
        return self._result


async def interrupted_call(cp: Any, call_id: str = "call", args: Any = None, **options: Any) -> None:
    """A call whose worker was stopped in the middle: nobody knows its outcome."""
    began = asyncio.Event()

    async def never_ends(**_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(cp.ledger.once("thread", call_id, "pay", args or ARGS, never_ends, **options))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class LedgerContract:
    """issue, complete, fail, once, resolve, and looking."""

    pytestmark = pytest.mark.asyncio

    # ---- step by step ---------------------------------------------------------------------------------------

    async def test_an_issued_call_is_in_flight(self, checkpointer: Any) -> None:
        issued = await checkpointer.ledger.issue("thread", "call", "pay", ARGS, run_id="run")
        assert issued.execute
        entry = issued.entry
        assert (entry.thread_id, entry.call_id, entry.tool_name, entry.args) == ("thread", "call", "pay", ARGS)
        assert (entry.run_id, entry.state, entry.attempt) == ("run", "in_flight", 1)
        assert (entry.result, entry.error, entry.ended_at) == (None, None, None)
        assert await checkpointer.ledger.get("thread", "call") == entry
        assert list(await checkpointer.ledger.interrupted("thread")) == [entry]

    async def test_issuing_makes_the_thread(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", {})
        assert await checkpointer.load("thread") is not None

    async def test_a_completed_call_keeps_its_result(self, checkpointer: Any) -> None:
        result = {"paid": [1, 1.0, True, None, 2**70, "\0 🙂"]}
        key = (await checkpointer.ledger.issue("thread", "call", "pay", ARGS)).entry.idempotency_key
        entry = await checkpointer.ledger.complete("thread", "call", result)
        assert entry.state == "completed"
        assert same(entry.result, result)
        assert entry.ended_at >= entry.issued_at
        assert same((await checkpointer.ledger.find_completed("thread", key)).result, result)
        assert list(await checkpointer.ledger.interrupted("thread")) == []

    async def test_the_first_result_stands(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        await checkpointer.ledger.complete("thread", "call", 1)
        assert (await checkpointer.ledger.complete("thread", "call", 2)).result == 1
        with pytest.raises(ToolCallSettledError):
            await checkpointer.ledger.fail("thread", "call", "too late")
        assert (await checkpointer.ledger.get("thread", "call")).state == "completed"

    async def test_a_failed_call_may_be_issued_again(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        failed = await checkpointer.ledger.fail("thread", "call", "no money")
        assert (failed.state, failed.error) == ("failed", "no money")
        again = await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        assert again.execute
        assert (again.entry.state, again.entry.attempt, again.entry.error) == ("in_flight", 2, None)
        await checkpointer.ledger.complete("thread", "call", "paid")
        other = await checkpointer.ledger.issue("thread", "other call", "pay", ARGS)
        assert (other.execute, other.entry.call_id, other.entry.result) == (False, "call", "paid")

    async def test_one_key_is_executed_once(self, checkpointer: Any) -> None:
        first = await checkpointer.ledger.issue("thread", "first", "pay", ARGS)
        second = await checkpointer.ledger.issue("thread", "second", "pay", dict(reversed(ARGS.items())))
        assert (first.execute, second.execute) == (True, False)
        assert (second.entry.call_id, second.entry.state) == ("first", "in_flight")
        await checkpointer.ledger.complete("thread", "first", "paid")
        third = await checkpointer.ledger.issue("thread", "third", "pay", ARGS)
        assert (third.execute, third.entry.result) == (False, "paid")
        assert [entry.call_id for entry in await checkpointer.ledger.list("thread")] == ["first"]

    async def test_of_many_at_once_one_executes(self, checkpointer: Any) -> None:
        issued = await asyncio.gather(
            *(checkpointer.ledger.issue("thread", f"call {number}", "pay", ARGS) for number in range(8))
        )
        assert [one.execute for one in issued].count(True) == 1

    @pytest.mark.parametrize(
        "args", [{"to": "ada", "amount": 5.0}, {"to": "ada", "amount": True}, {"to": "Ada", "amount": 5}, {}]
    )
    async def test_other_arguments_are_another_call(self, checkpointer: Any, args: dict[str, Any]) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        assert (await checkpointer.ledger.issue("thread", "other", "pay", args)).execute
        with pytest.raises(ToolCallMismatchError):
            await checkpointer.ledger.issue("thread", "call", "pay", args)

    async def test_another_tool_is_another_call(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        assert (await checkpointer.ledger.issue("thread", "other", "refund", ARGS)).execute

    async def test_another_thread_has_keys_of_its_own(self, checkpointer: Any) -> None:
        for thread_id in ("left", "right"):
            issued = await checkpointer.ledger.issue(thread_id, "call", "pay", ARGS, idempotency_key="vendor")
            assert issued.execute
        await checkpointer.ledger.complete("left", "call", "left")
        assert await checkpointer.ledger.find_completed("right", "vendor") is None
        assert (await checkpointer.ledger.find_completed(None, "vendor")).thread_id == "left"

    async def test_a_hosts_own_key_decides(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS, idempotency_key="vendor")
        same_key = await checkpointer.ledger.issue("thread", "other", "pay", {}, idempotency_key="vendor")
        assert not same_key.execute
        assert (await checkpointer.ledger.issue("thread", "third", "pay", ARGS, idempotency_key="Vendor")).execute

    async def test_a_call_that_nobody_issued_cannot_be_settled(self, checkpointer: Any) -> None:
        await checkpointer.save_extra("thread", {})
        for thread_id in ("thread", "nobody"):
            with pytest.raises(ToolCallNotFoundError):
                await checkpointer.ledger.complete(thread_id, "call", None)
            with pytest.raises(ToolCallNotFoundError):
                await checkpointer.ledger.resolve(thread_id, "call", Failed())
        assert await checkpointer.load("nobody") is None
        assert await checkpointer.ledger.get("nobody", "call") is None
        assert await checkpointer.ledger.find_completed("thread", "key") is None

    async def test_a_call_in_flight_is_renewed(self, checkpointer: Any) -> None:
        entry = (await checkpointer.ledger.issue("thread", "call", "pay", ARGS, ttl=0.3)).entry
        renewed = entry
        while renewed.expires_at == entry.expires_at:
            await asyncio.sleep(0.02)
            renewed = await checkpointer.ledger.get("thread", "call")
        assert renewed.expires_at > entry.expires_at

    async def test_an_attempt_that_ends_late_does_not_end_the_next_one(self, checkpointer: Any) -> None:
        ledger = checkpointer.ledger
        began, may_end = asyncio.Event(), asyncio.Event()

        async def refused(**_: Any) -> None:
            began.set()
            await may_end.wait()
            raise ConnectionError("refused")

        first = asyncio.create_task(ledger.once("thread", "call", "pay", ARGS, refused, ttl=0.3))
        await began.wait()
        time.sleep(0.4)  # noqa: ASYNC251 - the whole loop stands still, heartbeats and all, and the call expires
        await ledger.resolve("thread", "call", Failed("the bank knows nothing"))
        second = (await ledger.issue("thread", "call", "pay", ARGS, ttl=6)).entry
        assert second.attempt == 2
        may_end.set()
        with pytest.raises(ConnectionError):
            await first
        renewed = second
        while renewed.expires_at == second.expires_at:
            assert renewed.state == "in_flight"
            await asyncio.sleep(0.02)
            renewed = await ledger.get("thread", "call")
        assert (await ledger.complete("thread", "call", "paid")).result == "paid"

    async def test_bad_input_is_refused(self, checkpointer: Any) -> None:
        for bad in BAD_IDS:
            with pytest.raises(InvalidIdError):
                await checkpointer.ledger.issue("thread", bad, "pay", {})
            with pytest.raises(InvalidIdError):
                await checkpointer.ledger.find_completed(None, bad)
            for thread_id, call_id in ((bad, "call"), ("thread", bad)):
                with pytest.raises(InvalidIdError):
                    await checkpointer.ledger.complete(thread_id, call_id, "a receipt")
                with pytest.raises(InvalidIdError):
                    await checkpointer.ledger.fail(thread_id, call_id, "no money")
        with pytest.raises(UnstorableValueError, match="args"):
            await checkpointer.ledger.issue("thread", "call", "pay", {"when": (1, 2)})
        with pytest.raises(ValueError, match="ttl"):
            await checkpointer.ledger.issue("thread", "call", "pay", {}, ttl=0)
        with pytest.raises(TypeError, match="Completed"):
            await checkpointer.ledger.resolve("thread", "call", "completed")
        assert await checkpointer.load("thread") is None

    # ---- once -----------------------------------------------------------------------------------------------

    async def test_once_runs_a_tool_once(self, checkpointer: Any) -> None:
        tool = Tool({"receipt": 7})
        for call_id in ("call", "call", "asked again"):
            result = await checkpointer.ledger.once("thread", call_id, "pay", ARGS, tool)
            assert result == {"receipt": 7}
        assert tool.runs == [ARGS]

    async def test_once_takes_coroutine_functions(self, checkpointer: Any) -> None:
        async def pay(to: str, amount: int) -> str:
            await asyncio.sleep(0)
            return f"{to} got {amount}"

        assert await checkpointer.ledger.once("thread", "call", "pay", ARGS, pay) == "ada got 5"

    async def test_a_tool_that_raises_may_be_tried_again(self, checkpointer: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            await checkpointer.ledger.once("thread", "call", "pay", ARGS, Tool(error=ZeroDivisionError("no")))
        entry = await checkpointer.ledger.get("thread", "call")
        assert (entry.state, entry.error) == ("failed", "ZeroDivisionError: no")
        assert await checkpointer.ledger.once("thread", "call", "pay", ARGS, Tool("paid")) == "paid"

    @pytest.mark.parametrize("words", ["\ud800", "\0", "x" * 8 * 1024 * 1024], ids=["surrogate", "NUL", "long"])
    async def test_whatever_a_tool_raises_it_may_be_tried_again(self, checkpointer: Any, words: str) -> None:
        with pytest.raises(LookupError):
            await checkpointer.ledger.once("thread", "call", "pay", ARGS, Tool(error=LookupError(words)))
        assert (await checkpointer.ledger.get("thread", "call")).state == "failed"

    async def test_a_tool_that_does_not_take_these_arguments_has_failed(self, checkpointer: Any) -> None:
        async def pay() -> None:
            """Takes none."""

        for call_id, tool in (("async", pay), ("sync", lambda: None)):
            with pytest.raises(TypeError):
                await checkpointer.ledger.once("thread", call_id, call_id, ARGS, tool)
            assert (await checkpointer.ledger.get("thread", call_id)).state == "failed"

    async def test_a_tool_that_raises_stop_iteration_has_failed(self, checkpointer: Any) -> None:
        with pytest.raises(RuntimeError):
            await checkpointer.ledger.once("thread", "call", "next", {}, lambda: next(iter([])))
        assert (await checkpointer.ledger.get("thread", "call")).state == "failed"

    async def test_a_thread_that_cannot_be_stopped_is_in_flight_until_it_ends(self, checkpointer: Any) -> None:
        """Whoever waited for it is gone. What came of it is recorded all the same."""
        began, end = threading.Event(), threading.Event()

        def pay(**_: Any) -> str:
            began.set()
            end.wait()
            return "paid"

        task = asyncio.create_task(checkpointer.ledger.once("thread", "call", "pay", ARGS, pay))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await checkpointer.ledger.get("thread", "call")).state == "in_flight"
        tool = Tool()
        with pytest.raises(ToolCallInFlightError):
            await checkpointer.ledger.once("thread", "call", "pay", ARGS, tool, verify=lambda _: Failed())
        end.set()
        entry = None
        while entry is None or entry.state == "in_flight":
            await asyncio.sleep(0.01)  # a backend may answer without ever letting others run
            entry = await checkpointer.ledger.get("thread", "call")
        assert (entry.state, entry.result, tool.runs) == ("completed", "paid", [])

    async def test_one_that_is_in_flight_is_not_run_beside(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        tool = Tool()
        with pytest.raises(ToolCallInFlightError) as caught:
            await checkpointer.ledger.once("thread", "other", "pay", ARGS, tool, replay_safe=True, verify=tool)
        assert caught.value.call_id == "call"
        assert tool.runs == []

    async def test_an_interrupted_call_is_never_run_again_by_itself(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer)
        (entry,) = await checkpointer.ledger.interrupted("thread")
        assert (entry.call_id, entry.state) == ("call", "unknown")
        tool = Tool()
        for call_id in ("call", "asked again"):
            with pytest.raises(ToolCallInterruptedError) as caught:
                await checkpointer.ledger.once("thread", call_id, "pay", ARGS, tool)
            assert caught.value.call_id == "call"
            assert not (await checkpointer.ledger.issue("thread", call_id, "pay", ARGS)).execute
        assert tool.runs == []

    async def test_verify_says_that_it_happened(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer)
        seen: list[Any] = []

        async def verify(entry: Any) -> Completed:
            seen.append((entry.call_id, entry.args, entry.state))
            return Completed("found it")

        tool = Tool()
        assert await checkpointer.ledger.once("thread", "call", "pay", ARGS, tool, verify=verify) == "found it"
        assert seen == [("call", ARGS, "unknown")]
        assert await checkpointer.ledger.once("thread", "call", "pay", ARGS, tool, verify=verify) == "found it"
        assert (tool.runs, len(seen)) == ([], 1)

    async def test_verify_says_that_it_did_not_happen(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer)
        tool = Tool("paid")
        result = await checkpointer.ledger.once(
            "thread", "call", "pay", ARGS, tool, verify=lambda _: Failed("not there")
        )
        assert (result, tool.runs) == ("paid", [ARGS])
        assert (await checkpointer.ledger.get("thread", "call")).attempt == 2

    async def test_verify_cannot_tell(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer)
        tool = Tool()
        with pytest.raises(ToolCallInterruptedError):
            await checkpointer.ledger.once("thread", "call", "pay", ARGS, tool, verify=lambda _: None)
        assert tool.runs == []

    async def test_what_only_reads_is_run_again(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer)
        tool = Tool("read")
        assert await checkpointer.ledger.once("thread", "new id", "pay", ARGS, tool, replay_safe=True) == "read"
        assert tool.runs == [ARGS]
        states = {entry.call_id: entry.state for entry in await checkpointer.ledger.list("thread")}
        assert states == {"call": "failed", "new id": "completed"}

    async def test_a_result_that_cannot_be_stored_leaves_the_outcome_unknown(self, checkpointer: Any) -> None:
        """It has happened: to call it failed would make it happen again."""
        with pytest.raises(UnstorableValueError, match="result"):
            await checkpointer.ledger.once("thread", "call", "pay", ARGS, Tool({1, 2}))
        assert (await checkpointer.ledger.get("thread", "call")).state == "unknown"

    # ---- by hand --------------------------------------------------------------------------------------------

    async def test_an_unknown_call_is_settled_by_hand(self, checkpointer: Any) -> None:
        await interrupted_call(checkpointer, "happened", {"a": 1})
        await interrupted_call(checkpointer, "did not", {"a": 2})
        await checkpointer.ledger.resolve("thread", "happened", Completed("paid"))
        await checkpointer.ledger.resolve("thread", "did not", Failed("not there"))
        assert list(await checkpointer.ledger.interrupted("thread")) == []
        assert await checkpointer.ledger.once("thread", "happened", "pay", {"a": 1}, Tool()) == "paid"
        assert await checkpointer.ledger.once("thread", "did not", "pay", {"a": 2}, Tool("now")) == "now"

    async def test_a_call_in_flight_is_not_settled_by_hand(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        with pytest.raises(ToolCallInFlightError):
            await checkpointer.ledger.resolve("thread", "call", Failed())
        await checkpointer.ledger.complete("thread", "call", None)
        with pytest.raises(ToolCallSettledError):
            await checkpointer.ledger.resolve("thread", "call", Failed())

    # ---- with the rest --------------------------------------------------------------------------------------

    async def test_a_call_is_completed_together_with_its_message(self, checkpointer: Any) -> None:
        await checkpointer.ledger.issue("thread", "call", "pay", ARGS)
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.ledger.complete("thread", "call", "paid")
                raise ZeroDivisionError
        assert (await checkpointer.ledger.get("thread", "call")).state == "in_flight"
        async with checkpointer.transaction() as tx:
            await tx.save_extra("thread", {"paid": True})
            await tx.ledger.complete("thread", "call", "paid")
        assert (await checkpointer.ledger.get("thread", "call")).result == "paid"

    async def test_a_transaction_knows_whose_calls_are_dead(self, checkpointer: Any) -> None:
        entry = (await checkpointer.ledger.issue("thread", "call", "pay", ARGS)).entry
        async with checkpointer.transaction() as tx:
            assert [one.state for one in await tx.ledger.interrupted("thread")] == ["in_flight"]
            assert [one.state for one in await tx.ledger.interrupted("thread", owner=entry.owner)] == ["in_flight"]
            with pytest.raises(ToolCallInFlightError):
                await tx.ledger.resolve("thread", "call", Failed(), owner=entry.owner)
            await tx.ledger.complete("thread", "call", None)

    async def test_a_call_is_not_issued_within_a_transaction(self, checkpointer: Any) -> None:
        """It would be executed before it is recorded."""
        with pytest.raises(CheckpointerError, match="transaction"):
            async with checkpointer.transaction() as tx:
                await tx.ledger.issue("thread", "call", "pay", ARGS)
        assert await checkpointer.load("thread") is None

    async def test_a_fork_has_no_calls_and_a_deleted_thread_has_none(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.ledger.once("thread", "call", "pay", ARGS, Tool())
        await checkpointer.fork("thread", "fork", after_run_id="run")
        assert await checkpointer.ledger.list("fork") == []
        await checkpointer.threads.delete("thread")
        assert await checkpointer.ledger.list("thread") == []
        assert (await checkpointer.ledger.issue("thread", "call", "pay", ARGS)).execute
