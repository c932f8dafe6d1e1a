"""The floor on PostgreSQL: asyncpg, autocommit, and one data-modifying statement for each operation."""
# ruff: noqa: S608 - every statement is made of constants of this file

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

import asyncpg

from subjects.floor import FORMAT_JSON, Connections, Floor, Refused, merged, run_ids

_APPEND_ONE = f"""
WITH thread AS (
    INSERT INTO cubepi_threads (thread_id, extra, last_seq, created_at, updated_at)
    SELECT $1, '{{}}', 1, $2, $2 WHERE NOT EXISTS (
        SELECT FROM cubepi_runs WHERE thread_id = $1 AND run_id = $4 AND completion_time IS NOT NULL
    )
    ON CONFLICT (thread_id) DO UPDATE SET last_seq = cubepi_threads.last_seq + 1, updated_at = $2
    WHERE cubepi_threads.deleted_at IS NULL
    RETURNING last_seq
)
INSERT INTO cubepi_messages (thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)
SELECT $1, last_seq, $3, $4, {FORMAT_JSON}, $5, $6::text::jsonb, $2, $7 FROM thread
"""

_APPEND_MANY = f"""
WITH thread AS (
    INSERT INTO cubepi_threads (thread_id, extra, last_seq, created_at, updated_at)
    SELECT $1, '{{}}', $2, $3, $3 WHERE NOT EXISTS (
        SELECT FROM cubepi_runs WHERE thread_id = $1 AND run_id = ANY($4::text[]) AND completion_time IS NOT NULL
    )
    ON CONFLICT (thread_id) DO UPDATE SET last_seq = cubepi_threads.last_seq + $2, updated_at = $3
    WHERE cubepi_threads.deleted_at IS NULL
    RETURNING last_seq - $2 AS before
)
INSERT INTO cubepi_messages (thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)
SELECT $1, before + place, role, run_id, {FORMAT_JSON}, payload, metadata::jsonb, $3, message_id
FROM thread, unnest($5::text[], $6::text[], $7::bytea[], $8::text[], $9::text[])
    WITH ORDINALITY AS new (role, run_id, payload, metadata, message_id, place)
"""

_CLAIM = """
WITH thread AS (
    INSERT INTO cubepi_threads (thread_id, extra, created_at, updated_at) VALUES ($1, '{}', $3, $3)
    ON CONFLICT (thread_id) DO UPDATE SET updated_at = $3 WHERE cubepi_threads.deleted_at IS NULL
    RETURNING thread_id
)
INSERT INTO cubepi_runs (thread_id, run_id, claimed_at) SELECT thread_id, $2, $3 FROM thread
ON CONFLICT DO NOTHING
"""

_COMPLETE = """
WITH thread AS (
    UPDATE cubepi_threads SET last_completion_seq = last_completion_seq + 1, updated_at = $3
    WHERE thread_id = $1 AND deleted_at IS NULL AND EXISTS (
        SELECT FROM cubepi_runs WHERE thread_id = $1 AND run_id = $2 AND completion_time IS NULL
    )
    RETURNING last_completion_seq
)
UPDATE cubepi_runs SET completion_time = $3, completion_seq = thread.last_completion_seq
FROM thread WHERE thread_id = $1 AND run_id = $2
"""

_EXTRA = "SELECT extra FROM cubepi_threads WHERE thread_id = $1"
_PUT_EXTRA = """
INSERT INTO cubepi_threads (thread_id, extra, created_at, updated_at) VALUES ($1, $3, $4, $4)
ON CONFLICT (thread_id) DO UPDATE SET extra = $3, updated_at = $4
WHERE cubepi_threads.extra = $2 AND cubepi_threads.deleted_at IS NULL
"""

_LOAD = """
SELECT 0, NULL::bytea, extra, parent_thread_id FROM cubepi_threads WHERE thread_id = $1
UNION ALL
SELECT seq, payload, NULL, NULL FROM cubepi_messages WHERE thread_id = $1
"""

