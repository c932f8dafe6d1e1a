"""Threadkeep goes on with what an old release has written: every operation, on threads that it did not make."""

from typing import Any

import pytest

from migrations.databases import Place
from threadkeep import RunAlreadyClaimedError, RunAlreadyCompletedError, RunNotCompletedError, TextContent, UserMessage
from with_cubepi.contents import rows_of

NEW_RUN = "a run of Threadkeep's"


def said(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def prove_that_every_thread_goes_on(cp: Any, threads: dict[str, Any]) -> None:
    """Appends continue at the next seq, and a new run can be forked with all that was there before."""
    for number, (thread_id, thread) in enumerate(threads.items()):
        before = (await cp.load(thread_id)).messages
        last_seq = max(thread["seqs"], default=0)
        await cp.append(thread_id, [said("legacy")])
        await cp.claim_run(thread_id, NEW_RUN)
        await cp.append(thread_id, [said("one", NEW_RUN), said("two", NEW_RUN)])
        with pytest.raises(RunNotCompletedError):
            await cp.fork(thread_id, f"copy {number}", after_run_id=NEW_RUN)
        await cp.mark_run_complete(thread_id, NEW_RUN)

        after = (await cp.load(thread_id)).messages
        assert after[:-3] == before
        assert [message.content[0].text for message in after[-3:]] == ["legacy", "one", "two"]
        record = await cp.threads.get(thread_id)
        completed = [run["run_id"] for run in thread["runs"] if run["completion_seq"] is not None]
        assert record.last_seq == last_seq + 3, thread_id
        assert record.last_completion_seq == len(completed) + 1, thread_id

        await cp.fork(thread_id, f"copy {number}", after_run_id=NEW_RUN, metadata={"by": "Threadkeep"})
        copy = await cp.load(f"copy {number}")
        whole = {None, NEW_RUN, *completed}
        assert copy.messages == [message for message in after if message.run_id in whole], thread_id
        assert copy.extra == thread["extra"] | {"fork": {"by": "Threadkeep"}}
        assert copy.parent_thread_id == thread_id
        assert (await cp.threads.get(f"copy {number}")).forked_at_seq == record.last_seq


async def prove_that_its_runs_go_on(cp: Any, threads: dict[str, Any]) -> None:
    """A run that an old release has claimed is completed here; what it has completed stays completed."""
    for thread_id, thread in threads.items():
        last = (await cp.threads.get(thread_id)).last_completion_seq
        for run in thread["runs"]:
            run_id = run["run_id"]
            if run["completion_seq"] is None:
                with pytest.raises(RunAlreadyClaimedError):
                    await cp.claim_run(thread_id, run_id)
                await cp.append(thread_id, [said("the end", run_id)])
                await cp.mark_run_complete(thread_id, run_id)
                last += 1
                completed = {record.run_id: record.completion_seq for record in await cp.runs.list(thread_id)}
                assert completed[run_id] == last
            else:
                with pytest.raises(RunAlreadyCompletedError):
                    await cp.claim_run(thread_id, run_id)
                with pytest.raises(RunAlreadyCompletedError):
                    await cp.append(thread_id, [said("too late", run_id)])
                await cp.mark_run_complete(thread_id, run_id)


async def prove_that_its_questions_can_be_answered(cp: Any, threads: dict[str, Any]) -> None:
    for thread_id, thread in threads.items():
        for answer in thread["answers"]:
            key = {"question_id": answer["question_id"], "run_id": answer["run_id"]}
            await cp.save_hitl_answer(thread_id, answer="anew", **key)
            assert await cp.load_hitl_answer(thread_id, **key) == "anew"
            await cp.clear_hitl_answers(thread_id, [answer["question_id"]], run_id=answer["run_id"])
            assert not await cp.has_hitl_answer(thread_id, **key)
        if thread["pending"] is not None:
            ids = {"question_id": thread["pending"]["question_id"], "run_id": thread["pending_run_id"]}
            assert not await cp.clear_pending_request_if_matches(thread_id, **(ids | {"question_id": "another"}))
            assert await cp.clear_pending_request_if_matches(thread_id, **ids), ids
            assert await cp.load_pending(thread_id) is None


async def prove_that_its_messages_can_be_compacted(cp: Any, threads: dict[str, Any]) -> None:
    """Those that an old release wrote are called by their seqs, and those of ours by their ids."""
    for thread_id in threads:
        log = await cp.messages.list(thread_id)
        items = await cp.context.items(thread_id)
        assert [item.message_id for item in items] == [record.message_id for record in log]
        for record in (log[0], log[-1]):
            assert await cp.messages.get(thread_id, record.message_id) == record

        summary = await cp.context.swap(thread_id, items[:-1], said("what was said before"))
        assert await cp.context.items(thread_id) == [summary, items[-1]]
        assert await cp.context.expand(thread_id, summary) == log[:-1]
        assert (await cp.load(thread_id)).messages == [record.message for record in log]
        await cp.threads.update(thread_id, title="from cubepi", metadata={"old": True})
        await cp.parts.append(thread_id, "a draft", "text", "half a")
        await cp.usage.record(thread_id, log[-1], input_tokens=1)


async def prove_that_every_row_can_be_deleted(cp: Any, place: Place) -> None:
    """Parents before their forks and after them, whatever keys an adopted table has kept."""
    for record in await cp.threads.list(limit=10_000):
        assert await cp.threads.delete(record.thread_id)
    left = {name: rows for name, rows in (await rows_of(place)).items() if rows}
    assert left.keys() <= {"cubepi_schema_version", "cubepi_alembic_version", "sqlite_sequence"}, left
