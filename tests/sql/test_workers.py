"""Several workers on one database: what one may say of another's calls and leases."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backends import BACKENDS, Backend
from sql.sessions import looking_at
from threadkeep import (
    AssistantMessage,
    Completed,
    Failed,
    LeaseHeldError,
    LeaseLostError,
    TextContent,
    ToolCall,
    ToolCallInFlightError,
    ToolCallSettledError,
    TransactionConflictError,
    UserMessage,
    rules,
)
from threadkeep.sql import tables

SHARED = ["sqlite", "postgresql", "mysql", "mariadb"]
"""Memory is one process's own."""


@pytest.fixture(params=SHARED)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


async def dies_with(cp: Any, *call: Any, **options: Any) -> None:
    """It issues the call and is never heard of again. Another process would have another life."""
    cp._heartbeats.worker = cp._heartbeats.worker._replace(process="that life")
    assert (await cp.ledger.issue(*call, **options)).execute
    await cp._heartbeats.close()


def asked(text: str, run_id: str) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def expired(cp: Any, call_id: str) -> None:
    while (await cp.ledger.get("thread", call_id)).state != "unknown":
        await asyncio.sleep(0.01)


async def test_a_restarted_worker_knows_its_own_calls_at_once(backend: Backend) -> None:
    async with backend.opened(owner="worker") as first:
        await dies_with(first, "thread", "call", "pay", {})
        async with backend.opened(owner="worker") as again, backend.opened() as other:
            assert [entry.state for entry in await again.ledger.interrupted("thread")] == ["unknown"]
            assert [entry.state for entry in await other.ledger.interrupted("thread")] == ["in_flight"]
            assert [entry.state for entry in await other.ledger.interrupted("thread", owner="worker")] == ["unknown"]
            async with again.transaction() as tx:
                assert [entry.state for entry in await tx.ledger.interrupted("thread")] == ["unknown"]
            (in_doubt,) = (await again.resume("thread")).calls_in_doubt
            assert (in_doubt.state, in_doubt.owner) == ("unknown", "worker")
            with pytest.raises(ToolCallInFlightError):
                await other.ledger.once("thread", "call", "pay", {}, lambda: "twice", replay_safe=True)
            with pytest.raises(ToolCallInFlightError):
                await other.ledger.resolve("thread", "call", Failed())
            result = await again.ledger.once("thread", "call", "pay", {}, lambda: "paid", verify=lambda _: Failed())
            assert result == "paid"


async def test_a_call_of_the_same_life_is_in_flight_to_all_of_it(backend: Backend) -> None:
    async with backend.opened(owner="worker") as cp, backend.opened(owner="worker") as other:
        issued = await asyncio.gather(*(one.ledger.issue("thread", "call", "pay", {}) for one in [cp, other] * 3))
        assert [one.execute for one in issued].count(True) == 1
        assert {one.entry.state for one in issued} == {"in_flight"}


async def test_a_worker_that_was_given_up_cannot_settle_what_another_executes(backend: Backend) -> None:
    async with backend.opened() as slow, backend.opened() as other:
        await dies_with(slow, "thread", "call", "pay", {}, ttl=0.05)
        await expired(other, "call")
        await other.ledger.resolve("thread", "call", Failed("not there"))
        assert (await other.ledger.issue("thread", "call", "pay", {})).entry.attempt == 2
        with pytest.raises(ToolCallSettledError, match="taken over"):
            await slow.ledger.complete("thread", "call", "late")
        with pytest.raises(ToolCallSettledError, match="taken over"):
            async with slow.transaction() as tx:
                await tx.ledger.complete("thread", "call", "late")
        assert (await other.ledger.complete("thread", "call", "paid")).result == "paid"


async def test_it_cannot_either_after_it_has_seen_that_it_failed(backend: Backend) -> None:
    async with backend.opened() as slow, backend.opened() as other:
        await slow.ledger.issue("thread", "call", "pay", {}, ttl=0.3)
        beating = [*slow._heartbeats._beating.values()]
        time.sleep(0.4)  # noqa: ASYNC251 - the process is paused for longer than its call lasts
        await other.ledger.resolve("thread", "call", Failed("not there"))
        await asyncio.gather(*beating)  # awake again, it looks
        assert (await other.ledger.issue("thread", "call", "pay", {})).execute
        with pytest.raises(ToolCallSettledError, match="taken over"):
            await slow.ledger.complete("thread", "call", "late")
        assert (await other.ledger.complete("thread", "call", "paid")).result == "paid"


