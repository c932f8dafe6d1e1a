"""What every subject of the comparison can be asked to do."""

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Self

POOL_SIZE = 10
"""Connections, for every subject that has a pool."""


class Call(NamedTuple):
    """One call of a subject's method, made ready before the clock runs."""

    method: str
    arguments: tuple[Any, ...]


Script = Sequence[Call]
"""Calls that are made one after another, as one conversation makes them."""


class Subject(ABC):
    """A way to keep threads in a database: a library's, or the bare driver's."""

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
    """Where it works by its own word. It is left out elsewhere, and `elsewhere` says why."""
    elsewhere: ClassVar[str] = ""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    async def create_tables(self) -> None:
        """Once for each database, before it is first entered."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return

    async def settings(self) -> str | None:
        """What it asks of the server for durability, for the reader; None if there is nothing to tell."""
        return None

    @abstractmethod
    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        """Messages of its own classes, of 1 KB each, every second one the assistant's."""

    @abstractmethod
    async def append(self, thread_id: str, messages: list[Any]) -> None: ...

    @abstractmethod
    async def load(self, thread_id: str) -> Sequence[Any]:
        """All messages of the thread."""

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        raise NotImplementedError

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        raise NotImplementedError

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        raise NotImplementedError

    async def fork(self, source: str, target: str, after_run_id: str) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def checked(self) -> AsyncIterator["Subject"]:
        """Who counts what this one has written."""
        yield self

    async def count(self, thread_id: str) -> int:
        """How many messages are really there."""
        return len(await self.load(thread_id))

    async def completed(self, thread_id: str, run_id: str) -> tuple[int, Mapping[str, Any]]:
        """How many messages belong to runs up to this one, all of them completed; and the thread's extra."""
        raise NotImplementedError

    async def play(self, script: Script) -> None:
        """Make the calls, one after another."""
        for method, arguments in script:
            await getattr(self, method)(*arguments)

    async def play_at_once(self, scripts: Sequence[Script]) -> None:
        """Play each script in a task of its own."""
        await asyncio.gather(*(self.play(script) for script in scripts))


def pragmas(conn: sqlite3.Connection) -> str:
    """What this connection does for durability; synchronous=2 is FULL."""
    names = ("journal_mode", "synchronous")
    return ", ".join(f"{name}={conn.execute(f'PRAGMA {name}').fetchone()[0]}" for name in names)
