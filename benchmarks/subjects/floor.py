"""The floor: the work that no library on these tables can leave out, by the bare driver in the fewest statements.

It encodes and decodes, allocates seqs without gaps, refuses completed runs and merges extra. It checks no ids, makes
nothing again after a conflict, and does not survive a broken connection. What it wrote is counted by Threadkeep.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import uuid4

from pydantic import TypeAdapter
from pydantic_core import from_json

import threadkeep
from subjects.sample_messages import plain_messages, typed_messages
from subjects.subject import POOL_SIZE, Subject
from subjects.with_threadkeep import WithThreadkeep, WithThreadkeepOfDicts
from threadkeep import Message

_MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
_MESSAGES: TypeAdapter[list[Any]] = TypeAdapter(list[Message])
FORMAT_JSON = 1

C = TypeVar("C")


class Refused(Exception):
    """The statement found that it must not be done."""


class Row(NamedTuple):
    """An encoded message."""

    role: str
    run_id: str | None
    payload: bytes
    metadata: str
    message_id: str


class Floor(Subject):
    """What the floors of all databases have in common."""

    name = "floor"
    of_dicts: ClassVar[bool] = False

    async def create_tables(self) -> None:
        await threadkeep.upgrade(self.url)

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return plain_messages(count) if self.of_dicts else typed_messages(count, run_id)

    def encoded(self, messages: list[Any]) -> list[Row]:
        """The rows to insert, but for their seqs."""
        if self.of_dicts:
            return [Row(item["role"], None, json.dumps(item).encode(), "{}", str(uuid4())) for item in messages]
        return [
            Row(message.role, message.run_id, _MESSAGE.dump_json(message), json.dumps(message.metadata), str(uuid4()))
            for message in messages
        ]

    def decoded(self, payloads: list[bytes]) -> list[Any]:
        """The messages of these rows."""
        joined = b"[" + b",".join(payloads) + b"]"
        return from_json(joined) if self.of_dicts else _MESSAGES.validate_json(joined)

    @asynccontextmanager
    async def checked(self) -> AsyncIterator[Subject]:
        # By Threadkeep: these are its tables, and it knows whether it could have written what is in them.
        with_threadkeep = (WithThreadkeepOfDicts if self.of_dicts else WithThreadkeep)(self.kind, self.url)
        async with with_threadkeep:
            yield with_threadkeep


def run_ids(rows: Sequence[Row]) -> list[str]:
    """The runs that these rows belong to."""
    return sorted({row.run_id for row in rows if row.run_id is not None})


def merged(extra: str, changes: dict[str, Any]) -> str:
    """The extra of a thread after a shallow merge."""
    return json.dumps({**json.loads(extra), **changes})


class Connections(Generic[C]):
    """Connections that are opened when they are needed and lent as they are: nothing is asked when one comes back."""

    def __init__(self, connect: Callable[[], Awaitable[C]]) -> None:
        self.opened: list[C] = []
        self._connect = connect
        self._places = asyncio.Semaphore(POOL_SIZE)
        self._idle: list[C] = []

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[C]:
        async with self._places:
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = await self._connect()
                self.opened.append(connection)
            try:
                yield connection
            finally:
                self._idle.append(connection)
