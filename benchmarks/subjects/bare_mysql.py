"""The floor on MySQL and MariaDB: asyncmy without autocommit, and a COMMIT after one or two statements."""
# ruff: noqa: S608 - every statement is made of constants of this file

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self

import asyncmy
import sqlalchemy as sa

from subjects.floor import FORMAT_JSON, Connections, Floor, Refused, Row, merged, run_ids

# LAST_INSERT_ID(n) tells the allocated number in the reply to the statement that allocates it.
_ALLOCATE = """
INSERT INTO cubepi_threads (thread_id, extra, last_seq, created_at, updated_at)
VALUES (%s, '{}', LAST_INSERT_ID(%s), %s, %s)
ON DUPLICATE KEY UPDATE last_seq = LAST_INSERT_ID(last_seq + %s), updated_at = %s
"""
_COLUMNS = "(thread_id, seq, role, run_id, format, payload, metadata, created_at, message_id)"
_PLACES = "(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
_APPEND_ONE = f"INSERT INTO cubepi_messages {_COLUMNS} VALUES {_PLACES}"
_APPEND_ONE_OF_RUN = f"""
INSERT INTO cubepi_messages {_COLUMNS} SELECT {_PLACES[1:-1]} FROM DUAL WHERE NOT EXISTS (
    SELECT 1 FROM cubepi_runs WHERE thread_id = %s AND run_id = %s AND completion_time IS NOT NULL
)
"""
_COMPLETED = "SELECT 1 FROM cubepi_runs WHERE thread_id = %s AND run_id IN ({}) AND completion_time IS NOT NULL"
_CLAIM = "INSERT INTO cubepi_runs (thread_id, run_id, claimed_at) VALUES (%s, %s, %s)"
_ALLOCATE_COMPLETION = """
UPDATE cubepi_threads SET last_completion_seq = LAST_INSERT_ID(last_completion_seq + 1), updated_at = %s
WHERE thread_id = %s AND deleted_at IS NULL
"""
_COMPLETE = """
UPDATE cubepi_runs SET completion_time = %s, completion_seq = LAST_INSERT_ID()
WHERE thread_id = %s AND run_id = %s AND completion_time IS NULL
"""
_EXTRA = "SELECT extra FROM cubepi_threads WHERE thread_id = %s"
_SWAP_EXTRA = "UPDATE cubepi_threads SET extra = %s, updated_at = %s WHERE thread_id = %s AND extra = %s"
_NEW_EXTRA = "INSERT INTO cubepi_threads (thread_id, extra, created_at, updated_at) VALUES (%s, %s, %s, %s)"
_LOAD = """
SELECT 0, NULL, extra, parent_thread_id FROM cubepi_threads WHERE thread_id = %s
UNION ALL
SELECT seq, payload, NULL, NULL FROM cubepi_messages WHERE thread_id = %s
"""
_IN_SLICE = """
thread_id = %(source)s AND (run_id IS NULL OR run_id IN (
    SELECT run_id FROM cubepi_runs WHERE thread_id = %(source)s AND completion_seq <= %(cutoff)s
))
"""
_CUTOFF = """
SELECT extra, (SELECT completion_seq FROM cubepi_runs WHERE thread_id = %(source)s AND run_id = %(run)s)
FROM cubepi_threads WHERE thread_id = %(source)s AND deleted_at IS NULL FOR UPDATE
"""
_FORK_THREAD = f"""
INSERT INTO cubepi_threads
    (thread_id, parent_thread_id, forked_at_seq, extra, last_seq, last_completion_seq, created_at, updated_at)
SELECT %(target)s, %(source)s, coalesce(max(seq), 0), %(extra)s, count(*), %(cutoff)s, %(now)s, %(now)s
FROM cubepi_messages WHERE {_IN_SLICE}
"""
_FORK_MESSAGES = f"""
INSERT INTO cubepi_messages {_COLUMNS}
SELECT %(target)s, row_number() OVER (ORDER BY seq), role, run_id, format, payload, metadata, created_at, message_id
FROM cubepi_messages WHERE {_IN_SLICE}
"""
_FORK_RUNS = """
INSERT INTO cubepi_runs (thread_id, run_id, claimed_at, completion_time, completion_seq)
SELECT %(target)s, run_id, claimed_at, completion_time, completion_seq
FROM cubepi_runs WHERE thread_id = %(source)s AND completion_seq <= %(cutoff)s
"""
_DURABILITY = "SELECT version(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@innodb_doublewrite"


