"""The writes of every turn, the threads they are made on, and what is to be seen afterwards."""

from collections.abc import Awaitable, Callable
from typing import Any

from threadkeep import TextContent, UserMessage

Write = Callable[[Any, str], Awaitable[Any]]
"""Takes a checkpointer, or a transaction of it, and a thread's id."""


def said(text: str, run_id: str | None = None, /, **metadata: Any) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id, metadata=metadata)


async def alive(cp: Any, thread_id: str) -> None:
    """A thread with one run that is complete and one that is open."""
    for run_id in ("done", "open"):
        await cp.claim_run(thread_id, run_id)
        await cp.append(thread_id, [said(run_id, run_id)])
    await cp.mark_run_complete(thread_id, "done")
    await cp.save_extra(thread_id, {"a": 1})


async def put_away(cp: Any, thread_id: str) -> None:
    await alive(cp, thread_id)
    await cp.threads.soft_delete(thread_id)


async def absent(cp: Any, thread_id: str) -> None:
    """No thread at all."""


async def state(cp: Any, thread_id: str) -> Any:
    """All that the four writes may change. No seq or completion_seq may be missing."""
    record, data = await cp.threads.get(thread_id), await cp.load(thread_id)
    runs = await cp.runs.list(thread_id)
    if record is None:
        assert (data, runs) == (None, [])
        return None
    log = await cp.messages.list(thread_id)
    assert [entry.seq for entry in log] == list(range(1, record.last_seq + 1))
    completed = sorted(run.completion_seq for run in runs if run.completed_at is not None)
    assert completed == list(range(1, record.last_completion_seq + 1))
    return (
        [(entry.run_id, entry.message) for entry in log],
        sorted((run.run_id, run.completion_seq) for run in runs),
        data.extra,
        record.deleted_at is not None,
    )


async def outcome_of(writing: Awaitable[Any], thread_id: str) -> Any:
    """What came of it, in words that do not depend on the thread."""
    try:
        return await writing
    except Exception as error:
        return type(error), str(error).replace(thread_id, "…")


async def by_operation(cp: Any, write: Write, thread_id: str) -> Any:
    async with cp.transaction() as tx:
        return await write(tx, thread_id)


TURN: dict[str, Write] = {
    "claim_run": lambda cp, thread: cp.claim_run(thread, "new"),
    "append": lambda cp, thread: cp.append(thread, [said("1", "open"), said("2")]),
    "save_extra": lambda cp, thread: cp.save_extra(thread, {"b": 2}),
    "mark_run_complete": lambda cp, thread: cp.mark_run_complete(thread, "open"),
}
"""Each in the ordinary case, on a thread that is alive."""

OTHERS: dict[str, Write] = {
    "claim a run that is open": lambda cp, thread: cp.claim_run(thread, "open"),
    "claim a run that is complete": lambda cp, thread: cp.claim_run(thread, "done"),
    "append one": lambda cp, thread: cp.append(thread, [said("1", "open")]),
    "append one without a run": lambda cp, thread: cp.append(thread, [said("1")]),
    "append to a run that nobody claimed": lambda cp, thread: cp.append(thread, [said("1", "new")]),
    "append to a run that is complete": lambda cp, thread: cp.append(thread, [said("1", "done")]),
    "append to several": lambda cp, thread: cp.append(thread, [said("1", "open"), said("2", "new")]),
    "append to several, one complete": lambda cp, thread: cp.append(thread, [said("1", "open"), said("2", "done")]),
    "save what is there": lambda cp, thread: cp.save_extra(thread, {"a": 1}),
    "save nothing": lambda cp, thread: cp.save_extra(thread, {}),
    "save too much": lambda cp, thread: cp.save_extra(thread, {"b": "x" * 995}),
    "complete a run that is complete": lambda cp, thread: cp.mark_run_complete(thread, "done"),
    "complete a run that nobody claimed": lambda cp, thread: cp.mark_run_complete(thread, "new"),
}
SMALL = 1005
"""The largest extra, for "save too much": it is, together with what is there already."""
