"""The old release in whose environment this runs: cubepi, or cubeloop as it was called later.

Imported by name at run time, so that no type checker or linter of ours needs it installed.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlparse

NAME = "cubepi" if find_spec("cubepi") else "cubeloop"

HOMES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "mysql": "mysql",
    # To these releases MariaDB is a MySQL.
    "mariadb": "mysql",
}
CLASSES = {"sqlite": "SQLiteCheckpointer", "postgres": "PostgresCheckpointer", "mysql": "MySQLCheckpointer"}


def module(path: str) -> Any:
    """A module of the release: `module("hitl.types")`."""
    return import_module(f"{NAME}.{path}")


def checkpointer(kind: str, url: str) -> Any:
    """The release's own checkpointer, not yet open."""
    home = HOMES[kind]
    place = path_of(url) if kind == "sqlite" else url
    return getattr(module(f"checkpointer.{home}"), CLASSES[home])(place)


def can(operation: str) -> bool:
    """Whether this release has that method."""
    return hasattr(module("checkpointer.memory").MemoryCheckpointer, operation)


def path_of(url: str) -> str:
    """The file of a SQLite URL."""
    return url.removeprefix("sqlite:///")


class Sql:
    """A plain connection beside the release's own: for its tables, and for what it has no method to ask."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self._url = url
        self._connection: Any = None

    async def __aenter__(self) -> "Sql":
        if self.kind == "sqlite":
            self._connection = sqlite3.connect(path_of(self._url))
        elif self.kind == "postgresql":
            self._connection = await import_module("asyncpg").connect(self._url)
        else:
            url = urlparse(self._url)
            self._connection = await import_module("aiomysql").connect(
                host=url.hostname,
                port=url.port or 3306,
                user=unquote(url.username or ""),
                password=unquote(url.password or ""),
                db=url.path.lstrip("/"),
                autocommit=True,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.kind == "postgresql":
            await self._connection.close()
        else:
            self._connection.close()

    async def run(self, script: str) -> None:
        """Run statements that have no `;` inside them."""
        if self.kind == "postgresql":
            await self._connection.execute(script)
            return
        for statement in filter(str.strip, script.split(";")):
            await self.rows(statement)

    async def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        """The rows that it gives."""
        if self.kind == "postgresql":
            return [tuple(row) for row in await self._connection.fetch(statement)]
        if self.kind == "sqlite":
            return list(self._connection.execute(statement))
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())

    async def tables(self) -> set[str]:
        """The names of the tables that are there."""
        statement = {
            "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
            "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
        }.get(self.kind, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
        return {name for (name,) in await self.rows(statement)}


async def close_quietly(opened: Any) -> None:
    """Close a checkpointer whose database may have changed under it."""
    with suppress(Exception):
        await opened.__aexit__(None, None, None)
