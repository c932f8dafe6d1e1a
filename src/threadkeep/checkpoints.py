"""`cp.checkpoints`: numbered moments of a thread, which cost what they add and not what was said before."""

from __future__ import annotations

import time
from typing import Any

from threadkeep.codec import Codec
from threadkeep.errors import UnstorableValueError
from threadkeep.ids import check_id
from threadkeep.records import Checkpoint, StoredCheckpoint
from threadkeep.store import Store


class Checkpoints:
    """The checkpoints of a checkpointer, or of a transaction."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def save(self, thread_id: str, *, plan: Any = None, budget_spent_usd: float = 0, state: Any = None) -> int:
        """Keep this moment of the thread: its transcript as far as it goes now, and what is given here, which is JSON.

        Returns the version: 1, 2, 3, …, and never one that was deleted. Creates the thread when needed.
        """
        if type(budget_spent_usd) not in (int, float):
            raise UnstorableValueError("budget_spent_usd", "it is not a number: pass an int or a float")
        return await self._store.save_checkpoint(
            check_id("thread_id", thread_id),
            self._codec.encode_value(plan, "plan"),
            self._codec.encode_value(budget_spent_usd, "budget_spent_usd"),
            self._codec.encode_value(state, "state"),
        )

    async def latest(self, thread_id: str, *, messages: bool = True) -> Checkpoint | None:
        """The newest version there is, or None. With `messages=False`, without the transcript."""
        return await self._get(thread_id, None, messages)

    async def get(self, thread_id: str, version: int, *, messages: bool = True) -> Checkpoint | None:
        """This version with the messages that the thread had then, or None."""
        return await self._get(thread_id, _checked(version), messages)

    async def list(self, thread_id: str) -> list[Checkpoint]:
        """All versions, oldest first, without their messages."""
        stored = await self._store.list_checkpoints(check_id("thread_id", thread_id))
        return [checkpoint_of(self._codec, thread_id, checkpoint) for checkpoint in stored]

    async def delete(self, thread_id: str, version: int) -> bool:
        """Forget this version; say whether there was one. No other version depends on it."""
        return await self._store.delete_checkpoint(check_id("thread_id", thread_id), _checked(version))

    async def _get(self, thread_id: str, version: int | None, messages: bool) -> Checkpoint | None:
        found = await self._store.get_checkpoint(check_id("thread_id", thread_id), version, messages)
        if found is None:
            return None
        stored, rows = found
        decoded = self._codec.decode_messages(thread_id, rows) if messages else None
        return checkpoint_of(self._codec, thread_id, stored, decoded)


def checkpoint_of(
    codec: Codec, thread_id: str, stored: StoredCheckpoint, messages: list[Any] | None = None
) -> Checkpoint:
    """The record that users get."""
    key = {"thread_id": thread_id, "version": stored.version}
    plan, budget_spent_usd, state = (
        codec.decode_value(text, "cubepi_checkpoints", key)
        for text in (stored.plan, stored.budget_spent_usd, stored.state)
    )
    return Checkpoint(thread_id, stored.version, stored.seq, plan, budget_spent_usd, state, stored.created_at, messages)


class Cadence:
    """Says when a periodic checkpoint is due: `if cadence.is_due(): await cp.checkpoints.save(…)`, once a turn."""

    def __init__(self, *, turns: int | None = None, seconds: float | None = None) -> None:
        """After so many turns, or so many seconds, whichever comes first."""
        if turns is None and seconds is None:
            raise ValueError("a cadence needs turns, seconds, or both")
        if (turns is not None and turns < 1) or (seconds is not None and seconds <= 0):
            raise ValueError("turns and seconds must be positive")
        self._turns = turns
        self._seconds = seconds
        self._begin()

    def is_due(self) -> bool:
        """Count a turn, and say whether a checkpoint is due. If it is, the next period begins."""
        self._count += 1
        by_turns = self._turns is not None and self._count >= self._turns
        by_time = self._seconds is not None and time.monotonic() - self._since >= self._seconds
        if by_turns or by_time:
            self._begin()
        return by_turns or by_time

    def _begin(self) -> None:
        self._count = 0
        self._since = time.monotonic()


def _checked(version: Any) -> int:
    if type(version) is not int or not 1 <= version < 2**63:
        raise ValueError(f"version is {version!r}: versions are 1, 2, 3, …")
    return version
