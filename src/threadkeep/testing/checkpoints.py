"""Checkpoints: numbered moments of a thread, messages included, without storing those again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import MessageTooLargeError, UnstorableValueError
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import said, same, texts


async def versions(cp: Any, thread_id: str) -> list[tuple[int, int]]:
    return [(checkpoint.version, checkpoint.seq) for checkpoint in await cp.checkpoints.list(thread_id)]


class CheckpointsContract:
    """save, latest, get, list, delete; and forks."""

    pytestmark = pytest.mark.asyncio

    async def test_a_checkpoint_comes_back_with_the_messages_of_its_moment(self, checkpointer: Any) -> None:
        plan = {"steps": [{"do": "book", "done": True}, None, 1, 1.0, 2**70, "\0 🙂"]}
        before = datetime.now(UTC)
        await checkpointer.append("thread", [said("1"), said("2")])
        assert await checkpointer.checkpoints.save("thread", plan=plan, budget_spent_usd=0.25, state=[True]) == 1
        await checkpointer.append("thread", [said("3")])
        assert await checkpointer.checkpoints.save("thread") == 2
        first = await checkpointer.checkpoints.get("thread", 1)
        assert (first.thread_id, first.version, first.seq, first.budget_spent_usd) == ("thread", 1, 2, 0.25)
        assert same((first.plan, first.state), (plan, [True]))
        assert texts(first.messages) == ["1", "2"]
        assert before <= first.created_at <= datetime.now(UTC)
        latest = await checkpointer.checkpoints.latest("thread")
        assert (latest.version, latest.seq, latest.plan, latest.state) == (2, 3, None, None)
        assert texts(latest.messages) == ["1", "2", "3"]
        assert (await checkpointer.checkpoints.latest("thread", messages=False)).messages is None

    async def test_the_first_write_of_a_thread_may_be_a_checkpoint(self, checkpointer: Any) -> None:
        assert await checkpointer.checkpoints.save("thread", state=1) == 1
        assert (await checkpointer.checkpoints.latest("thread")).messages == []
        assert (await checkpointer.load("thread")).messages == []

    async def test_what_is_not_there_is_none(self, checkpointer: Any) -> None:
        assert await checkpointer.checkpoints.latest("nobody") is None
        assert await checkpointer.checkpoints.get("nobody", 1) is None
        assert await checkpointer.checkpoints.list("nobody") == []
        assert await checkpointer.checkpoints.delete("nobody", 1) is False
        assert await checkpointer.load("nobody") is None

    async def test_versions_are_listed_oldest_first(self, checkpointer: Any) -> None:
        for number in range(3):
            await checkpointer.append("thread", [said(f"{number}")])
            await checkpointer.checkpoints.save("thread", state=number)
        listed = await checkpointer.checkpoints.list("thread")
        assert [(one.version, one.seq, one.state, one.messages) for one in listed] == [
            (1, 1, 0, None),
            (2, 2, 1, None),
            (3, 3, 2, None),
        ]

    async def test_a_middle_version_can_go(self, checkpointer: Any) -> None:
        for number in range(1, 4):
            await checkpointer.append("thread", [said(f"{number}")])
            await checkpointer.checkpoints.save("thread", state=number)
        assert await checkpointer.checkpoints.delete("thread", 2)
        assert not await checkpointer.checkpoints.delete("thread", 2)
        assert await checkpointer.checkpoints.get("thread", 2) is None
        for version in (1, 3):
            kept = await checkpointer.checkpoints.get("thread", version)
            assert (kept.state, texts(kept.messages)) == (version, [f"{number}" for number in range(1, version + 1)])

    async def test_a_deleted_number_is_not_given_again(self, checkpointer: Any) -> None:
        await checkpointer.checkpoints.save("thread")
        await checkpointer.checkpoints.delete("thread", 1)
        assert await checkpointer.checkpoints.latest("thread") is None
        assert await checkpointer.checkpoints.save("thread") == 2

    async def test_many_at_once_get_a_number_each(self, checkpointer: Any) -> None:
        saved = await asyncio.gather(*(checkpointer.checkpoints.save("thread", state=n) for n in range(8)))
        assert sorted(saved) == list(range(1, 9))

    async def test_a_checkpoint_is_part_of_a_transaction(self, checkpointer: Any) -> None:
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.append("thread", [said("1")])
                assert await tx.checkpoints.save("thread") == 1
                raise ZeroDivisionError
        assert await checkpointer.checkpoints.list("thread") == []
        async with checkpointer.transaction() as tx:
            await tx.append("thread", [said("1")])
            assert await tx.checkpoints.save("thread") == 1
        assert texts((await checkpointer.checkpoints.latest("thread")).messages) == ["1"]

    async def test_a_fork_inherits_those_whose_whole_transcript_it_has(self, checkpointer: Any) -> None:
        await checkpointer.checkpoints.save("thread", state="empty")
        await run_of(checkpointer, "thread", "first", "1", "2")
        await checkpointer.checkpoints.save("thread", state="first")
        await checkpointer.claim_run("thread", "left out")
        await checkpointer.append("thread", [said("in between", "left out")])
        await checkpointer.checkpoints.save("thread", state="in between")
        await run_of(checkpointer, "thread", "second", "3")
        await checkpointer.checkpoints.save("thread", state="second")
        await checkpointer.fork("thread", "fork", after_run_id="second")
        assert await versions(checkpointer, "fork") == [(1, 0), (2, 2)]
        inherited = await checkpointer.checkpoints.get("fork", 2)
        assert (inherited.state, texts(inherited.messages)) == ("first", ["1", "2"])
        assert inherited.created_at == (await checkpointer.checkpoints.get("thread", 2)).created_at
        assert await checkpointer.checkpoints.save("fork") == 3

    async def test_a_fork_of_everything_inherits_all(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "first", "1")
        await checkpointer.checkpoints.save("thread")
        await run_of(checkpointer, "thread", "second", "2")
        await checkpointer.checkpoints.save("thread")
        await checkpointer.checkpoints.delete("thread", 1)
        await checkpointer.fork("thread", "fork", after_run_id="second")
        assert await versions(checkpointer, "fork") == [(2, 2)]
        await checkpointer.fork("fork", "fork of the fork", after_run_id="first")
        assert await versions(checkpointer, "fork of the fork") == []
        assert await checkpointer.checkpoints.save("fork of the fork") == 1

    async def test_a_seq_is_mapped_to_the_copys(self, checkpointer: Any) -> None:
        """A fork of a fork that left something out: its own seqs have no gap."""
        await checkpointer.claim_run("thread", "left out")
        await checkpointer.append("thread", [said("left", "left out")])
        await run_of(checkpointer, "thread", "run", "1", "2")
        await checkpointer.fork("thread", "fork", after_run_id="run")
        await checkpointer.checkpoints.save("fork")
        await run_of(checkpointer, "fork", "more", "3")
        await checkpointer.fork("fork", "copy", after_run_id="more")
        assert await versions(checkpointer, "copy") == [(1, 2)]
        assert texts((await checkpointer.checkpoints.get("copy", 1)).messages) == ["1", "2"]

    async def test_a_deleted_thread_takes_its_checkpoints_along(self, checkpointer: Any) -> None:
        await checkpointer.checkpoints.save("thread")
        await checkpointer.threads.delete("thread")
        assert await checkpointer.checkpoints.list("thread") == []
        assert await checkpointer.checkpoints.save("thread") == 1

    async def test_what_is_no_json_is_no_checkpoint(self, checkpointer: Any) -> None:
        for name, value in (("plan", {1: 2}), ("state", float("nan")), ("budget_spent_usd", "1"), ("plan", (1,))):
            with pytest.raises(UnstorableValueError, match=name):
                await checkpointer.checkpoints.save("thread", **{name: value})
        with pytest.raises(UnstorableValueError, match="budget_spent_usd"):
            await checkpointer.checkpoints.save("thread", budget_spent_usd=True)
        with pytest.raises(MessageTooLargeError):
            await checkpointer.checkpoints.save("thread", state="x" * 8 * 1024 * 1024)
        for version in (0, -1, 2**63, "1", True):
            with pytest.raises(ValueError, match="version"):
                await checkpointer.checkpoints.get("thread", version)
        assert await checkpointer.load("thread") is None
