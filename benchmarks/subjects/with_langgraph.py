"""LangGraph's savers. Each append is a checkpoint with a new version of the channel that holds the new message."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6

from subjects.sample_messages import TEXT
from subjects.subject import POOL_SIZE, Subject

_CHANNEL = "messages"


class WithLangGraph(Subject):
    """A graph of its own would write more: pending writes, and all earlier messages once again."""

    name = "LangGraph"
    kinds = frozenset({"sqlite", "postgresql"})
    elsewhere = "it has no saver for this server"

    async def create_tables(self) -> None:
        async with self:
            await self._saver.setup()

    async def __aenter__(self) -> Self:
        self._saver: Any
        self._latest: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, str] = {}
        async with AsyncExitStack() as stack:
            if self.kind == "sqlite":
                from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

                path = self.url.removeprefix("sqlite:///")
                self._saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
                await self._saver.conn.execute("PRAGMA synchronous = FULL")
            else:
                from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
                from psycopg.rows import dict_row
                from psycopg_pool import AsyncConnectionPool

                as_documented = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
                pool: Any = AsyncConnectionPool(
                    self.url, min_size=1, max_size=POOL_SIZE, kwargs=as_documented, open=False
                )
                await stack.enter_async_context(pool)
                self._saver = AsyncPostgresSaver(pool)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def settings(self) -> str | None:
        if self.kind != "sqlite":
            return None
        found = []
        for name in ("journal_mode", "synchronous"):
            async with self._saver.conn.execute(f"PRAGMA {name}") as cursor:
                (value,) = await cursor.fetchone()
                found.append(f"{name}={value}")
        return ", ".join(found)

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        classes = (HumanMessage, AIMessage)
        return [classes[number % 2](content=TEXT, id=str(uuid4())) for number in range(count)]

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        version = self._saver.get_next_version(self._versions.get(thread_id), None)
        checkpoint = {
            "v": 4,
            "id": str(uuid6()),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {_CHANNEL: messages},
            "channel_versions": {_CHANNEL: version},
            "versions_seen": {},
            "updated_channels": [_CHANNEL],
        }
        metadata = {"source": "loop", "step": 1, "parents": {}}
        config = self._latest.get(thread_id) or _config(thread_id)
        self._latest[thread_id] = await self._saver.aput(config, checkpoint, metadata, {_CHANNEL: version})
        self._versions[thread_id] = version

    async def load(self, thread_id: str) -> Sequence[Any]:
        return _messages_in(await self._saver.aget_tuple(_config(thread_id)))

    async def count(self, thread_id: str) -> int:
        return sum([len(_messages_in(saved)) async for saved in self._saver.alist(_config(thread_id))])


def _config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def _messages_in(saved: Any) -> list[Any]:
    found: list[Any] = saved.checkpoint["channel_values"][_CHANNEL]
    if not all(isinstance(message, HumanMessage | AIMessage) for message in found):
        raise TypeError("a message has come back as something else")
    return found
