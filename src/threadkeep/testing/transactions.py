"""`transaction()`: several operations that happen together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from threadkeep.errors import CheckpointerError, CheckpointerLockTimeoutError, RunAlreadyCompletedError
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import asking, said, texts


class TransactionsContract:
    """cp.transaction()."""

    pytestmark = pytest.mark.asyncio

    async def test_all_of_it_happens(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        async with checkpointer.transaction() as tx:
            await tx.append("thread", [said("last", "run")])
            await tx.save_extra("thread", {"a": 1})
            await tx.mark_run_complete("thread", "run")
            await tx.save_hitl_answer("thread", "q", 1)
            await tx.save_pending_request("other", asking(), run_id="run")
        assert texts(await checkpointer.snapshot("thread", after_run_id="run")) == ["last"]
        assert (await checkpointer.load("thread")).extra == {"a": 1}
        assert await checkpointer.load_hitl_answer("thread", "q") == 1
        assert await checkpointer.load_pending("other") == (asking(), "run")

    async def test_or_nothing_of_it(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "done", "1")
        before = await checkpointer.load("thread")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it comes out of the whole transaction
            async with checkpointer.transaction() as tx:
                await tx.append("thread", [said("2")])
                await tx.claim_run("thread", "run")
                await tx.fork("thread", "fork", after_run_id="done")
                await tx.append("new", [said("x")])
                await tx.threads.delete("thread")
                raise ZeroDivisionError
        assert await checkpointer.load("thread") == before
        assert await checkpointer.load("fork") is None
        assert await checkpointer.load("new") is None
        await checkpointer.claim_run("thread", "run")

    async def test_it_reads_its_own_writes(self, checkpointer: Any) -> None:
        async with checkpointer.transaction() as tx:
            await tx.claim_run("thread", "run")
            await tx.append("thread", [said("1", "run")])
            assert texts((await tx.load("thread")).messages) == ["1"]
            await tx.mark_run_complete("thread", "run")
            await tx.fork("thread", "fork", after_run_id="run")
            assert [record.thread_id for record in await tx.threads.list()] == ["fork", "thread"]
            assert [run.completion_seq for run in await tx.runs.list("fork")] == [1]
            assert await tx.threads.delete("thread")
            assert await tx.load("thread") is None
            assert (await tx.load("fork")).parent_thread_id is None
        assert await checkpointer.load("thread") is None
        assert texts((await checkpointer.load("fork")).messages) == ["1"]

    async def test_a_caught_failure_in_the_middle_leaves_no_trace(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "done", "run", "1")
        async with checkpointer.transaction() as tx:
            await tx.append("thread", [said("1")])
            with pytest.raises(RunAlreadyCompletedError):
                await tx.append("done", [said("late", "run")])
            with pytest.raises(CheckpointerError):
                await tx.fork("done", "thread", after_run_id="run")
            with pytest.raises(CheckpointerError):
                await tx.mark_run_complete("nobody", "run")
            await tx.append("thread", [said("2")])
            await tx.append("done", [said("after")])
        assert texts((await checkpointer.load("thread")).messages) == ["1", "2"]
        assert texts((await checkpointer.load("done")).messages) == ["1", "after"]
        assert await checkpointer.load("nobody") is None
        assert (await checkpointer.threads.get("done")).last_seq == 2

    async def test_nobody_sees_it_before_it_is_over(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("1")])
        async with checkpointer.transaction() as tx:
            # A read through the checkpointer itself would queue where a database has but one connection.
            await tx.append("thread", [said("2")])
            waiting = asyncio.create_task(checkpointer.append("thread", [said("3")]))
            await asyncio.sleep(0)
        await waiting
        assert texts((await checkpointer.load("thread")).messages) == ["1", "2", "3"]

    async def test_cancelling_it_leaves_nothing(self, checkpointer: Any) -> None:
        inside = asyncio.Event()

        async def forever() -> None:
            async with checkpointer.transaction() as tx:
                await tx.append("thread", [said("never")])
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(forever())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await checkpointer.load("thread") is None
        await checkpointer.append("thread", [said("1")])
        assert texts((await checkpointer.load("thread")).messages) == ["1"]

    async def test_tasks_may_share_a_transaction(self, checkpointer: Any) -> None:
        async with checkpointer.transaction() as tx:
            await asyncio.gather(*(tx.append("thread", [said(str(number))]) for number in range(10)))
        assert (await checkpointer.threads.get("thread")).last_seq == 10

    async def test_an_empty_transaction_does_nothing(self, checkpointer: Any) -> None:
        async with checkpointer.transaction():
            pass
        assert await checkpointer.threads.list() == []

    async def test_after_its_end_it_refuses_everything(self, checkpointer: Any) -> None:
        async with checkpointer.transaction() as tx:
            await tx.append("thread", [said("1")])
        with pytest.raises(CheckpointerError, match="over"):
            await tx.append("thread", [said("2")])
        with pytest.raises(CheckpointerError, match="over"):
            await tx.load("thread")
        assert texts((await checkpointer.load("thread")).messages) == ["1"]


class LockTimeoutContract:
    """How long a write waits for another. `make_checkpointer` must open the same data for both."""

    pytestmark = pytest.mark.asyncio

    async def test_a_write_waits_for_its_thread_and_then_gives_up(self, make_checkpointer: Any) -> None:
        async with make_checkpointer(lock_timeout=1.0) as checkpointer:
            async with checkpointer.transaction() as tx:
                await tx.append("thread", [said("1")])
                with pytest.raises(CheckpointerLockTimeoutError):
                    await checkpointer.append("thread", [said("2")])
                await tx.append("thread", [said("3")])
            await checkpointer.append("thread", [said("4")])
            assert texts((await checkpointer.load("thread")).messages) == ["1", "3", "4"]
