"""A program that says "ready", waits for a line, and then upgrades a database or opens it: `at_once.py VERB URL`."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import threadkeep
from threadkeep import TextContent, UserMessage


async def open_and_append(url: str) -> None:
    async with threadkeep.open_checkpointer(url) as checkpointer:
        await checkpointer.append("thread", [UserMessage(content=[TextContent(text="hello")])])


async def upgrade_on_an_engine_that_begins(url: str) -> None:
    """A host's engine on SQLite, with SQLAlchemy's recipe that makes it begin at BEGIN."""
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))

    @sa.event.listens_for(engine.sync_engine, "connect")
    def leave_it_to_us(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine.sync_engine, "begin")
    def begin(conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN")

    await threadkeep.upgrade(engine)
    await engine.dispose()


VERBS: dict[str, Callable[[str], Awaitable[object]]] = {
    "upgrade": threadkeep.upgrade,
    "upgrade on an engine that begins": upgrade_on_an_engine_that_begins,
    "open": open_and_append,
}


async def main(verb: str, url: str) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await VERBS[verb](url)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
