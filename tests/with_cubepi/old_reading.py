"""Everything that is in a database, read with the release's own methods wherever it has one."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from with_cubepi.old_library import Sql, can

ON_SQLITE = {
    "threads": """
        SELECT thread_id, NULL FROM messages UNION SELECT thread_id, NULL FROM thread_extra
        UNION SELECT thread_id, NULL FROM thread_pending_request""",
    "messages": """
        SELECT thread_id, row_number() OVER (PARTITION BY thread_id ORDER BY id), (created_at - 2440587.5) * 86400
        FROM messages""",
    "runs": """
        SELECT thread_id, run_id, (claimed_at - 2440587.5) * 86400, (completed_at - 2440587.5) * 86400, completion_seq
        FROM runs""",
    "answers": "SELECT thread_id, run_id, question_id FROM thread_hitl_answers",
}


def on_server(epoch: str) -> dict[str, str]:
    """The same questions to a server, which has this way to say a time as a number."""
    return {
        "threads": f"SELECT thread_id, {epoch.format('created_at')} FROM cubepi_threads",
        "messages": f"SELECT thread_id, seq, {epoch.format('created_at')} FROM cubepi_messages",
        "runs": (
            f"SELECT thread_id, run_id, {epoch.format('claimed_at')}, {epoch.format('completed_at')}, completion_seq"
            " FROM cubepi_runs"
        ),
        "answers": "SELECT thread_id, run_id, question_id FROM cubepi_hitl_answers",
    }


QUESTIONS = {
    "sqlite": ON_SQLITE,
    "postgresql": on_server("extract(epoch FROM {})"),
    "mysql": on_server("unix_timestamp({})"),
    "mariadb": on_server("unix_timestamp({})"),
}


async def read_all(cp: Any, sql: Sql) -> dict[str, Any]:
    """For every thread that a reader must get back, what it must get."""
    ask = QUESTIONS[sql.kind]
    created: dict[str, float | None] = {}
    for thread_id, time in await sql.rows(ask["threads"]):
        created[thread_id] = None if time is None else float(time)
    runs = by_thread(await sql.rows(ask["runs"])) if can("claim_run") else {}
    answers = by_thread(await sql.rows(ask["answers"])) if can("save_hitl_answer") else {}
    messages = by_thread(await sql.rows(ask["messages"]))
    return {
        thread_id: await read(
            cp,
            thread_id,
            created.get(thread_id),
            messages[thread_id],
            runs.get(thread_id, []),
            answers.get(thread_id, []),
        )
        for thread_id in sorted({*created, *runs, *answers})
    }


def by_thread(rows: Sequence[Sequence[Any]]) -> dict[str, list[Sequence[Any]]]:
    threads: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for thread_id, *rest in rows:
        threads[thread_id].append(rest)
    return threads


async def read(
    cp: Any,
    thread_id: str,
    created_at: float | None,
    messages: list[Sequence[Any]],
    runs: list[Sequence[Any]],
    answers: list[Sequence[Any]],
) -> dict[str, Any]:
    messages = sorted(messages, key=lambda row: row[0])
    # None where, on SQLite, there is nothing but a run, a pending request or an answer.
    data = await cp.load(thread_id)
    request = await cp.load_pending_request(thread_id)
    return {
        "created_at": created_at,
        "messages": dumped(data.messages) if data else [],
        "seqs": [seq for seq, _ in messages],
        "message_times": [float(time) for _, time in messages],
        "extra": data.extra if data else {},
        "parent_thread_id": getattr(data, "parent_thread_id", None),
        "pending": request and request.model_dump(exclude_unset=True),
        "pending_run_id": await cp.load_pending_run_id(thread_id),
        "runs": [
            {
                "run_id": run_id,
                "claimed_at": float(claimed_at),
                "completed_at": None if completed_at is None else float(completed_at),
                "completion_seq": completion_seq,
            }
            for run_id, claimed_at, completed_at, completion_seq in runs
        ],
        "snapshots": {
            run_id: dumped(await cp.snapshot(thread_id, after_run_id=run_id))
            for run_id, _, _, completion_seq in runs
            if completion_seq is not None
        },
        "answers": [
            {
                "question_id": question_id,
                "run_id": run_id or None,
                "answer": await cp.load_hitl_answer(thread_id, question_id, run_id=run_id or None),
            }
            for run_id, question_id in answers
        ],
    }


def dumped(messages: list[Any]) -> list[Any]:
    """With the fields that are stored, and not those that a later release has added and fills with defaults."""
    return [message.model_dump(exclude_unset=True) for message in messages]
