"""What Threadkeep and cubepi have in common: the methods of a checkpointer."""

from collections.abc import Mapping, Sequence
from typing import Any

from subjects.subject import Subject


class WithCheckpointer(Subject):
    """A subject with a checkpointer, which it opens by itself."""

    _cp: Any

    async def __aexit__(self, *error: object) -> None:
        await self._cp.__aexit__(*error)

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
