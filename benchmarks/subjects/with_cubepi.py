"""cubepi's checkpointers, on tables that its own models and helpers describe."""

import sqlite3
from importlib import import_module
from typing import Any, ClassVar, Self

import sqlalchemy as sa
from cubepi.checkpointer.sqlite import SQLiteCheckpointer
from cubepi.providers.base import AssistantMessage, TextContent, UserMessage
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable

from subjects.checkpointer import WithCheckpointer
from subjects.sample_messages import TEXT
from subjects.subject import POOL_SIZE, pragmas


class WithCubepi(WithCheckpointer):
    """Its schema is partitioned, as its documentation has it."""

    name = "cubepi"
    _origin: ClassVar[str] = "both are SQLite's defaults, as it comes"

    async def create_tables(self) -> None:
        if self.kind == "sqlite":
            return  # it makes its tables by itself
        driver = "postgresql+asyncpg" if self.kind == "postgresql" else "mysql+asyncmy"
        engine = create_async_engine(sa.make_url(self.url).set(drivername=driver))
        async with engine.begin() as conn:
            for statement in _schema("postgres" if self.kind == "postgresql" else "mysql"):
                await conn.exec_driver_sql(statement)
        await engine.dispose()

    def _path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    async def __aenter__(self) -> Self:
        if self.kind == "sqlite":
            self._cp = SQLiteCheckpointer(self._path())
        elif self.kind == "postgresql":
            from cubepi.checkpointer.postgres import PostgresCheckpointer

            self._cp = PostgresCheckpointer(self.url, max_pool_size=POOL_SIZE)
        else:
            from cubepi.checkpointer.mysql import MySQLCheckpointer

            self._cp = MySQLCheckpointer(self.url, max_pool_size=POOL_SIZE)
        await self._cp.__aenter__()
        return self

    async def settings(self) -> str | None:
        if self.kind != "sqlite":
            return None
        # Asked of another connection: its own is private, and sets neither.
        conn = sqlite3.connect(self._path())
        found = pragmas(conn)
        conn.close()
        return f"{found}: {self._origin}"

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        kinds = (UserMessage, AssistantMessage)
        return [kinds[number % 2](content=[TextContent(text=TEXT)], run_id=run_id) for number in range(count)]


class WithCubepiInWAL(WithCubepi):
    """On SQLite, with the journal that is our default. It has no option for that, but the mode stays with a file."""

    name = "cubepi (WAL)"
    _origin = "the mode was set in its file, the other is SQLite's default"

    async def create_tables(self) -> None:
        with sqlite3.connect(self._path()) as conn:
            conn.execute("PRAGMA journal_mode = WAL")
        conn.close()


def _schema(home: str) -> list[str]:
    """What a host's migration would run."""
    models = import_module(f"cubepi.checkpointer.{home}.models")
    helpers = import_module(f"cubepi.checkpointer.{home}.alembic_helpers")
    dialect = postgresql.dialect() if home == "postgres" else mysql.dialect()
    clauses: dict[str, str] = {}
    partitions: list[str] = []
    if home == "postgres":
        partitions = _apart(helpers.create_message_partitions_op()) + _apart(helpers.create_runs_partitions_op())
    else:
        clauses["cubepi_messages"] = helpers.messages_partition_clause()
        clauses["cubepi_runs"] = helpers.runs_partition_clause()
    tables = models.cubepi_metadata.sorted_tables
    create = [f"{CreateTable(table).compile(dialect=dialect)} {clauses.get(table.name, '')}" for table in tables]
    indexes = [str(CreateIndex(index).compile(dialect=dialect)) for table in tables for index in table.indexes]
    return [*create, *indexes, *partitions, *_apart(helpers.write_schema_version_op())]


def _apart(statements: str) -> list[str]:
    return [statement for statement in statements.split(";") if statement.strip()]
