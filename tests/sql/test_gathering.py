"""Writes of many callers go to the server together, where it has a way: each all or nothing, whatever the others do.

They write what each alone would have written, and are refused in the same words. (SQLite's are in `test_groups`.)
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backends import BACKENDS, Backend
from sql.sessions import LONG, OUR_OWN_POOLS, Server
from sql.turn_writes import OTHERS, SMALL, TURN, absent, alive, by_operation, outcome_of, put_away, said, state
from threadkeep import OutcomeUnknownError
from threadkeep.sql.gathering import Call, Gathering, Take

CROWD = 12


@pytest.fixture(params=OUR_OWN_POOLS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each group, how many calls were in it, and how many of them it has made."""
    sent: list[tuple[int, int]] = []
    init = Gathering.__init__

    def listening(self: Gathering, send: Any, *, interruptible: bool) -> None:
        async def noted(take: Take) -> dict[int, Any]:
            taken: list[Call] = []

            def noted_take() -> list[Call]:
                taken.extend(take())
                return taken

            made: dict[int, Any] = await send(noted_take)
            sent.append((len(taken), len(made)))
            return made

        init(self, noted, interruptible=interruptible)

    monkeypatch.setattr(Gathering, "__init__", listening)
    return sent


async def crowd_of(cp: Any, write: Any, thread_ids: list[str]) -> list[Any]:
    return await asyncio.gather(*(outcome_of(write(cp, thread_id), thread_id) for thread_id in thread_ids))


async def appended(cp: Any, thread_id: str, *, to_be_continued: bool = False) -> list[str]:
    """What was said in the thread. No seq may be missing."""
    log = await cp.messages.list(thread_id)
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    if not to_be_continued:  # else the thread may be a later one
        assert (await cp.threads.get(thread_id)).last_seq == len(log)
    return [entry.message.content[0].text for entry in log]


async def test_a_crowd_shares_its_messages_to_the_server(backend: Backend, groups: list[tuple[int, int]]) -> None:
    async with backend.opened() as cp:
        for number in range(CROWD):
            await cp.append(f"{number}", [said("first")])
        assert groups == []  # who comes alone goes alone
        await crowd_of(cp, TURN["append"], [f"{number}" for number in range(CROWD)])
        assert sum(made for _, made in groups) >= CROWD - 2
        assert len(groups) <= 2
        for number in range(CROWD):
            assert await appended(cp, f"{number}") == ["first", "1", "2"]


async def test_a_crowd_may_write_to_one_thread(backend: Backend, groups: list[tuple[int, int]]) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("first")])
        for _ in range(3):
            await crowd_of(cp, TURN["append"], ["thread"] * CROWD)
        assert groups
        texts = await appended(cp, "thread")
        assert texts == ["first", *["1", "2"] * 3 * CROWD]  # those of one call come together


@pytest.mark.parametrize("name", [*TURN, *OTHERS])
@pytest.mark.parametrize("made", [alive, put_away, absent])
async def test_each_in_a_crowd_gets_its_own_answer(backend: Backend, name: str, made: Any) -> None:
    """Beside others that succeed: it is as if the operation had been run for each, alone."""
    write, ordinary = {**TURN, **OTHERS}[name], TURN["append"]
    async with backend.opened(max_value_bytes=SMALL) as cp:
        for thread_id in ("first thread", "second thread", "alone"):
            await made(cp, thread_id)
        for number in range(CROWD):
            await alive(cp, f"beside {number}")
        expected = await outcome_of(by_operation(cp, write, "alone"), "alone")
        beside = [outcome_of(ordinary(cp, f"beside {number}"), "") for number in range(CROWD)]
        writes = [outcome_of(write(cp, thread_id), thread_id) for thread_id in ("first thread", "second thread")]
        # In the midst of the others: the first two need no company.
        *succeeded, first, second = await asyncio.gather(*beside, *writes)
        more = await crowd_of(cp, write, [f"more {number}" for number in range(3)])
        assert succeeded == [None] * CROWD
        assert [first, second] == [expected, expected]
        assert more == [more[0]] * 3
        assert await state(cp, "first thread") == await state(cp, "second thread") == await state(cp, "alone")
        for number in range(CROWD):
            assert len((await state(cp, f"beside {number}"))[0]) == 4


@pytest.mark.parametrize("name", TURN)
async def test_nobody_waits_for_the_lock_of_another(backend: Backend, name: str, groups: list[tuple[int, int]]) -> None:
    async with backend.opened(lock_timeout=LONG) as cp:
        threads = [f"{number}" for number in range(CROWD)]
        for thread_id in threads:
            await alive(cp, thread_id)
        async with cp.transaction() as tx:
            await tx.save_extra(threads[-1], {"held": True})
            *others, held = [asyncio.ensure_future(TURN[name](cp, thread_id)) for thread_id in threads]
            async with asyncio.timeout(LONG):
                await asyncio.gather(*others)
            assert not held.done()
        await held
        states = [await state(cp, thread_id) for thread_id in threads]
        assert states[1:-1] == [states[0]] * (CROWD - 2)
        messages, runs, extra, is_deleted = states[-1]
        assert (messages, runs, {**extra}, is_deleted) == (*states[0][:2], {**states[0][2], "held": True}, False)


async def test_a_run_is_claimed_and_completed_once_by_a_crowd(backend: Backend) -> None:
    async with backend.opened() as cp:
        await alive(cp, "thread")
        outcomes = await crowd_of(cp, TURN["claim_run"], ["thread"] * CROWD)
        assert outcomes.count(None) == 1
        await crowd_of(cp, TURN["mark_run_complete"], ["thread"] * CROWD)
        assert (await state(cp, "thread"))[1] == [("done", 1), ("new", None), ("open", 2)]


