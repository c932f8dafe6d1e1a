"""The answers ledger: what humans answered, kept for replay on resume."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import QUESTION, RUN, THREAD
from threadkeep.sql.tables import hitl_answers

_LOAD = sa.select(hitl_answers.c.answer).where(
    hitl_answers.c.thread_id == THREAD,
    hitl_answers.c.run_key == RUN,
    hitl_answers.c.question_id == QUESTION,
)


def save_answer(conn: sa.Connection, hooks: Hooks, thread_id: str, run_key: str, question_id: str, answer: str) -> None:
    """Keep the answer, in the place of an earlier one."""
    now = rules.utc_now()
    hooks.lock_or_create(conn, thread_id, now)
    row = {
        "thread_id": thread_id,
        "run_key": run_key,
        "question_id": question_id,
        "answer": answer,
        "answered_at": now,
    }
    hooks.put(conn, hitl_answers, row)


def load_answer(conn: sa.Connection, hooks: Hooks, thread_id: str, run_key: str, question_id: str) -> str | None:
    """The answer's JSON text, or None when there is no answer."""
    key = {"thread": thread_id, "run": run_key, "question": question_id}
    return conn.execute(_LOAD, key).scalar_one_or_none()


def clear_answers(
    conn: sa.Connection, hooks: Hooks, thread_id: str, run_key: str, question_ids: Sequence[str] | None
) -> None:
    """Forget these answers of the run, or all of them."""
    if not hooks.lock(conn, thread_id, rules.utc_now()):
        return
    of_run = sa.delete(hitl_answers).where(hitl_answers.c.thread_id == thread_id, hitl_answers.c.run_key == run_key)
    if question_ids is None:
        conn.execute(of_run)
    else:
        for some in in_batches(question_ids):
            conn.execute(of_run.where(hitl_answers.c.question_id.in_(some)))
