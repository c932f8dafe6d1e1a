"""Leases: a run belongs to one worker at a time, and a worker that lost it writes nothing more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from threadkeep.errors import (
    CheckpointerError,
    LeaseHeldError,
    LeaseLostError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
)
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import asking, said, texts

LONG = 600
"""Seconds. No test waits for its end."""


class LeasesContract:
    """runs.lease."""

    pytestmark = pytest.mark.asyncio

    async def test_a_lease_claims_the_run(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as lease:
            assert (lease.thread_id, lease.run_id, lease.is_lost) == ("thread", "run", False)
            assert [run.run_id for run in await checkpointer.runs.list("thread")] == ["run"]
            with pytest.raises(RunAlreadyClaimedError):
                await checkpointer.claim_run("thread", "run")

    async def test_everything_can_be_done_through_it(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as lease:
            await lease.append("thread", [said("1", "run")])
            await lease.save_extra("thread", {"a": 1})
            await lease.save_pending_request("thread", asking("question"), run_id="run")
            await lease.save_hitl_answer("thread", "question", True, run_id="run")
            await lease.ledger.once("thread", "call", "pay", {}, lambda: "paid")
            await lease.checkpoints.save("thread")
            async with lease.transaction() as tx:
                await tx.append("thread", [said("2", "run")])
                await tx.mark_run_complete("thread", "run")
        data = await checkpointer.load("thread")
        assert (texts(data.messages), data.extra) == (["1", "2"], {"a": 1})
        assert (await checkpointer.ledger.get("thread", "call")).result == "paid"
        assert texts(await checkpointer.snapshot("thread", after_run_id="run")) == ["1", "2"]

    async def test_nobody_else_gets_it_meanwhile(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG):
            with pytest.raises(LeaseHeldError) as caught:
                async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                    pass
            assert (caught.value.thread_id, caught.value.run_id) == ("thread", "run")

    async def test_afterwards_somebody_else_goes_on(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as first:
            await first.append("thread", [said("1", "run")])
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as second:
            await second.append("thread", [said("2", "run")])
            assert second.token > first.token
            with pytest.raises(LeaseLostError) as caught:
                await first.append("thread", [said("late", "run")])
            assert (caught.value.thread_id, caught.value.run_id) == ("thread", "run")
        assert texts((await checkpointer.load("thread")).messages) == ["1", "2"]

    async def test_a_lost_lease_writes_nothing_at_all(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as lease:
            await lease.append("thread", [said("1", "run")])
        writes = [
            lease.append("thread", [said("late")]),
            lease.append("another thread", [said("late")]),
            lease.save_extra("thread", {"late": True}),
            lease.claim_run("thread", "late"),
            lease.mark_run_complete("thread", "run"),
            lease.save_pending_request("thread", asking("late")),
            lease.save_pending_request("thread", None),
            lease.save_hitl_answer("thread", "late", 1),
            lease.clear_hitl_answers("thread"),
            lease.fork("thread", "late", after_run_id="run"),
            lease.checkpoints.save("thread"),
            lease.ledger.issue("thread", "late", "pay", {}),
            lease.threads.set_status("thread", "failed"),
            lease.threads.delete("thread"),
        ]
        record = await checkpointer.threads.get("thread")
        for write in writes:
            with pytest.raises(LeaseLostError):
                await write
        with pytest.raises(LeaseLostError):
            async with lease.transaction() as tx:
                await tx.save_extra("thread", {"late": True})
        assert await checkpointer.threads.list() == [record]
        data = await checkpointer.load("thread")
        assert (texts(data.messages), data.extra) == (["1"], {})
        assert await checkpointer.ledger.list("thread") == []

    async def test_reading_needs_no_lease(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG) as lease:
            await lease.append("thread", [said("1", "run")])
        assert texts((await lease.load("thread")).messages) == ["1"]

    async def test_it_is_given_back_when_the_block_fails(self, checkpointer: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                raise ZeroDivisionError
        async with checkpointer.runs.lease("thread", "run", ttl=LONG):
            pass

    async def test_it_outlives_its_ttl(self, checkpointer: Any) -> None:
        """Heartbeats renew it. A lease that was not renewed could be taken by now."""
        async with checkpointer.runs.lease("thread", "run", ttl=1) as lease:
            waited = 0.0
            while waited < 1.5:
                await asyncio.sleep(0.1)
                waited += 0.1
                with pytest.raises(LeaseHeldError):
                    async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                        pass
            await lease.append("thread", [said("still here", "run")])

    async def test_a_completed_run_cannot_be_leased(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        with pytest.raises(RunAlreadyCompletedError):
            async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                pass

    async def test_a_plain_claim_never_expires(self, checkpointer: Any) -> None:
        await checkpointer.claim_run("thread", "run")
        with pytest.raises(RunAlreadyClaimedError) as caught:
            async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                pass
        assert type(caught.value) is RunAlreadyClaimedError

    async def test_several_runs_of_a_thread_may_be_leased(self, checkpointer: Any) -> None:
        async with (
            checkpointer.runs.lease("thread", "one", ttl=LONG) as one,
            checkpointer.runs.lease("thread", "two", ttl=LONG) as two,
        ):
            await one.append("thread", [said("1", "one")])
            await two.append("thread", [said("2", "two")])

    @pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
    async def test_exclusive_is_alone_in_its_thread(self, checkpointer: Any, first: bool, second: bool) -> None:
        async with checkpointer.runs.lease("thread", "one", ttl=LONG, exclusive=first):
            with pytest.raises(LeaseHeldError) as caught:
                async with checkpointer.runs.lease("thread", "two", ttl=LONG, exclusive=second):
                    pass
            assert caught.value.run_id == "one"
            async with checkpointer.runs.lease("another", "two", ttl=LONG, exclusive=second):
                pass
        async with checkpointer.runs.lease("thread", "two", ttl=LONG, exclusive=second):
            pass

    async def test_of_many_at_once_one_gets_it(self, checkpointer: Any) -> None:
        got, done = [], asyncio.Event()

        async def worker(number: int) -> None:
            try:
                async with checkpointer.runs.lease("thread", "run", ttl=LONG):
                    got.append(number)
                    await done.wait()
            except LeaseHeldError:
                lost.append(number)
                if len(lost) == 5:
                    done.set()

        lost: list[int] = []
        await asyncio.gather(*(worker(number) for number in range(6)))
        assert (len(got), len(lost)) == (1, 5)

    async def test_a_fork_inherits_no_lease_and_a_deleted_thread_has_none(self, checkpointer: Any) -> None:
        async with checkpointer.runs.lease("thread", "run", ttl=LONG, exclusive=True) as lease:
            await lease.mark_run_complete("thread", "run")
            await checkpointer.fork("thread", "fork", after_run_id="run")
            async with checkpointer.runs.lease("fork", "next", ttl=LONG, exclusive=True):
                pass
            await checkpointer.threads.delete("thread")
            with pytest.raises(LeaseLostError):
                await lease.save_extra("thread", {})
            async with checkpointer.runs.lease("thread", "run", ttl=LONG, exclusive=True):
                with pytest.raises(LeaseLostError):
                    await lease.save_extra("thread", {})

    async def test_bad_times_and_transactions_are_refused(self, checkpointer: Any) -> None:
        for ttl in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="ttl"):
                async with checkpointer.runs.lease("thread", "run", ttl=ttl):
                    pass
        with pytest.raises(CheckpointerError, match="transaction"):
            async with checkpointer.transaction() as tx, tx.runs.lease("thread", "run", ttl=LONG):
                pass
        assert await checkpointer.load("thread") is None
