"""cubepi 0.7.0 on MySQL, and what differs on MariaDB."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import asyncmy
import msgpack
from asyncmy.errors import MySQLError
from sqlalchemy import make_url
from v3_database import OLD_WORKER, Seen, V3Database
from v3_rows import batches

_THREADS = """
CREATE TABLE cubepi_threads (
    thread_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    parent_thread_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT NULL,
    forked_at_seq BIGINT DEFAULT NULL,
    extra JSON NOT NULL DEFAULT (JSON_OBJECT()),
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    pending_request JSON DEFAULT NULL,
    run_id VARCHAR(64) DEFAULT NULL,
    PRIMARY KEY (thread_id),
    KEY fk_parent (parent_thread_id),
    CONSTRAINT fk_parent FOREIGN KEY (parent_thread_id) REFERENCES cubepi_threads (thread_id)
) ENGINE=InnoDB
"""
_MESSAGES = """
CREATE TABLE cubepi_messages (
    thread_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    seq BIGINT NOT NULL,
    role VARCHAR(32) NOT NULL,
    metadata JSON NOT NULL DEFAULT (JSON_OBJECT()),
    payload LONGBLOB NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (thread_id, seq)
) ENGINE=InnoDB PARTITION BY KEY (thread_id) PARTITIONS 64
"""
_VERSION = "CREATE TABLE cubepi_schema_version (version INT NOT NULL, PRIMARY KEY (version)) ENGINE=InnoDB"

_NOT_ALLOWED = 1227


class V3OnMysql(V3Database):
    strength = (
        "INTENTION_EXCLUSIVE",
        "SHARED",
        "SHARED_HIGH_PRIO",
        "SHARED_READ",
        "SHARED_WRITE",
        "SHARED_UPGRADABLE",
        "SHARED_READ_ONLY",
        "SHARED_NO_WRITE",
        "SHARED_NO_READ_WRITE",
        "EXCLUSIVE",
    )
    kept = "InnoDB TABLE_ID"

    name: ClassVar[str] = "MySQL"
    session: ClassVar[str] = (
        "SELECT processlist_id, max_total_memory FROM performance_schema.threads"
        " WHERE processlist_db = database() AND processlist_id NOT IN %s"
    )
    locks: ClassVar[str] = (
        "SELECT DISTINCT held.object_name, held.lock_type FROM performance_schema.metadata_locks held"
        " JOIN performance_schema.threads its ON its.thread_id = held.owner_thread_id"
        " WHERE its.processlist_id = %s AND held.object_type = 'TABLE' AND held.lock_status = 'GRANTED'"
        " AND held.object_schema = database()"
    )
    tables: ClassVar[str] = (
        "SELECT substring_index(name, '/', -1), table_id FROM information_schema.innodb_tables"
        " WHERE name LIKE concat(database(), '/%%')"
    )
    files: ClassVar[str] = (
        "SELECT sum(file_size) FROM information_schema.innodb_tablespaces WHERE name LIKE concat(database(), '/%%')"
    )

    async def open(self) -> None:
        url = make_url(self.url)
        opened = [
            await asyncmy.connect(
                host=url.host,
                port=url.port or 3306,
                user=url.username,
                password=url.password or "",
                db=url.database,
                autocommit=True,
            )
            for _ in range(3)
        ]
        self._reading, self._writing, self._looking = opened
        self._own = tuple(connection.thread_id() for connection in opened)

    async def close(self) -> None:
        for connection in (self._reading, self._writing, self._looking):
            await connection.ensure_closed()

    async def version(self) -> str:
        return f"{self.name} {(await self._ask('SELECT version()'))[0][0].split('-')[0]}"

    async def create(self) -> None:
        async with self._writing.cursor() as cursor:
            for statement in (_THREADS, _MESSAGES, _VERSION, "INSERT INTO cubepi_schema_version VALUES (3)"):
                await cursor.execute(statement)

    async def fill(self, messages: int, advance: Callable[[int], None]) -> None:
        async with self._writing.cursor() as cursor:
            await self._spare_the_binary_log(cursor)
            for threads, batch in batches(messages):
                await self._writing.begin()
                await cursor.executemany(
                    "INSERT INTO cubepi_threads (thread_id, extra, pending_request, run_id, created_at, updated_at)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    [(*thread, thread.created_at) for thread in threads],
                )
                await cursor.executemany(
                    "INSERT INTO cubepi_messages (thread_id, seq, role, metadata, payload, created_at)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    [(*m[:4], msgpack.packb(m.document), m.created_at) for m in batch],
                )
                await self._writing.commit()
                advance(len(batch))
            await cursor.execute("ANALYZE TABLE cubepi_threads, cubepi_messages")

    async def _spare_the_binary_log(self, cursor: Any) -> None:
        """Made-up messages would lie there for weeks after their database was dropped."""
        try:
            await cursor.execute("SET SESSION sql_log_bin = 0")
        except MySQLError as error:
            if error.args[0] != _NOT_ALLOWED:
                raise

    async def read(self, thread_id: str) -> int:
        async with self._reading.cursor() as cursor:
            await cursor.execute(
                "SELECT payload, metadata FROM cubepi_messages WHERE thread_id = %s ORDER BY seq", (thread_id,)
            )
            return len(await cursor.fetchall())

    async def write(self) -> None:
        await self._writing.begin()
        try:
            async with self._writing.cursor() as cursor:
                await cursor.execute(
                    "INSERT INTO cubepi_threads (thread_id) VALUES (%s) ON DUPLICATE KEY UPDATE thread_id = thread_id",
                    (OLD_WORKER,),
                )
                await cursor.execute(
                    "SELECT thread_id FROM cubepi_threads WHERE thread_id = %s FOR UPDATE", (OLD_WORKER,)
                )
                await cursor.execute(
                    "SELECT coalesce(max(seq), 0) FROM cubepi_messages WHERE thread_id = %s", (OLD_WORKER,)
                )
                (last,) = await cursor.fetchone()
                await cursor.execute(
                    "INSERT INTO cubepi_messages (thread_id, seq, role, metadata, payload)"
                    " VALUES (%s, %s, 'user', '{}', %s)",
                    (OLD_WORKER, last + 1, b"\x80"),
                )
            await self._writing.commit()
        except BaseException:
            await self._writing.rollback()
            raise

    async def look(self) -> Seen:
        sessions = await self._ask(self.session, self._own)
        if not sessions:
            return Seen()
        session, memory = sessions[0]
        figures = {"server memory": int(memory)}
        if self.blind:
            return Seen([], figures)
        held = await self._ask(self.locks, session)
        return Seen([("#sql…" if name.startswith("#sql") else name, lock) for name, lock in held], figures)

    async def identities(self) -> dict[str, int]:
        return {name: int(identity) for name, identity in await self._ask(self.tables)}

    async def size(self) -> int:
        return int((await self._ask(self.files))[0][0])

    async def counted(self) -> tuple[int, int]:
        ((messages,),) = await self._ask("SELECT count(*) FROM cubepi_messages")
        ((counted,),) = await self._ask("SELECT sum(last_seq) FROM cubepi_threads")
        return messages, int(counted)

    async def _ask(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        async with self._looking.cursor() as cursor:
            await cursor.execute(statement, values)
            rows: Sequence[tuple[Any, ...]] = await cursor.fetchall()
            return rows


class V3OnMariadb(V3OnMysql):
    strength = (
        "MDL_INTENTION_EXCLUSIVE",
        "MDL_SHARED",
        "MDL_SHARED_HIGH_PRIO",
        "MDL_SHARED_READ",
        "MDL_SHARED_WRITE",
        "MDL_SHARED_UPGRADABLE",
        "MDL_SHARED_READ_ONLY",
        "MDL_SHARED_NO_WRITE",
        "MDL_SHARED_NO_READ_WRITE",
        "MDL_EXCLUSIVE",
    )
    name = "MariaDB"
    session = "SELECT id, max_memory_used FROM information_schema.processlist WHERE db = database() AND id NOT IN %s"
    locks = (
        "SELECT DISTINCT table_name, lock_mode FROM information_schema.metadata_lock_info"
        " WHERE thread_id = %s AND lock_type = 'Table metadata lock' AND table_schema = database()"
    )
    tables = V3OnMysql.tables.replace("innodb_tables", "innodb_sys_tables")
    files = V3OnMysql.files.replace("innodb_tablespaces", "innodb_sys_tablespaces")

    async def open(self) -> None:
        await super().open()
        plugin = await self._ask("SELECT 1 FROM information_schema.plugins WHERE plugin_name = 'METADATA_LOCK_INFO'")
        if not plugin:
            self.blind = "MariaDB shows them only through its plugin metadata_lock_info, which is not installed"
