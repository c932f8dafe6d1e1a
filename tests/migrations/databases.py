"""A database under test: how to reach it, and what is in it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from backends import CLASSES, DRIVERS
from threadkeep import SQLiteCheckpointer, TextContent, UserMessage
from threadkeep.migrations.upgrading import alembic_config, on_connection
from threadkeep.sql.tables import SCHEMA_VERSION, metadata

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """One database."""

    kind: str
    url: str

    @classmethod
    def of_file(cls, path: Path) -> "Place":
        return cls("sqlite", f"sqlite:///{path}")

    @property
    def path(self) -> Path:
        """The file, on SQLite."""
        return Path(self.url.removeprefix("sqlite:///"))

    @asynccontextmanager
    async def engine(self, **options: Any) -> AsyncIterator[AsyncEngine]:
        """An engine as a host would make it."""
        rest = self.url.partition("://")[2]
        engine = create_async_engine(f"{DRIVERS.get(self.kind, 'sqlite+aiosqlite')}://{rest}", **options)
        try:
            yield engine
        finally:
            await engine.dispose()

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        async with self.engine() as engine, engine.begin() as conn:
            return await conn.run_sync(work)

    async def execute(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run the statements; the rows of the last one."""

        def execute(conn: sa.Connection) -> list[tuple[Any, ...]]:
            results = [conn.exec_driver_sql(statement) for statement in statements]
            return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []

        return await self.run(execute)

    def checkpointer(self, engine: AsyncEngine | None = None) -> Any:
        """A checkpointer on this database, or on this engine of the host's."""
        if self.kind == "sqlite":
            return SQLiteCheckpointer(engine or self.path)
        return CLASSES[self.kind](engine or self.url)


def to(revision: str) -> Callable[[sa.Connection], None]:
    """What brings a database up to this revision."""
    return lambda conn: command.upgrade(alembic_config(conn), revision)


def back_to(revision: str) -> Callable[[sa.Connection], None]:
    """What brings it down to this one."""
    return lambda conn: command.downgrade(alembic_config(conn), revision)


def schema_of(conn: sa.Connection) -> dict[str, Any]:
    """Everything there is to see of the schema, in an order of its own."""
    seen = sa.inspect(conn)
    return {
        table: {
            "columns": {
                column["name"]: (
                    str(column["type"].compile(conn.dialect)),
                    getattr(column["type"], "collation", None),
                    column["nullable"],
                    column["default"],
                )
                for column in seen.get_columns(table)
            },
            "key": seen.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(
                (index["name"], index["column_names"], index["unique"]) for index in seen.get_indexes(table)
            ),
            "foreign keys": sorted(
                (key["constrained_columns"], key["referred_table"], key["options"].get("ondelete"))
                for key in seen.get_foreign_keys(table)
            ),
        }
        for table in seen.get_table_names()
    }


async def prove_that_it_is_what_the_model_describes(place: Place) -> None:
    """More closely than `alembic check` looks: collations, defaults and what a foreign key does. The rows are lost."""
    made = await place.run(schema_of)
    assert set(made) == {*metadata.tables, "cubepi_alembic_version"}

    def describe_the_model(conn: sa.Connection) -> dict[str, Any]:
        metadata.drop_all(conn)
        metadata.create_all(conn)
        return schema_of(conn)

    assert made == await place.run(describe_the_model)


async def drift_of(place: Place) -> str:
    """What `alembic check` would report, or nothing."""
    try:
        await on_connection(place.url, lambda conn: command.check(alembic_config(conn)))
    except CommandError as error:
        return str(error)
    return ""


async def prove_that_it_works(place: Place, engine: AsyncEngine | None = None) -> None:
    """Open a checkpointer and use every table."""
    async with place.checkpointer(engine) as checkpointer:
        await checkpointer.claim_run("thread", "run")
        await checkpointer.append("thread", [UserMessage(content=[TextContent(text="hello")], run_id="run")])
        await checkpointer.mark_run_complete("thread", "run")
        await checkpointer.save_hitl_answer("thread", "question", True)
        await checkpointer.ledger.issue("thread", "call", "tool", {})
        await checkpointer.checkpoints.save("thread")
        await _use_the_log(checkpointer)
        await checkpointer.fork("thread", "copy", after_run_id="run")
        data = await checkpointer.load("copy")
        assert [message.content[0].text for message in data.messages] == ["hello"]
        assert await checkpointer.threads.delete("copy")
        assert await checkpointer.threads.delete("thread")


async def _use_the_log(checkpointer: Any) -> None:
    await checkpointer.threads.update("thread", title="Greetings", metadata={"kind": "test"})
    assert [hit.thread_id for hit in await checkpointer.threads.search("greet")] == ["thread"]
    assert [record.thread_id for record in await checkpointer.threads.list(metadata={"kind": "test"})] == ["thread"]
    (message,) = await checkpointer.messages.list("thread")
    await checkpointer.parts.append("thread", message.message_id, "text", "hello")
    await checkpointer.usage.record("thread", message, input_tokens=1)
    item = await checkpointer.context.swap("thread", [message], UserMessage(content=[TextContent(text="A greeting.")]))
    assert await checkpointer.context.items("thread") == [item]
    reference = await checkpointer.files.put("notes.txt", content=b"notes")
    assert await checkpointer.files.delete(reference.content_id)


async def version_rows(place: Place) -> Sequence[tuple[Any, ...]]:
    return await place.execute("SELECT version, oldest_library FROM cubepi_schema_version")


NEWEST = [(SCHEMA_VERSION, "0.1.0")]


async def indexes_of_messages(place: Place, *columns: str) -> list[str]:
    """Those on these columns that the messages have, and on PostgreSQL each of their partitions."""

    def look(conn: sa.Connection) -> list[str]:
        seen = sa.inspect(conn)
        return [
            str(index["name"])
            for table in seen.get_table_names()
            if table.startswith("cubepi_messages")
            for index in seen.get_indexes(table)
            if index["column_names"] == [*columns]
        ]

    return await place.run(look)
