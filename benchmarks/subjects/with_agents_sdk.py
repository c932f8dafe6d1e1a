"""The SQLAlchemy session of the OpenAI Agents SDK: a session for each thread, one engine for all."""

from collections.abc import Sequence
from typing import Any, Self

import sqlalchemy as sa
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from subjects.sample_messages import plain_messages
from subjects.subject import POOL_SIZE, Subject

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class WithAgentsSDK(Subject):
    """It keeps plain dicts, and knows no runs, no extra and no forks."""

    name = "OpenAI SDK"

    def _engine(self) -> AsyncEngine:
        url = sa.make_url(self.url).set(drivername=_DRIVERS.get(self.kind, "mysql+aiomysql"))
        return create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0)

    async def create_tables(self) -> None:
        engine = self._engine()
        try:
            # Whatever is asked first makes the tables.
            await SQLAlchemySession("nobody", engine=engine, create_tables=True).get_items()
        finally:
            await engine.dispose()

    async def __aenter__(self) -> Self:
        self._shared = self._engine()
        self._sessions: dict[str, SQLAlchemySession] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._shared.dispose()

    async def settings(self) -> str | None:
        if self.kind != "sqlite":
            return None
        async with self._shared.connect() as conn:
            journal = (await conn.exec_driver_sql("PRAGMA journal_mode")).scalar()
            synchronous = (await conn.exec_driver_sql("PRAGMA synchronous")).scalar()
        return f"journal_mode={journal}, synchronous={synchronous}, as it comes"

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return plain_messages(count)

    def _session(self, thread_id: str) -> SQLAlchemySession:
        if thread_id not in self._sessions:
            self._sessions[thread_id] = SQLAlchemySession(thread_id, engine=self._shared)
        return self._sessions[thread_id]

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        await self._session(thread_id).add_items(messages)

    async def load(self, thread_id: str) -> Sequence[Any]:
        return await self._session(thread_id).get_items()
