"""cubepi 0.7.0 in a SQLite file."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from v3_database import OLD_WORKER, Seen, V3Database
from v3_rows import batches

_TABLES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    message_json TEXT NOT NULL,
    created_at REAL NOT NULL DEFAULT (julianday('now'))
);
CREATE TABLE thread_extra (thread_id TEXT PRIMARY KEY, extra_json TEXT NOT NULL DEFAULT '{}');
CREATE TABLE thread_pending_request (
    thread_id TEXT PRIMARY KEY,
    request_json TEXT NOT NULL,
    run_id TEXT,
    created_at REAL NOT NULL DEFAULT (julianday('now'))
);
"""

_JULIAN_DAY_OF_1970 = 2440587.5
_WRITE_LOCK = "write lock"

T = TypeVar("T")


class V3InSqlite(V3Database):
    strength = (_WRITE_LOCK,)
    kept = "nothing: the rows move"

    async def open(self) -> None:
        path = self.url.removeprefix("sqlite:///")
        self._files = [path, f"{path}-wal", f"{path}-journal"]
        # What writes also looks, one after the other: it would see its own lock.
        self._reader, self._writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._reading = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        # A short wait, to see when a write first meets the lock. cubepi's was five seconds.
        self._writing = sqlite3.connect(path, timeout=0.25, isolation_level=None, check_same_thread=False)

    async def close(self) -> None:
        for connection in (self._reading, self._writing):
            connection.close()
        for thread in (self._reader, self._writer):
            thread.shutdown()

    async def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    async def create(self) -> None:
        self._writing.executescript(_TABLES)

    async def fill(self, messages: int, advance: Callable[[int], None]) -> None:
        self._writing.execute("BEGIN")
        for threads, batch in batches(messages):
            self._writing.executemany(
                "INSERT INTO thread_extra VALUES (?, ?)", [(t.thread_id, t.extra) for t in threads if t.extra != "{}"]
            )
            self._writing.executemany(
                "INSERT INTO thread_pending_request VALUES (?, ?, ?, ?)",
                [(*thread[:1], *thread[2:4], _day(thread.created_at)) for thread in threads if thread.pending_request],
            )
            self._writing.executemany(
                "INSERT INTO messages (thread_id, message_json, created_at) VALUES (?, ?, ?)",
                [(m.thread_id, json.dumps(m.document), _day(m.created_at)) for m in batch],
            )
            advance(len(batch))
        self._writing.execute("COMMIT")

    async def read(self, thread_id: str) -> int:
        # Of the first batch only: cubepi had no index on threads, so each read would go through the whole file.
        statement = "SELECT message_json FROM messages WHERE thread_id = ? AND id <= 2000 ORDER BY id"

        def read() -> int:
            return len(self._reading.execute(statement, (thread_id,)).fetchall())

        return await _in(self._reader, read)

    async def write(self) -> None:
        def write() -> None:
            self._writing.execute(
                "INSERT INTO messages (thread_id, message_json) VALUES (?, ?)",
                (OLD_WORKER, '{"role": "user", "content": [], "metadata": {}}'),
            )

        await _in(self._writer, write)

    async def look(self) -> Seen:
        def is_locked() -> bool:
            try:
                self._writing.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY):
                    raise
                return True
            self._writing.execute("ROLLBACK")
            return False

        locks = [("the file", _WRITE_LOCK)] if await _in(self._writer, is_locked) else []
        return Seen(locks, {"disk": await self.size()})

    async def settle(self) -> None:
        self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    async def identities(self) -> dict[str, int]:
        return {}

    async def size(self) -> int:
        return sum(map(_size_of, self._files))

    async def counted(self) -> tuple[int, int]:
        (messages,) = self._reading.execute("SELECT count(*) FROM cubepi_messages").fetchone()
        (counted,) = self._reading.execute("SELECT sum(last_seq) FROM cubepi_threads").fetchone()
        return messages, counted


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _day(time: datetime) -> float:
    return time.timestamp() / 86400 + _JULIAN_DAY_OF_1970


async def _in(thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)
