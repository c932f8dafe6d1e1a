"""cubepi 0.7.0 on PostgreSQL."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgpack
from v3_database import OLD_WORKER, Seen, V3Database
from v3_rows import batches

PARTITIONS = 64

_TABLES = """
CREATE TABLE cubepi_threads (
    thread_id text PRIMARY KEY,
    parent_thread_id text REFERENCES cubepi_threads (thread_id),
    forked_at_seq bigint,
    extra jsonb NOT NULL DEFAULT '{}'::jsonb,
    pending_request jsonb,
    run_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE cubepi_messages (
    thread_id text NOT NULL REFERENCES cubepi_threads (thread_id) ON DELETE CASCADE,
    seq bigint NOT NULL,
    role text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, seq)
) PARTITION BY HASH (thread_id);
CREATE INDEX ix_cubepi_messages_metadata_gin ON cubepi_messages USING gin (metadata jsonb_path_ops);
CREATE TABLE cubepi_schema_version (version serial PRIMARY KEY);
INSERT INTO cubepi_schema_version VALUES (3);
"""

_LOCKS = """
SELECT coalesce(regexp_replace(named.relname, '_p[0-9]+$', ' (partitions)'), 'what the upgrade makes'), held.mode
FROM pg_locks held LEFT JOIN pg_class named ON named.oid = held.relation
WHERE held.pid = $1 AND held.locktype = 'relation' AND held.granted
  AND (named.oid IS NULL OR named.relkind IN ('r', 'p') AND named.relnamespace = 'public'::regnamespace)
GROUP BY 1, 2
"""

_OTHER_SESSION = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> ALL ($1::int[])
"""


class V3OnPostgresql(V3Database):
    strength = (
        "AccessShareLock",
        "RowShareLock",
        "RowExclusiveLock",
        "ShareUpdateExclusiveLock",
        "ShareLock",
        "ShareRowExclusiveLock",
        "ExclusiveLock",
        "AccessExclusiveLock",
    )
    kept = "relfilenode"

    async def open(self) -> None:
        self._reading, self._writing, self._looking = [await asyncpg.connect(self.url) for _ in range(3)]
        self._own = [connection.get_server_pid() for connection in (self._reading, self._writing, self._looking)]
        self._upgrade: int | None = None

    async def close(self) -> None:
        for connection in (self._reading, self._writing, self._looking):
            await connection.close()

    async def version(self) -> str:
        return f"PostgreSQL {(await self._looking.fetchval('SHOW server_version')).split()[0]}"

    async def create(self) -> None:
        await self._writing.execute(_TABLES)
        for number in range(PARTITIONS):
            await self._writing.execute(
                f"CREATE TABLE cubepi_messages_p{number:02} PARTITION OF cubepi_messages"
                f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
            )

    async def fill(self, messages: int, advance: Callable[[int], None]) -> None:
        columns = ["thread_id", "extra", "pending_request", "run_id", "created_at", "updated_at"]
        for threads, batch in batches(messages):
            await self._writing.copy_records_to_table(
                "cubepi_threads", columns=columns, records=[(*thread, thread.created_at) for thread in threads]
            )
            await self._writing.copy_records_to_table(
                "cubepi_messages",
                columns=["thread_id", "seq", "role", "metadata", "payload", "created_at"],
                records=[(*m[:4], msgpack.packb(m.document), m.created_at) for m in batch],
            )
            advance(len(batch))
        # As autovacuum would have done by now; so that it does not begin during the upgrade.
        await self._writing.execute("VACUUM (ANALYZE)")

    async def read(self, thread_id: str) -> int:
        rows = await self._reading.fetch(
            "SELECT payload, metadata FROM cubepi_messages WHERE thread_id = $1 ORDER BY seq", thread_id
        )
        return len(rows)

    async def write(self) -> None:
        async with self._writing.transaction():
            await self._writing.execute("SELECT pg_advisory_xact_lock(hashtext($1))", OLD_WORKER)
            await self._writing.execute(
                "INSERT INTO cubepi_threads (thread_id) VALUES ($1) ON CONFLICT DO NOTHING", OLD_WORKER
            )
            last = await self._writing.fetchval(
                "SELECT coalesce(max(seq), 0) FROM cubepi_messages WHERE thread_id = $1", OLD_WORKER
            )
            await self._writing.execute(
                "INSERT INTO cubepi_messages (thread_id, seq, role, metadata, payload)"
                " VALUES ($1, $2, 'user', '{}', $3)",
                OLD_WORKER,
                last + 1,
                b"\x80",
            )

    async def look(self) -> Seen:
        self._upgrade = await self._looking.fetchval(_OTHER_SESSION, self._own)
        if self._upgrade is None:
            return Seen()
        locks: list[Any] = await self._looking.fetch(_LOCKS, self._upgrade)
        memory = await asyncio.to_thread(self._memory_of, self._upgrade)
        return Seen([(name, mode) for name, mode in locks], {"server memory": memory} if memory else {})

    def _memory_of(self, process: int) -> int:
        """Of the session's process, without what all of them share. Nothing if the server is on another machine."""
        folder = Path("/proc") / str(process)
        try:
            if self.url.rpartition("/")[2].encode() not in (folder / "cmdline").read_bytes():
                return 0
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:
            return 0
        return int(status["RssAnon"].split()[0]) * 1024

    async def identities(self) -> dict[str, int]:
        rows = await self._looking.fetch(
            "SELECT relname, relfilenode FROM pg_class"
            " WHERE relname ~ 'cubepi_' AND relkind IN ('r', 'i') AND relfilenode <> 0"
        )
        return {name: int(node) for name, node in rows}

    async def size(self) -> int:
        return int(await self._looking.fetchval("SELECT pg_database_size(current_database())"))

    async def counted(self) -> tuple[int, int]:
        messages = await self._looking.fetchval("SELECT count(*) FROM cubepi_messages")
        return messages, int(await self._looking.fetchval("SELECT sum(last_seq) FROM cubepi_threads"))