async def test_only_who_executes_a_call_knows_that_it_will_not_happen(backend: Backend) -> None:
    async with backend.opened() as cp, backend.opened() as other:
        await cp.ledger.issue("thread", "call", "pay", {})
        with pytest.raises(ToolCallInFlightError):
            await other.ledger.fail("thread", "call", "as far as I know")
        assert (await other.ledger.complete("thread", "call", "told by the vendor")).state == "completed"


async def test_the_first_result_is_what_everybody_gets(backend: Backend) -> None:
    async with backend.opened() as cp, backend.opened() as other:

        async def pay() -> str:
            await other.ledger.complete("thread", "call", "told by the vendor")
            return "my own"

        assert await cp.ledger.once("thread", "call", "pay", {}, pay) == "told by the vendor"


async def test_a_worker_that_was_late_but_alone_still_says_what_came_of_it(backend: Backend) -> None:
    async with backend.opened() as cp:
        await dies_with(cp, "thread", "call", "pay", {}, ttl=0.05)
        await expired(cp, "call")
        assert (await cp.ledger.complete("thread", "call", "paid")).state == "completed"


async def test_what_was_verified_is_one_execution(backend: Backend) -> None:
    """While one looks, another has looked, executed the call anew, and died. The first must not settle that one."""
    async with backend.opened() as one, backend.opened() as two, backend.opened() as three:
        await dies_with(one, "thread", "call", "pay", {}, ttl=0.05)
        await expired(two, "call")
        paid: list[str] = []

        async def verify(_: Any) -> Failed:
            await three.ledger.resolve("thread", "call", Failed())
            await dies_with(three, "thread", "call", "pay", {}, ttl=0.05)
            await expired(two, "call")
            return Failed("not there")

        with pytest.raises(Exception, match="interrupted"):
            await two.ledger.once("thread", "call", "pay", {}, lambda: paid.append("two"), verify=verify)
        assert paid == []


async def test_what_another_has_completed_meanwhile_is_the_result(backend: Backend) -> None:
    async with backend.opened() as one, backend.opened() as two, backend.opened() as three:
        await dies_with(one, "thread", "call", "pay", {}, ttl=0.05)
        await expired(two, "call")

        async def verify(_: Any) -> Failed:
            await three.ledger.resolve("thread", "call", Completed("paid"))
            return Failed("not there")

        assert await two.ledger.once("thread", "call", "pay", {}, lambda: "twice", verify=verify) == "paid"


async def test_a_call_settled_in_a_transaction_can_be_issued_and_resolved_again(backend: Backend) -> None:
    async with backend.opened() as one, backend.opened() as two:
        await one.ledger.issue("thread", "call", "pay", {})
        async with one.transaction() as tx:
            await tx.ledger.fail("thread", "call", "no")
        await dies_with(two, "thread", "call", "pay", {}, ttl=0.05)
        await expired(one, "call")
        await one.ledger.resolve("thread", "call", Completed("paid"))
        assert (await two.ledger.get("thread", "call")).result == "paid"


@pytest.mark.parametrize("backend", SHARED[1:], indirect=True)
async def test_a_busy_thread_does_not_end_a_call_that_was_issued_through_a_lease(backend: Backend) -> None:
    """Its heartbeats take no lock of the thread. Not on SQLite, where every writer waits for the one there is."""
    async with (
        backend.opened() as worker,
        backend.opened() as other,
        worker.runs.lease("thread", "run", ttl=60) as lease,
    ):
        first = (await lease.ledger.issue("thread", "call", "pay", {}, ttl=0.6)).entry
        async with other.transaction() as tx:
            await tx.save_extra("thread", {"busy": True})
            renewed = first
            while renewed.expires_at == first.expires_at:
                await asyncio.sleep(0.02)
                renewed = await other.ledger.get("thread", "call")
        assert renewed.state == "in_flight"


@pytest.mark.parametrize("backend", SHARED[1:], indirect=True)
async def test_a_repair_does_not_end_the_call_that_it_leaves_alone(backend: Backend) -> None:
    """Nor does a look at it that settles nothing, for as long as the transaction lasts."""
    asking = AssistantMessage(content=[ToolCall(id="call", name="pay", arguments={})])
    async with backend.opened() as worker, backend.opened() as other:
        await worker.append("thread", [asking])
        first = (await worker.ledger.issue("thread", "call", "pay", {}, ttl=0.6)).entry
        async with other.transaction() as tx:
            assert await tx.repair("thread") == []
            with pytest.raises(ToolCallInFlightError):
                await tx.ledger.resolve("thread", "call", Failed())
            seen = await worker.ledger.get("thread", "call")
            renewed = seen
            while renewed.expires_at == seen.expires_at:
                assert renewed.state == "in_flight"
                await asyncio.sleep(0.02)
                renewed = await worker.ledger.get("thread", "call")
        assert renewed.expires_at > first.expires_at


