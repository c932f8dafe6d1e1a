"""From a URL to an open checkpointer, without changing a database that is only looked at."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

import threadkeep
from threadkeep.cli.failures import MISUSED, Problem, driver_text
from threadkeep.errors import CheckpointerError, CubepiSchemaError
from threadkeep.memory import MemoryCheckpointer
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql.checkpointer import SQLCheckpointer
from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.gate import check_schema
from threadkeep.sql.tables import messages, metadata
from threadkeep.urls import Backend, split_url, sqlite_path

AnyCheckpointer = MemoryCheckpointer | SQLCheckpointer

_NAMES = {Backend.SQLITE: "SQLite", Backend.POSTGRESQL: "PostgreSQL", Backend.MYSQL: "MySQL"}
_EXTRAS = {"asyncpg": "postgresql", "asyncmy": "mysql"}
_PORTS = {Backend.POSTGRESQL: 5432, Backend.MYSQL: 3306}


@dataclass(frozen=True, slots=True)
class Found:
    """What a database says of itself: the server, and its schema's version or what is wrong with it."""

    server: str
    schema: int | CubepiSchemaError


async def look_at(url: str) -> Found:
    """Look, change nothing. Raises Problem if there is no such database."""
    backend = backend_of(url)
    missing = missing_file(url)
    if missing is not None:  # and connecting would make it
        raise Problem(f"there is no file {missing}")

    def look(conn: sa.Connection) -> Found:
        name = "MariaDB" if getattr(conn.dialect, "is_mariadb", False) else _NAMES[backend]
        numbers = conn.dialect.server_version_info or ()
        server = f"{name} {'.'.join(str(number) for number in numbers[:3])}"
        try:
            return Found(server, check_schema(conn, hooks_of(conn.dialect)))
        except CubepiSchemaError as trouble:
            return Found(server, trouble)

    with connecting_to(url):
        return await on_connection(url, look)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AnyCheckpointer]:
    """The checkpointer of a database that is ready for it. What any class wrote comes as plain JSON.

    Raises CubepiSchemaError also for SQLite, which the checkpointer alone would bring to the newest schema.
    """
    found = await look_at(url)
    if isinstance(found.schema, CubepiSchemaError):
        raise found.schema
    async with threadkeep.open_checkpointer(url, message_type=Any, request_type=Any) as checkpointer:
        yield checkpointer


async def seqs(url: str, thread_id: str, count: int) -> list[int]:
    """The thread's first `count` seqs. A thread that cubepi forked has gaps in them."""
    statement = sa.select(messages.c.seq).where(messages.c.thread_id == thread_id)
    statement = statement.order_by(messages.c.seq).limit(count)
    return await on_connection(url, lambda conn: list(conn.scalars(statement)))


async def row_counts(url: str) -> dict[str, int]:
    """Our tables, and how many rows each has."""

    def count(conn: sa.Connection) -> dict[str, int]:
        counting = {name: sa.select(sa.func.count()).select_from(table) for name, table in metadata.tables.items()}
        return {name: conn.execute(statement).scalar_one() for name, statement in counting.items()}

    return await on_connection(url, count)


def missing_file(url: str) -> Path | None:
    """The SQLite file that this URL means and that is not there."""
    backend, rest = split_url(url)
    if backend is not Backend.SQLITE:
        return None
    path = Path(sqlite_path(rest)).absolute()
    return None if path.exists() else path


def backend_of(url: str) -> Backend:
    """The backend of a URL that outlives this program. Raises Problem."""
    if not re.match(r"[\w+.-]+://", url):
        url = ""  # what comes before "://" would be quoted, and here it may be a password
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
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        install = f'pip install "threadkeep[{_EXTRAS[error.name]}]"'
        raise Problem(f"{_NAMES[backend]} needs the driver {error.name}: {install}") from None
    except ValueError:
        if backend not in _PORTS:
            raise
        # A driver may quote the part it could not read, and that part may be the password's.
        raise Problem(
            f"the URL cannot be read: write {backend.value}://user:password@host:{_PORTS[backend]}/database,"
            " with %40 for @, %2F for /, %3F for ? and %23 for # in the password",
            MISUSED,
        ) from None
    except Exception as error:
        unreachable = _os_error(error)
        if unreachable is not None:
            raise Problem(f"no server answers at {_shown(url)}: {_reason(unreachable)}") from None
        text = driver_text(error) if isinstance(error, DBAPIError) else str(error)
        raise Problem(f"{_shown(url)}: {text or type(error).__name__}") from None


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error that a driver may have wrapped."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: OSError) -> str:
    # Not always what the error says itself: that may name what was taken for the host.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "it took too long"


def _shown(url: str) -> str:
    """The URL without user, password and options."""
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    if "@" in options:
        return f"{scheme}://…"  # where the password ends cannot be told
    _, at, host = place.rpartition("@")
    return f"{scheme}://{'***@' if at else ''}{host}"
