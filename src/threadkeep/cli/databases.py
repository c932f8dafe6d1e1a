"""From a URL to an open checkpointer, without changing a database that is only looked at."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

import threadkeep
from threadkeep.cli.failures import MISUSED, Problem, driver_text
from threadkeep.errors import (
    CheckpointerError,
    CubepiSchemaError,
    CubepiSchemaMismatch,
    CubepiSchemaUninitialized,
)
from threadkeep.memory import MemoryCheckpointer
from threadkeep.migrations.upgrading import on_connection, schema_of_cubepi
from threadkeep.sql.checkpointer import SQLCheckpointer
from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.gate import WRITTEN_BY_CUBEPI, check_schema
from threadkeep.sql.tables import SCHEMA_VERSION, messages, metadata
from threadkeep.urls import Backend, split_url, sqlite_path

T = TypeVar("T")
AnyCheckpointer = MemoryCheckpointer | SQLCheckpointer

_NAMES = {Backend.SQLITE: "SQLite", Backend.POSTGRESQL: "PostgreSQL", Backend.MYSQL: "MySQL"}
_EXTRAS = {"asyncpg": "postgresql", "asyncmy": "mysql"}


@dataclass(frozen=True, slots=True)
class Found:
    """What a database says of itself: the server, and its schema's version or what is wrong with it."""

    server: str
    schema: int | CubepiSchemaError
    cubepi: int | None
    """The schema of cubepi's that it has, before the upgrade."""


async def look_at(url: str) -> Found:
    """Look, change nothing. Raises Problem if there is no such database."""
    backend = backend_of(url)
    missing = missing_file(url)
    if missing is not None:
        raise Problem(f"there is no file {missing}")

    def look(conn: sa.Connection) -> Found:
        name = "MariaDB" if getattr(conn.dialect, "is_mariadb", False) else _NAMES[backend]
        numbers = conn.dialect.server_version_info or ()
        server = f"{name} {'.'.join(str(number) for number in numbers[:3])}"
        cubepi = schema_of_cubepi(conn)
        try:
            return Found(server, check_schema(conn, hooks_of(conn.dialect)), cubepi)
        except CubepiSchemaUninitialized as trouble:
            told = trouble if cubepi is None else CubepiSchemaMismatch(SCHEMA_VERSION, cubepi, WRITTEN_BY_CUBEPI)
            return Found(server, told, cubepi)
        except CubepiSchemaError as trouble:
            return Found(server, trouble, cubepi)

    with connecting_to(url):
        return await _on(url, look)


@asynccontextmanager
async def opened(url: str, *, message_type: Any = Any) -> AsyncIterator[AnyCheckpointer]:
    """The checkpointer of a database that is ready for it. What any class wrote comes as plain JSON.

    Raises CubepiSchemaError also for SQLite, which the checkpointer alone would bring to the newest schema.
    """
    found = await look_at(url)
    if isinstance(found.schema, CubepiSchemaError):
        raise found.schema
    async with threadkeep.open_checkpointer(url, message_type=message_type, request_type=Any) as checkpointer:
        yield checkpointer


async def seqs(url: str, thread_id: str, count: int) -> list[int]:
    """The thread's first `count` seqs. A thread that cubepi forked has gaps in them."""
    statement = sa.select(messages.c.seq).where(messages.c.thread_id == thread_id)
    statement = statement.order_by(messages.c.seq).limit(count)
    return await _on(url, lambda conn: list(conn.scalars(statement)))


async def row_counts(url: str) -> dict[str, int]:
    """Our tables, and how many rows each has."""

    def count(conn: sa.Connection) -> dict[str, int]:
        counting = {name: sa.select(sa.func.count()).select_from(table) for name, table in metadata.tables.items()}
        return {name: conn.execute(statement).scalar_one() for name, statement in counting.items()}

    return await _on(url, count)


async def _on(url: str, work: Callable[[sa.Connection], T]) -> T:
    """Run work that only looks. A SQLite file stays as it is: not made, not upgraded, not even put into WAL mode."""
    path = _file(url)
    if path is None:
        return await on_connection(url, work)
    uri = f"{path.as_uri()}?mode=rw"  # "ro" would leave files beside one in WAL mode

    def on_the_file() -> T:
        engine = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=sa.NullPool)
        with engine.connect() as conn:
            return work(conn)

    return await asyncio.to_thread(on_the_file)


def missing_file(url: str) -> Path | None:
    """The SQLite file that this URL means and that is not there."""
    path = _file(url)
    return None if path is None or os.path.exists(path) else path  # Path.exists may raise


def require_folder_of(path: Path) -> None:
    """Raises Problem if this file cannot be made, because its folder is not there."""
    if not os.path.isdir(path.absolute().parent):
        raise Problem(f"there is no folder {path.absolute().parent}")


def _file(url: str) -> Path | None:
    backend, rest = split_url(url)
    return Path(sqlite_path(rest)).absolute() if backend is Backend.SQLITE else None


def backend_of(url: str) -> Backend:
    """The backend of a URL that outlives this program. Raises Problem."""
    try:
        backend, rest = split_url(url)
        in_memory = backend is Backend.MEMORY or (backend is Backend.SQLITE and sqlite_path(rest) == ":memory:")
    except ValueError as error:
        raise Problem(str(error), MISUSED) from None
    if in_memory:
        raise Problem("a database in memory ends with its program: give the URL of a file or a server", MISUSED)
    return backend


@contextmanager
def connecting_to(url: str) -> Iterator[None]:
    """Turn what goes wrong on the way to a database into a Problem. None of them can show a password."""
    backend = backend_of(url)
    try:
        yield
    except (Problem, CheckpointerError, CubepiSchemaError):
        raise
    except Exception as error:
        raise _explained(error, backend, url) from None


def _explained(error: Exception, backend: Backend, url: str) -> Problem:
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        install = f'pip install "threadkeep[{_EXTRAS[error.name]}]"'
        return Problem(f"{_NAMES[backend]} needs the driver {error.name}: {install}")
    unreachable = _os_error(error)
    if unreachable is not None:
        return Problem(f"cannot connect to {_shown(url)}: {_reason(unreachable)}")
    if isinstance(error, ValueError):
        # It may quote the part that could not be read, and that part may be of the password.
        return Problem(
            f"the URL, or a parameter after its ?, cannot be read: write {backend.value}://user:password@host:port/database,"
            " with %40 for @, %2F for /, %3F for ? and %23 for # in the password",
            MISUSED,
        )
    text = driver_text(error) if isinstance(error, DBAPIError) else str(error)
    return Problem(f"{_shown(url)}: {text or type(error).__name__}")


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error that a driver may have wrapped."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: OSError) -> str:
    # Rather the system's text than the error's own: that may name what was taken for the host.
    # Name look-ups and TLS have numbers of their own.
    if error.errno is None or isinstance(error, (socket.gaierror, ssl.SSLError)):
        return error.strerror or str(error) or "it took too long"
    return os.strerror(error.errno)


def _shown(url: str) -> str:
    """The URL without user, password and options."""
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    if "@" in options:
        return f"{scheme}://…"  # where the password ends cannot be told
    _, at, host = place.rpartition("@")
    return f"{scheme}://{'***@' if at else ''}{host}"