@pytest.mark.parametrize("backend", SHARED[1:], indirect=True)
async def test_a_heartbeat_that_is_about_to_commit_counts(backend: Backend) -> None:
    """Who looks meanwhile sees that the call has expired, and must wait for what the heartbeat says."""
    assert backend.engine is not None
    async with backend.opened() as worker, backend.opened(lock_timeout=30) as other, looking_at(backend) as server:
        await dies_with(worker, "thread", "call", "pay", {}, ttl=0.05)
        await expired(other, "call")
        async with backend.engine.begin() as beating:
            in_an_hour = datetime.now(UTC) + timedelta(hours=1)
            await beating.execute(sa.update(tables.tool_calls).values(expires_at=in_an_hour))
            resolving = asyncio.create_task(other.ledger.resolve("thread", "call", Failed()))
            await server.until_waiting(1)
        with pytest.raises(ToolCallInFlightError):
            await resolving


async def test_what_was_settled_in_a_transaction_is_forgotten(backend: Backend) -> None:
    async with backend.opened() as cp:
        for end in ("complete", "fail"):
            await cp.ledger.issue("thread", end, "pay", {"how": end}, ttl=0.6)
            async with cp.transaction() as tx:
                await getattr(tx.ledger, end)("thread", end, "it")
        await asyncio.gather(*cp._heartbeats._beating.values())
        assert (cp._heartbeats.executing, cp._heartbeats.settled, cp._heartbeats._beating) == ({}, set(), {})


OF_HOST = ["postgresql-of-host", "mysql-of-host", "mariadb-of-host"]


@pytest.mark.parametrize("backend", OF_HOST, indirect=True)
async def test_an_old_snapshot_does_not_bring_a_lost_lease_back(backend: Backend) -> None:
    """A host's REPEATABLE READ. The lease went with its thread, or was released, after the snapshot."""
    async with backend.opened() as first, backend.opened() as second:
        async with first.runs.lease("thread", "run", ttl=60) as lease:
            with pytest.raises((LeaseLostError, TransactionConflictError)):
                async with lease.transaction() as tx:
                    assert await tx.load("thread") is not None  # the snapshot
                    await second.threads.delete("thread")
                    async with second.runs.lease("thread", "run", ttl=60) as other:
                        await other.append("thread", [asked("second", "run")])
                    await tx.append("thread", [asked("first", "run")])
        messages = (await second.load("thread")).messages
        assert [message.content[0].text for message in messages] == ["second"]


@pytest.mark.parametrize("backend", SHARED[1:], indirect=True)
async def test_a_long_transaction_does_not_end_its_own_lease(backend: Backend) -> None:
    """Not on SQLite, where heartbeats wait for the one writer there is: there it must end before the lease does."""
    async with backend.opened() as worker, worker.runs.lease("thread", "run", ttl=0.6) as lease:
        async with lease.transaction() as tx:
            await tx.save_extra("thread", {"first": 1})
            await asyncio.sleep(1)
            await tx.save_extra("thread", {"second": 2})
        await lease.save_extra("thread", {"third": 3})
        assert (await worker.load("thread")).extra == {"first": 1, "second": 2, "third": 3}


@pytest.mark.parametrize("backend", SHARED[1:], indirect=True)
async def test_tokens_grow_whatever_the_clocks_of_workers_say(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the thread was deleted in between, and its new row knows of none. On SQLite all have one clock."""
    async with backend.opened() as cp:
        monkeypatch.setattr(rules, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=1))
        async with cp.runs.lease("thread", "run", ttl=60) as ahead:
            pass
        monkeypatch.undo()
        await cp.threads.delete("thread")
        async with cp.runs.lease("thread", "run", ttl=60) as lease:
            assert lease.token > ahead.token


async def test_a_lease_that_nobody_renews_is_taken_over(backend: Backend) -> None:
    async with backend.opened() as dead, backend.opened() as alive:
        context = dead.runs.lease("thread", "run", ttl=0.2)
        lease = await context.__aenter__()
        await dead._heartbeats.close()
        taken = None
        while taken is None:
            try:
                async with alive.runs.lease("thread", "run", ttl=60) as taken:
                    assert taken.token > lease.token
            except LeaseHeldError:
                await asyncio.sleep(0.02)
        await context.__aexit__(None, None, None)