_IN_SLICE = """
thread_id = $1 AND (run_id IS NULL OR run_id IN (
    SELECT run_id FROM cubepi_runs WHERE thread_id = $1 AND completion_seq <= (SELECT completion_seq FROM cutoff)
))
"""
_FORK = f"""
WITH cutoff AS (
    SELECT completion_seq FROM cubepi_runs WHERE thread_id = $1 AND run_id = $3 AND completion_seq IS NOT NULL
), source AS (
    SELECT extra FROM cubepi_threads WHERE thread_id = $1 AND deleted_at IS NULL FOR UPDATE
), slice AS (
    SELECT max(seq) AS last, count(*) AS length FROM cubepi_messages WHERE {_IN_SLICE}
), thread AS (
    INSERT INTO cubepi_threads
        (thread_id, parent_thread_id, forked_at_seq, extra, last_seq, last_completion_seq, created_at, updated_at)
    SELECT $2, $1, coalesce(last, 0), extra, length, completion_seq, $4, $4 FROM source, cutoff, slice
    RETURNING thread_id
), copied_runs AS (
    INSERT INTO cubepi_runs (thread_id, run_id, claimed_at, completion_time, completion_seq)
    SELECT thread.thread_id, run_id, claimed_at, completion_time, runs.completion_seq
    FROM thread, cutoff, cubepi_runs AS runs
    WHERE runs.thread_id = $1 AND runs.completion_seq <= cutoff.completion_seq
)
INSERT INTO cubepi_messages (thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)
SELECT $2, row_number() OVER (ORDER BY seq), role, run_id, format, payload, metadata, created_at, message_id
FROM cubepi_messages WHERE EXISTS (SELECT FROM thread) AND {_IN_SLICE}
"""


class BarePostgreSQL(Floor):
    """Up to ten connections, each of which prepares a statement once."""

    async def __aenter__(self) -> Self:
        self._connections: Connections[Any] = Connections(lambda: asyncpg.connect(self.url))
        return self

    async def __aexit__(self, *error: object) -> None:
        for connection in self._connections.opened:
            await connection.close()

    async def settings(self) -> str | None:
        async with self._connections.lent() as conn:
            names = ("server_version", "synchronous_commit", "fsync", "full_page_writes")
            return ", ".join([f"{name}={await conn.fetchval(f'SHOW {name}')}" for name in names])

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        rows = self.encoded(messages)
        now = datetime.now(UTC)
        if len(rows) == 1:
            (row,) = rows
            await self._change(
                _APPEND_ONE, thread_id, now, row.role, row.run_id, row.payload, row.metadata, row.message_id
            )
            return
        roles, runs, payloads, metadata, ids = map(list, zip(*rows, strict=True))
        named = run_ids(rows)
        await self._change(
            _APPEND_MANY, thread_id, len(rows), now, named, roles, runs, payloads, metadata, ids, changed=len(rows)
        )

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        await self._change(_CLAIM, thread_id, run_id, datetime.now(UTC))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        await self._change(_COMPLETE, thread_id, run_id, datetime.now(UTC))

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        async with self._connections.lent() as conn:
            before = await conn.fetchval(_EXTRA, thread_id) or "{}"
            status = await conn.execute(_PUT_EXTRA, thread_id, before, merged(before, extra), datetime.now(UTC))
        _require(status, 1)

    async def load(self, thread_id: str) -> Sequence[Any]:
        async with self._connections.lent() as conn:
            rows = await conn.fetch(_LOAD, thread_id)
        _, *stored = sorted(rows, key=lambda row: row[0])
        return self.decoded([row[1] for row in stored])

    async def fork(self, source: str, target: str, after_run_id: str) -> None:
        async with self._connections.lent() as conn:
            await conn.execute(_FORK, source, target, after_run_id, datetime.now(UTC))

    async def _change(self, statement: str, *arguments: Any, changed: int = 1) -> None:
        async with self._connections.lent() as conn:
            status = await conn.execute(statement, *arguments)
        _require(status, changed)


def _require(status: str, changed: int) -> None:
    if int(status.rpartition(" ")[2]) != changed:
        raise Refused(status)


class BarePostgreSQLOfDicts(BarePostgreSQL):
    """With plain dicts."""

    of_dicts = True
