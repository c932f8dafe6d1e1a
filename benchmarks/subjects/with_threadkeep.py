"""Threadkeep itself."""

from typing import Any, Self

import threadkeep
from subjects.checkpointer import WithCheckpointer
from subjects.sample_messages import plain_messages, typed_messages
from subjects.subject import pragmas
from threadkeep.sql.sqlite_file import connect


class WithThreadkeep(WithCheckpointer):
    """With the library's own message classes."""

    name = "Threadkeep"

    async def create_tables(self) -> None:
        await threadkeep.upgrade(self.url)

    async def __aenter__(self) -> Self:
        self._cp = self._checkpointer()
        await self._cp.__aenter__()
        return self

    def _checkpointer(self) -> Any:
        return threadkeep.open_checkpointer(self.url)

    async def settings(self) -> str | None:
        if self.kind != "sqlite":
            return None
        conn = connect(self.url.removeprefix("sqlite:///"), 5)
        found = pragmas(conn)
        conn.close()
        return found

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return typed_messages(count, run_id)


class WithThreadkeepOfDicts(WithThreadkeep):
    """With messages that are plain dicts, as the OpenAI SDK has them."""

    def _checkpointer(self) -> Any:
        return threadkeep.open_checkpointer(self.url, message_type=dict)

    def messages(self, count: int, run_id: str | None = None) -> list[Any]:
        return plain_messages(count)
