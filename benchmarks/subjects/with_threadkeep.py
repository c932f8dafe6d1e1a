"""Threadkeep itself."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import threadkeep
from subjects.sample_messages import plain_messages, typed_messages
from subjects.subject import Subject, pragmas
from threadkeep.sql.sqlite_file import connect


class WithThreadkeep(Subject):
    """With the library's own message classes."""

    name = "Threadkeep"

    async def create_tables(self) -> None:
        await threadkeep.upgrade(self.url)

    async def __aenter__(self) -> Self:
        self._cp: Any = self._checkpointer()
        await self._cp.__aenter__()
        return self

    def _checkpointer(self) -> Any:
        return threadkeep.open_checkpointer(self.url)

    async def __aexit__(self, *error: object) -> None:
        await self._cp.__aexit__(*error)

    async def settings(self) -> str | None:
        if self.kind != "sqlite":
            return None
        conn = connect(self.url.removeprefix("sqlite:///"), 5)
        found = pragmas(conn)
        conn.close()
        return found

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return typed_messages(count, run_id)

    async def append(self, thread_id: str, messages: list[Any]) -> None:
        await self._cp.append(thread_id, messages)

    async def load(self, thread_id: str) -> Sequence[Any]:
        return (await self._cp.load(thread_id)).messages

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        await self._cp.claim_run(thread_id, run_id)

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        await self._cp.save_extra(thread_id, extra)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        await self._cp.mark_run_complete(thread_id, run_id)

    async def fork(self, source: str, target: str, after_run_id: str) -> None:
        await self._cp.fork(source, target, after_run_id=after_run_id)

    async def completed(self, thread_id: str, run_id: str) -> tuple[int, Mapping[str, Any]]:
        in_runs = await self._cp.snapshot(thread_id, after_run_id=run_id)
        return len(in_runs), (await self._cp.load(thread_id)).extra


class WithThreadkeepOfDicts(WithThreadkeep):
    """With messages that are plain dicts, as the OpenAI SDK has them."""

    def _checkpointer(self) -> Any:
        return threadkeep.open_checkpointer(self.url, message_type=dict)

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return plain_messages(count)
