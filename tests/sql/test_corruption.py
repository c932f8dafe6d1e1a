"""Rows that rotted: an error with the row's key, never a gap. (Memory is left out: nothing can reach into it.)"""

from typing import Any

import pytest
import sqlalchemy as sa

from backends import Backend
from threadkeep import (
    CheckpointCorruptionError,
    ConfirmRequest,
    HitlRequest,
    RunAlreadyCompletedError,
    TextContent,
    UserMessage,
)
from threadkeep.sql import tables


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def rot(backend: Backend, table: sa.Table, **values: Any) -> None:
    assert backend.engine is not None
    async with backend.engine.begin() as conn:
        statement = sa.update(table)
        if table is tables.messages:
            statement = statement.where(table.c.seq == 2)
        if "thread_id" in values:
            statement = statement.where(table.c.thread_id == values.pop("thread_id"))
        statement = statement.values(values)
        assert (await conn.execute(statement)).rowcount == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"role": "nobody"}', b'{"role": "user"}', b"1,2", b"\x81\xa4role"],
)
async def test_a_message_that_does_not_decode_fails_the_load(backend: Backend, payload: bytes) -> None:
    async with backend.opened() as cp:
        await cp.claim_run("thread", "run")
        await cp.append("thread", [said("1", "run"), said("2", "run"), said("3", "run")])
        await cp.mark_run_complete("thread", "run")
        await rot(backend, tables.messages, payload=payload)
        for call in (cp.load("thread"), cp.snapshot("thread", after_run_id="run")):
            with pytest.raises(CheckpointCorruptionError) as caught:
                await call
            assert caught.value.table == "cubepi_messages"
            assert caught.value.key == {"thread_id": "thread", "seq": 2}
            assert "cubepi_messages" in str(caught.value)


async def test_messages_without_their_thread_fail_the_load(backend: Backend) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("1"), said("2")])
        assert backend.engine is not None
        async with backend.engine.begin() as conn:
            await conn.execute(sa.update(tables.messages).values(thread_id="nobody"))
        with pytest.raises(CheckpointCorruptionError) as caught:
            await cp.load("nobody")
        assert (caught.value.table, caught.value.key) == ("cubepi_threads", {"thread_id": "nobody"})


async def test_a_format_of_the_future_fails_the_load(backend: Backend) -> None:
    async with backend.opened() as cp:
        await cp.append("thread", [said("1"), said("2")])
        await rot(backend, tables.messages, format=77)
        with pytest.raises(CheckpointCorruptionError, match="77"):
            await cp.load("thread")


@pytest.mark.parametrize("extra", ["", "{", "[1]", "null", "5"])
async def test_an_extra_that_does_not_decode_fails_and_is_kept(backend: Backend, extra: str) -> None:
    async with backend.opened() as cp:
        await cp.claim_run("thread", "run")
        await cp.mark_run_complete("thread", "run")
        await rot(backend, tables.threads, extra=extra)
        for call in (
            cp.load("thread"),
            cp.save_extra("thread", {"a": 1}),
            cp.fork("thread", "fork", after_run_id="run", metadata={"a": 1}),
        ):
            with pytest.raises(CheckpointCorruptionError) as caught:
                await call
            assert (caught.value.table, caught.value.key) == ("cubepi_threads", {"thread_id": "thread"})
        assert backend.engine is not None
        async with backend.engine.connect() as conn:
            assert (await conn.execute(sa.select(tables.threads.c.extra))).scalar_one() == extra


async def test_a_request_that_does_not_decode_fails_the_load(backend: Backend) -> None:
    async with backend.opened() as cp:
        request = HitlRequest(question_id="q", payload=ConfirmRequest(prompt="?"), created_at=0.0)
        await cp.save_pending_request("thread", request, run_id="run")
        await rot(backend, tables.pending, request="{}")
        with pytest.raises(CheckpointCorruptionError) as caught:
            await cp.load_pending("thread")
        assert (caught.value.table, caught.value.key) == ("cubepi_pending", {"thread_id": "thread"})
        # The half that does not need the request is still there.
        assert await cp.load_pending_run_id("thread") == "run"


async def test_an_answer_that_does_not_decode_fails_the_load(backend: Backend) -> None:
    async with backend.opened() as cp:
        await cp.save_hitl_answer("thread", "q", 1, run_id="run")
        await rot(backend, tables.hitl_answers, answer="{")
        with pytest.raises(CheckpointCorruptionError) as caught:
            await cp.load_hitl_answer("thread", "q", run_id="run")
        assert caught.value.key == {"thread_id": "thread", "run_id": "run", "question_id": "q"}


async def test_who_stopped_at_a_wrong_row_sees_what_comes_later(backend: Backend) -> None:
    """Also while somebody keeps the error: what was half read must not keep its snapshot."""
    async with backend.opened() as cp:
        for number in range(6):
            await cp.threads.create(f"thread {number}", metadata={"a": 1})
        await rot(backend, tables.threads, thread_id="thread 4", metadata="}")
        with pytest.raises(CheckpointCorruptionError) as kept:
            await cp.threads.list()
        for count in range(1, 4):
            await cp.append("other", [said("x")])
            assert len((await cp.load("other")).messages) == count
        assert kept.value.key == {"thread_id": "thread 4"}


async def test_a_refusal_in_the_middle_of_an_answer_keeps_nobody_from_writing(backend: Backend) -> None:
    async with backend.opened() as cp:
        for run_id in ("one", "two", "three"):
            await cp.claim_run("thread", run_id)
            await cp.mark_run_complete("thread", run_id)
        late = [said(run_id, run_id) for run_id in ("one", "two", "three")]
        async with cp.transaction() as tx:
            with pytest.raises(RunAlreadyCompletedError) as in_transaction:
                await tx.append("thread", late)
        with pytest.raises(RunAlreadyCompletedError) as alone:
            await cp.append("thread", late)
        for number in range(3):
            await cp.append("thread", [said("1")])
            async with cp.transaction() as tx:
                await tx.append("thread", [said("2")])
            assert (await cp.threads.get("thread")).last_seq == 2 * number + 2
        assert in_transaction.value.thread_id == alone.value.thread_id == "thread"