class BareMySQL(Floor):
    """Up to ten connections, each with a cursor of its own."""

    async def __aenter__(self) -> Self:
        self._connections: Connections[Any] = Connections(self._connect)
        return self

    async def _connect(self) -> tuple[Any, Any]:
        url = sa.make_url(self.url)
        to = {"host": url.host, "port": url.port or 3306, "user": url.username, "password": url.password or ""}
        conn = await asyncmy.connect(**to, db=url.database, charset="utf8mb4", autocommit=False)
        cursor = conn.cursor()
        # As Threadkeep has it: gap locks would make writers of different threads wait for each other.
        await cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return conn, cursor

    async def __aexit__(self, *error: object) -> None:
        for conn, cursor in self._connections.opened:
            await cursor.close()
            await conn.ensure_closed()

    async def settings(self) -> str | None:
        async with self._transaction() as cursor:
            await cursor.execute(_DURABILITY)
            version, flush, log, sync, twice = await cursor.fetchone()
        return (
            f"version={version}, innodb_flush_log_at_trx_commit={flush}, log_bin={log}, sync_binlog={sync}, "
            f"innodb_doublewrite={twice}"
        )

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        async with self._connections.lent() as (conn, cursor):
            try:
                yield cursor
            except BaseException:
                await conn.rollback()
                raise
            await conn.commit()

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        rows = self.encoded(messages)
        now = _now()
        count = len(rows)
        async with self._transaction() as cursor:
            await cursor.execute(_ALLOCATE, (thread_id, count, now, now, count, now))
            first = cursor.lastrowid - count + 1
            placed = [_placed(thread_id, seq, row, now) for seq, row in enumerate(rows, first)]
            named = run_ids(rows)
            if count > 1:
                if named:
                    places = ", ".join(["%s"] * len(named))
                    await cursor.execute(_COMPLETED.format(places), (thread_id, *named))
                    if await cursor.fetchone():
                        raise Refused(thread_id)
                statement = f"INSERT INTO cubepi_messages {_COLUMNS} VALUES {', '.join([_PLACES] * count)}"
                await cursor.execute(statement, tuple(value for row in placed for value in row))
            elif named:
                await cursor.execute(_APPEND_ONE_OF_RUN, (*placed[0], thread_id, named[0]))
            else:
                await cursor.execute(_APPEND_ONE, placed[0])
            if cursor.rowcount != count:
                raise Refused(thread_id)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        now = _now()
        async with self._transaction() as cursor:
            await cursor.execute(_ALLOCATE, (thread_id, 0, now, now, 0, now))
            await cursor.execute(_CLAIM, (thread_id, run_id, now))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        now = _now()
        async with self._transaction() as cursor:
            await cursor.execute(_ALLOCATE_COMPLETION, (now, thread_id))
            await cursor.execute(_COMPLETE, (now, thread_id, run_id))
            if cursor.rowcount != 1:
                raise Refused(run_id)

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        now = _now()
        async with self._transaction() as cursor:
            await cursor.execute(_EXTRA, (thread_id,))
            found = await cursor.fetchone()
            if found is None:
                await cursor.execute(_NEW_EXTRA, (thread_id, merged("{}", extra), now, now))
            else:
                await cursor.execute(_SWAP_EXTRA, (merged(found[0], extra), now, thread_id, found[0]))
            if cursor.rowcount != 1:
                raise Refused(thread_id)

    async def load(self, thread_id: str) -> Sequence[Any]:
        async with self._transaction() as cursor:
            await cursor.execute(_LOAD, (thread_id, thread_id))
            rows = await cursor.fetchall()
        _, *stored = sorted(rows, key=lambda row: row[0])
        return self.decoded([row[1] for row in stored])

    async def fork(self, source: str, target: str, after_run_id: str) -> None:
        arguments: dict[str, Any] = {"source": source, "target": target, "run": after_run_id, "now": _now()}
        async with self._transaction() as cursor:
            await cursor.execute(_CUTOFF, arguments)
            extra, cutoff = await cursor.fetchone()
            if cutoff is None:
                raise Refused(after_run_id)
            arguments |= {"extra": extra, "cutoff": cutoff}
            for statement in (_FORK_THREAD, _FORK_MESSAGES, _FORK_RUNS):
                await cursor.execute(statement, arguments)


def _placed(thread_id: str, seq: int, row: Row, now: datetime) -> tuple[Any, ...]:
    return (thread_id, seq, row.role, row.run_id, FORMAT_JSON, row.payload, row.metadata, now, row.message_id)


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


class BareMySQLOfDicts(BareMySQL):
    """With plain dicts."""

    of_dicts = True
