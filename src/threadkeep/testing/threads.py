"""cp.threads: records, pages, status, and deleting."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import InvalidIdError, ThreadNotFoundError
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import BAD_IDS, asking, said, texts


class ThreadsContract:
    """threads.get, threads.list, threads.delete."""

    pytestmark = pytest.mark.asyncio

    async def test_a_record_tells_of_the_thread(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        await checkpointer.append("thread", [said("1"), said("2")])
        created = datetime.now(UTC)
        await run_of(checkpointer, "thread", "run", "3")
        record = await checkpointer.threads.get("thread")
        assert (record.thread_id, record.parent_thread_id, record.forked_at_seq) == ("thread", None, None)
        assert (record.last_seq, record.last_completion_seq) == (3, 1)
        assert before <= record.created_at <= created <= record.updated_at <= datetime.now(UTC)
        assert record.created_at.tzinfo is record.updated_at.tzinfo is UTC

    async def test_an_unknown_thread_has_no_record(self, checkpointer: Any) -> None:
        assert await checkpointer.threads.get("nobody") is None

    async def test_a_failed_append_takes_no_seq(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "done", "1")
        with pytest.raises(Exception, match="completed"):
            await checkpointer.append("thread", [said("late", "done")])
        await checkpointer.append("thread", [said("2")])
        assert (await checkpointer.threads.get("thread")).last_seq == 2

    async def test_threads_are_listed_newest_first(self, checkpointer: Any) -> None:
        for thread_id in ("one", "two", "three"):
            await checkpointer.append(thread_id, [said("x")])
        await checkpointer.append("one", [said("a later message does not make a thread newer")])
        assert [record.thread_id for record in await checkpointer.threads.list()] == ["three", "two", "one"]
        assert await checkpointer.threads.list(limit=1) == [await checkpointer.threads.get("three")]

    async def test_no_threads_make_an_empty_list(self, checkpointer: Any) -> None:
        assert await checkpointer.threads.list() == []

    @pytest.mark.parametrize("by", ["record", "id"])
    async def test_pages_hold_every_thread_once(self, checkpointer: Any, by: str) -> None:
        names = [f"thread {number}" for number in range(7)]
        for name in names:
            await checkpointer.save_extra(name, {})
        seen: list[str] = []
        page = await checkpointer.threads.list(limit=3)
        while page:
            seen += [record.thread_id for record in page]
            page = await checkpointer.threads.list(limit=3, after=page[-1] if by == "record" else seen[-1])
        assert seen == names[::-1]

    async def test_pages_do_not_shift_under_changes(self, checkpointer: Any) -> None:
        for name in ("a", "b", "c", "d"):
            await checkpointer.save_extra(name, {})
        first = await checkpointer.threads.list(limit=2)
        await checkpointer.save_extra("new", {})
        await checkpointer.threads.delete("d")
        await checkpointer.threads.delete("c")
        second = await checkpointer.threads.list(limit=2, after=first[-1])
        assert [record.thread_id for record in first + second] == ["d", "c", "b", "a"]

    async def test_a_page_after_an_unknown_thread_is_an_error(self, checkpointer: Any) -> None:
        with pytest.raises(ThreadNotFoundError):
            await checkpointer.threads.list(after="nobody")

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    async def test_a_limit_out_of_range_is_refused(self, checkpointer: Any, limit: int) -> None:
        with pytest.raises(ValueError, match="limit"):
            await checkpointer.threads.list(limit=limit)

    async def test_forks_can_be_listed_by_their_parent(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        for name in ("fork a", "fork b"):
            await checkpointer.fork("thread", name, after_run_id="run")
        await checkpointer.fork("fork a", "fork of a", after_run_id="run")
        children = await checkpointer.threads.list(parent_thread_id="thread")
        assert [record.thread_id for record in children] == ["fork b", "fork a"]
        older = await checkpointer.threads.list(parent_thread_id="thread", after="fork b")
        assert [record.thread_id for record in older] == ["fork a"]
        assert await checkpointer.threads.list(parent_thread_id="fork b") == []

    async def test_deleting_removes_every_row(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.save_extra("thread", {"a": 1})
        await checkpointer.save_pending_request("thread", asking(), run_id="run")
        await checkpointer.save_hitl_answer("thread", "q", 1, run_id="run")
        assert await checkpointer.threads.delete("thread") is True
        assert await checkpointer.load("thread") is None
        assert await checkpointer.load_pending("thread") is None
        assert not await checkpointer.has_hitl_answer("thread", "q", run_id="run")
        assert await checkpointer.runs.list("thread") == []
        assert await checkpointer.threads.delete("thread") is False

    async def test_a_later_write_starts_anew(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1", "2")
        await checkpointer.save_extra("thread", {"a": 1})
        await checkpointer.threads.delete("thread")
        await run_of(checkpointer, "thread", "run", "new")
        data = await checkpointer.load("thread")
        assert (texts(data.messages), data.extra) == (["new"], {})
        record = await checkpointer.threads.get("thread")
        assert (record.last_seq, record.last_completion_seq) == (1, 1)

    async def test_forks_outlive_their_parent(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.fork("thread", "fork", after_run_id="run")
        await checkpointer.fork("fork", "grandchild", after_run_id="run")
        await checkpointer.threads.delete("thread")
        data = await checkpointer.load("fork")
        assert (texts(data.messages), data.parent_thread_id) == (["1"], None)
        assert (await checkpointer.load("grandchild")).parent_thread_id == "fork"

    async def test_other_threads_stay(self, checkpointer: Any) -> None:
        await checkpointer.append("thread", [said("1")])
        await checkpointer.append("Thread", [said("2")])
        await checkpointer.threads.delete("thread")
        assert texts((await checkpointer.load("Thread")).messages) == ["2"]

    async def test_bad_ids_are_refused(self, checkpointer: Any) -> None:
        for bad in BAD_IDS:
            with pytest.raises(InvalidIdError):
                await checkpointer.threads.get(bad)
            with pytest.raises(InvalidIdError):
                await checkpointer.threads.delete(bad)
            with pytest.raises(InvalidIdError):
                await checkpointer.runs.list(bad)
            if bad is not None:
                with pytest.raises(InvalidIdError):
                    await checkpointer.threads.list(after=bad)
                with pytest.raises(InvalidIdError):
                    await checkpointer.threads.list(parent_thread_id=bad)


class StatusContract:
    """threads.set_status, and listing by it."""

    pytestmark = pytest.mark.asyncio

    async def test_a_thread_is_active_until_somebody_says_otherwise(self, checkpointer: Any) -> None:
        for status in ("active", "completed", "failed", "cancelled"):
            await checkpointer.save_extra(status, {})
            assert (await checkpointer.threads.get(status)).status == "active"
            await checkpointer.threads.set_status(status, status)
        for status in ("active", "completed", "failed", "cancelled"):
            assert [record.thread_id for record in await checkpointer.threads.list(status=status)] == [status]
            assert (await checkpointer.threads.get(status)).status == status
        assert len(await checkpointer.threads.list()) == 4

    async def test_a_status_is_listed_in_pages(self, checkpointer: Any) -> None:
        for number in range(5):
            await checkpointer.save_extra(f"{number}", {})
            await checkpointer.threads.set_status(f"{number}", "failed" if number % 2 else "completed")
        page = await checkpointer.threads.list(status="completed", limit=2)
        rest = await checkpointer.threads.list(status="completed", limit=2, after=page[-1])
        assert [record.thread_id for record in page + rest] == ["4", "2", "0"]

    async def test_a_fork_of_a_failed_thread_is_active(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        await checkpointer.threads.set_status("thread", "failed")
        await checkpointer.fork("thread", "fork", after_run_id="run")
        assert (await checkpointer.threads.get("fork")).status == "active"

    async def test_other_words_and_unknown_threads_are_refused(self, checkpointer: Any) -> None:
        with pytest.raises(ValueError, match="active, completed, failed, cancelled"):
            await checkpointer.threads.set_status("thread", "Done")
        with pytest.raises(ValueError, match="active"):
            await checkpointer.threads.list(status="")
        with pytest.raises(ThreadNotFoundError):
            await checkpointer.threads.set_status("thread", "failed")
        assert await checkpointer.load("thread") is None
