"""The floor on SQLite: Python's own driver on the event loop's own thread. At once means: in one transaction."""
# ruff: noqa: S608 - every statement is made of constants of this file

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Self

from subjects.floor import FORMAT_JSON, Floor, Refused, merged, run_ids
from subjects.subject import Script, pragmas

_ALLOCATE = """
INSERT INTO cubepi_threads (thread_id, extra, last_seq, created_at, updated_at) VALUES (?1, '{}', ?2, ?3, ?3)
ON CONFLICT (thread_id) DO UPDATE SET last_seq = last_seq + ?2, updated_at = ?3 WHERE deleted_at IS NULL
RETURNING last_seq
"""
_APPEND = """
INSERT INTO cubepi_messages (thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COMPLETED = "SELECT 1 FROM cubepi_runs WHERE thread_id = ? AND run_id IN ({}) AND completion_time IS NOT NULL"
_CLAIM = "INSERT INTO cubepi_runs (thread_id, run_id, claimed_at) VALUES (?, ?, ?)"
_ALLOCATE_COMPLETION = """
UPDATE cubepi_threads SET last_completion_seq = last_completion_seq + 1, updated_at = ?
WHERE thread_id = ? AND deleted_at IS NULL
"""
_COMPLETE = """
UPDATE cubepi_runs SET completion_time = ?1,
    completion_seq = (SELECT last_completion_seq FROM cubepi_threads WHERE thread_id = ?2)
WHERE thread_id = ?2 AND run_id = ?3 AND completion_time IS NULL
"""
_EXTRA = "SELECT extra FROM cubepi_threads WHERE thread_id = ?"
_PUT_EXTRA = """
INSERT INTO cubepi_threads (thread_id, extra, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)
ON CONFLICT (thread_id) DO UPDATE SET extra = ?2, updated_at = ?3
"""
_LOAD = """
SELECT 0, NULL, extra, parent_thread_id FROM cubepi_threads WHERE thread_id = ?1
UNION ALL
SELECT seq, payload, NULL, NULL FROM cubepi_messages WHERE thread_id = ?1
"""
_CUTOFF = "SELECT completion_seq FROM cubepi_runs WHERE thread_id = ? AND run_id = ?"
_IN_SLICE = """
thread_id = :source AND (run_id IS NULL OR run_id IN (
    SELECT run_id FROM cubepi_runs WHERE thread_id = :source AND completion_seq <= :cutoff
))
"""
_FORK_THREAD = f"""
INSERT INTO cubepi_threads
    (thread_id, parent_thread_id, forked_at_seq, extra, last_seq, last_completion_seq, created_at, updated_at)
SELECT :target, :source, coalesce(max(seq), 0), (SELECT extra FROM cubepi_threads WHERE thread_id = :source), count(*),
    :cutoff, :now, :now
FROM cubepi_messages WHERE {_IN_SLICE}
"""
_FORK_MESSAGES = f"""
INSERT INTO cubepi_messages (thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)
SELECT :target, row_number() OVER (ORDER BY seq), role, run_id, format, payload, metadata, created_at, message_id
FROM cubepi_messages WHERE {_IN_SLICE}
"""
_FORK_RUNS = """
INSERT INTO cubepi_runs (thread_id, run_id, claimed_at, completion_time, completion_seq)
SELECT :target, run_id, claimed_at, completion_time, completion_seq
FROM cubepi_runs WHERE thread_id = :source AND completion_seq <= :cutoff
"""


class BareSQLite(Floor):
    """One connection. What others do in 32 tasks, it does in groups of 32 with one commit each."""

    async def __aenter__(self) -> Self:
        self._conn = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        self._conn.execute("PRAGMA journal_mode = WAL")
        self._conn.execute("PRAGMA synchronous = FULL")
        self._conn.execute("PRAGMA foreign_keys = ON")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._conn.close()

    async def settings(self) -> str | None:
        return f"version={sqlite3.sqlite_version}, {pragmas(self._conn)}"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._conn.execute("ROLLBACK")
            raise
        self._conn.execute("COMMIT")

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        with self._transaction():
            self._append(thread_id, messages)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        with self._transaction():
            self._claim_run(thread_id, run_id)

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        with self._transaction():
            self._save_extra(thread_id, extra)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        with self._transaction():
            self._mark_run_complete(thread_id, run_id)

    async def play_at_once(self, scripts: Sequence[Script]) -> None:
        for group in zip_longest(*scripts):
            with self._transaction():
                for method, arguments in filter(None, group):
                    getattr(self, f"_{method}")(*arguments)

    def _append(self, thread_id: str, messages: list[Any]) -> None:
        rows = self.encoded(messages)
        now = _now()
        ((last,),) = self._conn.execute(_ALLOCATE, (thread_id, len(rows), now)).fetchall()
        if named := run_ids(rows):
            places = ", ".join("?" * len(named))
            if self._conn.execute(_COMPLETED.format(places), (thread_id, *named)).fetchone():
                raise Refused(thread_id)
        placed = [
            (thread_id, seq, row.role, row.run_id, FORMAT_JSON, row.payload, row.metadata, now, row.message_id)
            for seq, row in enumerate(rows, last - len(rows) + 1)
        ]
        if len(placed) == 1:
            self._conn.execute(_APPEND, placed[0])
        else:
            self._conn.executemany(_APPEND, placed)

    def _claim_run(self, thread_id: str, run_id: str) -> None:
        now = _now()
        self._conn.execute(_ALLOCATE, (thread_id, 0, now)).fetchall()
        self._conn.execute(_CLAIM, (thread_id, run_id, now))

    def _save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        found = self._conn.execute(_EXTRA, (thread_id,)).fetchone()
        self._conn.execute(_PUT_EXTRA, (thread_id, merged(found[0] if found else "{}", extra), _now()))

    def _mark_run_complete(self, thread_id: str, run_id: str) -> None:
        now = _now()
        self._conn.execute(_ALLOCATE_COMPLETION, (now, thread_id))
        if self._conn.execute(_COMPLETE, (now, thread_id, run_id)).rowcount != 1:
            raise Refused(run_id)

    async def load(self, thread_id: str) -> Sequence[Any]:
        rows = self._conn.execute(_LOAD, (thread_id,)).fetchall()
        _, *stored = sorted(rows, key=lambda row: row[0])
        return self.decoded([row[1] for row in stored])

    async def fork(self, source: str, target: str, after_run_id: str) -> None:
        with self._transaction():
            (cutoff,) = self._conn.execute(_CUTOFF, (source, after_run_id)).fetchone()
            if cutoff is None:
                raise Refused(after_run_id)
            arguments = {"source": source, "target": target, "cutoff": cutoff, "now": _now()}
            for statement in (_FORK_THREAD, _FORK_MESSAGES, _FORK_RUNS):
                self._conn.execute(statement, arguments)


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


class BareSQLiteOfDicts(BareSQLite):
    """With plain dicts."""

    of_dicts = True
