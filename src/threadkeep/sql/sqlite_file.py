"""How we open a SQLite database ourselves. (A host's engine opens its own way.)"""

from __future__ import annotations

import sqlite3
import time

IN_MEMORY = ":memory:"


def connect(path: str, lock_timeout: float) -> sqlite3.Connection:
    """A connection that begins nothing by itself and may be closed by another thread."""
    conn = sqlite3.connect(path, timeout=lock_timeout, isolation_level=None, check_same_thread=False)
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
            conn.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # SQLite does not wait here: another process may be opening the same new file.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
