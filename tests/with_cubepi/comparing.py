"""What an old release has read from a database against what Threadkeep reads from it after the upgrade."""

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from migrations.databases import Place
from threadkeep import CheckpointerError, HitlRequest, Message
from threadkeep.sql import tables

MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
CLOSE = 0.001
"""Seconds. SQLite's julianday cannot say a time more closely."""


def exactly(value: Any) -> str:
    """A text that is the same for the same JSON only: 1, 1.0 and True apart, NaN equal to itself."""
    return json.dumps(value, sort_keys=True)


async def differences(cp: Any, place: Place, written: dict[str, Any]) -> list[str]:
    """Everything in which the database differs from what was written; nothing, if the upgrade lost nothing."""
    threads = written["threads"]
    found = {record.thread_id for record in await cp.threads.list(limit=10_000)}
    trouble = [f"lost thread {name!r}" for name in sorted(threads.keys() - found)]
    trouble += [f"made up thread {name!r}" for name in sorted(found - threads.keys())]
    stored = await _stored_messages(place)
    for thread_id, thread in threads.items():
        if thread_id in found:
            try:
                seen = await _looked_at(cp, thread_id, thread, written["forks"].get(thread_id))
            except CheckpointerError as error:
                trouble.append(f"{thread_id!r} cannot be read: {error}")
                continue
            seen["message seqs"] = (thread["seqs"], [seq for seq, _ in stored.get(thread_id, [])])
            ids = [record.message_id for record in await cp.messages.list(thread_id)]
            seen["message ids"] = ([f"#{seq}" for seq in thread["seqs"]], ids)
            seen["message times"] = _times(thread["message_times"], stored.get(thread_id, []))
            trouble += [
                f"{thread_id!r}, {what}: {_first_difference(expected, got)}"
                for what, (expected, got) in seen.items()
                if exactly(expected) != exactly(got)
            ]
    return trouble


async def _looked_at(
    cp: Any, thread_id: str, thread: dict[str, Any], forked_at_seq: int | None
) -> dict[str, tuple[Any, Any]]:
    """Pairs of what was written and what is there."""
    data = await cp.load(thread_id)
    record = await cp.threads.get(thread_id)
    runs = await cp.runs.list(thread_id)
    pending = await cp.load_pending(thread_id)
    seen: dict[str, tuple[Any, Any]] = {
        "extra": (thread["extra"], data.extra),
        "parent_thread_id": (thread["parent_thread_id"], data.parent_thread_id),
        "parent_thread_id of the record": (thread["parent_thread_id"], record.parent_thread_id),
        "forked_at_seq": (forked_at_seq, record.forked_at_seq),
        "last_seq": (max(thread["seqs"], default=0), record.last_seq),
        "last_completion_seq": (
            max((run["completion_seq"] or 0 for run in thread["runs"]), default=0),
            record.last_completion_seq,
        ),
        "is pending": (thread["pending"] is not None, pending is not None),
        "pending run_id": (thread["pending_run_id"], await cp.load_pending_run_id(thread_id)),
        "runs": (
            sorted([run["run_id"], run["completion_seq"]] for run in thread["runs"]),
            sorted([run.run_id, run.completion_seq] for run in runs),
        ),
        "run times": _run_times(thread["runs"], runs),
    }
    seen |= _messages("messages", thread["messages"], data.messages)
    if thread["pending"] is not None and pending is not None:
        request, run_id = pending
        seen["pending"] = (HitlRequest.model_validate(thread["pending"]).model_dump(), request.model_dump())
        seen["pending, as stored"] = (thread["pending"], _only(thread["pending"], request.model_dump()))
        seen["pending with its run_id"] = (thread["pending_run_id"], run_id)
    if thread["created_at"] is not None:
        seen["created_at"] = _times([thread["created_at"]], [(0, record.created_at)])
    for run_id, messages in thread["snapshots"].items():
        seen |= _messages(f"snapshot after {run_id!r}", messages, await cp.snapshot(thread_id, after_run_id=run_id))
    for answer in thread["answers"]:
        key = {"question_id": answer["question_id"], "run_id": answer["run_id"]}
        got = await cp.load_hitl_answer(thread_id, **key)
        seen[f"answer to {key}"] = ([True, answer["answer"]], [await cp.has_hitl_answer(thread_id, **key), got])
    return seen


def _messages(what: str, expected: list[Any], got: list[Any]) -> dict[str, tuple[Any, Any]]:
    """Once as our classes have them, with their defaults, and once as they are stored."""
    wanted = [MESSAGE.validate_python(message) for message in expected]
    dumps = [message.model_dump() for message in got]
    return {
        what: (
            [[type(message).__name__, message.model_dump()] for message in wanted],
            [[type(message).__name__, dump] for message, dump in zip(got, dumps, strict=True)],
        ),
        f"{what}, as stored": (
            expected,
            [_only(message, dump) for message, dump in zip(expected, dumps, strict=False)],
        ),
    }


def _only(expected: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    return {key: got[key] for key in expected if key in got}


def _run_times(expected: list[Any], got: list[Any]) -> tuple[Any, Any]:
    written = {run["run_id"]: [run["claimed_at"], run["completed_at"]] for run in expected}
    pairs = [
        pair
        for run in got
        for pair in zip(written.get(run.run_id, [None, None]), (run.claimed_at, run.completed_at), strict=True)
    ]
    return [], [[time, str(moment)] for time, moment in pairs if not _is_close(time, moment)]


def _times(expected: list[float], stored: list[tuple[int, datetime | None]]) -> tuple[Any, Any]:
    """Where an adopted table keeps its rows' times in a column of its own, there is none for us to compare."""
    pairs = zip(expected, (moment for _, moment in stored), strict=False)
    return [], [[time, str(moment)] for time, moment in pairs if moment and not _is_close(time, moment)]


def _is_close(time: float | None, moment: datetime | None) -> bool:
    if time is None or moment is None:
        return time is None and moment is None
    return abs(time - moment.timestamp()) <= CLOSE


async def _stored_messages(place: Place) -> dict[str, list[tuple[int, datetime | None]]]:
    """Each thread's seqs and times, which no method of ours gives."""
    columns = (tables.messages.c.thread_id, tables.messages.c.seq, tables.messages.c.created_at)

    def read(conn: sa.Connection) -> dict[str, list[tuple[int, datetime | None]]]:
        stored: dict[str, list[tuple[int, datetime | None]]] = {}
        for thread_id, seq, created_at in conn.execute(sa.select(*columns).order_by(*columns[:2])):
            assert created_at is None or created_at <= datetime.now(UTC)
            stored.setdefault(thread_id, []).append((seq, created_at))
        return stored

    return await place.run(read)


def _first_difference(expected: Any, got: Any) -> str:
    """Where two JSON values part, for a human to read."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *got]:
            if key not in expected or key not in got:
                return f"[{key!r}] is only in {'what was written' if key in expected else 'what is there'}"
            if exactly(expected[key]) != exactly(got[key]):
                return f"[{key!r}]{_first_difference(expected[key], got[key])}"
    if isinstance(expected, list) and isinstance(got, list):
        for index, (one, other) in enumerate(zip(expected, got, strict=False)):
            if exactly(one) != exactly(other):
                return f"[{index}]{_first_difference(one, other)}"
        return f" has {len(got)} instead of {len(expected)}"
    return f" is {_short(got)} instead of {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:150]}… ({len(text)} characters)"
