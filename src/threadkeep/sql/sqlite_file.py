"""How we open a SQLite database ourselves. (A host's engine opens its own way.)"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

IN_MEMORY = ":memory:"


class _WholeCursor(sqlite3.Cursor):
    """Reads all rows at once.

    A statement that is half read keeps its snapshot, whatever becomes of the transaction, until somebody drops it: who
    stops at a row that is wrong, and keeps the error, would let nobody write on this connection, or see what is new.
    """

    _rows: Iterator[Any] = iter(())

    def execute(self, sql: str, parameters: Any = ()) -> Self:
        super().execute(sql, parameters)
        self._rows = iter(super().fetchall())
        return self

    def __next__(self) -> Any:
        return next(self._rows)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return [*islice(self._rows, size or self.arraysize)]

    def fetchall(self) -> list[Any]:
        return [*self._rows]


class WholeReads(sqlite3.Connection):
    """For operations, of which every one reads no more than it needs."""

    def cursor(self, factory: Any = _WholeCursor) -> Any:
        return super().cursor(factory)


def connect(path: str, lock_timeout: float, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection that begins nothing by itself and may be closed by another thread."""
    conn = sqlite3.connect(path, timeout=lock_timeout, isolation_level=None, check_same_thread=False, factory=kind)
    try:
        if path != IN_MEMORY:
            _write_ahead(conn, time.monotonic() + lock_timeout)
        conn.execute("PRAGMA synchronous = FULL")  # what was answered survives a power cut
        conn.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        conn.close()
        raise
    return conn


def _write_ahead(conn: sqlite3.Connection, deadline: float) -> None:
    """Set the file, once and for good, to the mode in which readers and the writer do not wait for each other."""
    while conn.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            ((mode,),) = conn.execute("PRAGMA journal_mode = WAL").fetchall()
            if mode != "wal":
                raise sqlite3.NotSupportedError(f"its journal mode stays {mode}, where readers and writers need WAL")
        except sqlite3.OperationalError as error:
            # SQLite does not wait here: another process may be opening the same new file.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