async def test_no_change_to_extra_is_lost_in_a_crowd(backend: Backend) -> None:
    async with backend.opened() as cp:
        await alive(cp, "thread")
        await asyncio.gather(*(cp.save_extra("thread", {f"{number}": number}) for number in range(CROWD)))
        extra = (await cp.load("thread")).extra
        assert extra == {"a": 1, **{f"{number}": number for number in range(CROWD)}}


async def test_too_much_for_one_group_is_written_all_the_same(backend: Backend) -> None:
    async with backend.opened() as cp:
        threads = [f"{number}" for number in range(CROWD)]
        for thread_id in threads:
            await cp.append(thread_id, [said("first")])
        large, many = "x" * 1_000_000, [said("little")] * 150
        await asyncio.gather(*(cp.append(thread_id, [said(large), *many]) for thread_id in threads))
        for thread_id in threads:
            assert await appended(cp, thread_id) == ["first", large, *["little"] * 150]


async def test_a_crowd_whose_connection_breaks_has_an_unknown_outcome(backend: Backend, server: Server) -> None:
    async with backend.opened(lock_timeout=LONG) as cp:
        threads = [f"{number}" for number in range(CROWD)]
        for thread_id in threads:
            await cp.append(thread_id, [said("first")])
        async with server.locked("cubepi_messages") as locker:
            crowd = [asyncio.create_task(cp.append(thread_id, [said("lost")])) for thread_id in threads]
            while not all(task.done() for task in crowd):
                for session in await server.busy() - {locker}:
                    await server.kill(session)
                await asyncio.wait(crowd, timeout=0.1)
        outcomes = await asyncio.gather(*crowd, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OutcomeUnknownError}
        await server.until_quiet()
        for thread_id in threads:
            assert await appended(cp, thread_id) in (["first"], ["first", "lost"])


@pytest.mark.parametrize("who", ["every other", "all"])
async def test_who_is_cancelled_in_a_crowd_has_written_or_never_will(
    backend: Backend, server: Server, who: str
) -> None:
    async with backend.opened() as cp:
        threads = [f"{number}" for number in range(2 * CROWD)]
        for thread_id in threads:
            await cp.append(thread_id, [said("first")])
        for steps in range(2 * CROWD):
            crowd = [asyncio.create_task(cp.append(thread_id, [said(f"{steps}")])) for thread_id in threads]
            for _ in range(steps):  # so far, and no farther: by and by they are cancelled everywhere
                await asyncio.sleep(0)
            cancelled = [task for task in (crowd[::2] if who == "every other" else crowd) if task.cancel()]
            await asyncio.wait(cancelled or crowd)
            seen = [f"{steps}" in await appended(cp, thread_id, to_be_continued=True) for thread_id in threads]
            await asyncio.wait(crowd)
            await server.until_quiet()
            for task, thread_id, was_there in zip(crowd, threads, seen, strict=True):
                is_there = f"{steps}" in await appended(cp, thread_id)
                if task in cancelled:
                    assert is_there == was_there  # nothing comes later
                assert is_there or task.cancelled()


async def test_who_is_cancelled_before_there_is_a_connection_has_written_nothing(backend: Backend) -> None:
    async with backend.opened(max_pool_size=1) as cp:
        threads = [f"{number}" for number in range(CROWD)]
        for thread_id in threads:
            await cp.append(thread_id, [said("first")])
        async with cp.transaction() as tx:
            await tx.append("held", [said("first")])
            crowd = [asyncio.create_task(cp.append(thread_id, [said("never")])) for thread_id in threads]
            stays = asyncio.create_task(cp.append(threads[0], [said("later")]))
            await asyncio.wait(crowd, timeout=0.1)  # as far as they come
            for task in crowd:
                task.cancel()
            async with asyncio.timeout(LONG):
                await asyncio.wait(crowd)  # while the connection is held
            assert all(task.cancelled() for task in crowd)
        await stays
        assert await appended(cp, threads[0]) == ["first", "later"]
        for thread_id in threads[1:]:
            assert await appended(cp, thread_id) == ["first"]


async def test_a_crowd_before_a_locked_table_can_leave(backend: Backend, server: Server) -> None:
    """On MySQL, which cannot take back what it was sent, within the lock timeout."""
    async with backend.opened(lock_timeout=1) as cp:
        threads = [f"{number}" for number in range(CROWD)]
        for thread_id in threads:
            await cp.append(thread_id, [said("first")])
        async with server.locked("cubepi_messages"):
            crowd = [asyncio.create_task(cp.append(thread_id, [said("never")])) for thread_id in threads]
            await server.until_waiting(3)
            for task in crowd:
                task.cancel()
            async with asyncio.timeout(LONG):
                await asyncio.wait(crowd)  # while the table is locked
        await server.until_quiet()
        for thread_id in threads:
            assert await appended(cp, thread_id) == ["first"]


async def test_closing_lets_a_crowd_end(backend: Backend, server: Server) -> None:
    async with backend.make() as cp:
        for number in range(CROWD):
            await cp.append(f"{number}", [said("first")])
        crowd = [asyncio.ensure_future(TURN["append"](cp, f"{number}")) for number in range(CROWD)]
        await asyncio.sleep(0)  # they have come, and nothing has been sent
    await asyncio.gather(*crowd)
    await server.until_connected(0)
    async with backend.opened() as cp:
        for number in range(CROWD):
            assert await appended(cp, f"{number}") == ["first", "1", "2"]
