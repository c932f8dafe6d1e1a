"""The rows that cross between the front door and a store, and the records that users get. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

FORMAT_MSGPACK = 0
"""A message that cubepi wrote on a server. It stays as it is, and readable."""
FORMAT_JSON = 1
"""One message, one JSON document in UTF-8."""


class MessageRow(NamedTuple):
    """A message, encoded and ready for a store. `metadata` and `role` mirror the payload for queries."""

    payload: bytes
    format: int
    run_id: str | None
    role: str
    metadata: dict[str, Any]


class StoredMessage(NamedTuple):
    """A message as a store gives it back."""

    seq: int
    format: int
    payload: bytes
    mirror: Mirror | None = None
    """For a row that cubepi wrote: what its columns say."""


class Mirror(NamedTuple):
    """The columns beside a payload of cubepi's."""

    metadata: Any
    """Overrules the payload's: cubepi took it out of there."""
    run_id: str | None
    """The run that the message belongs to. The payload may spell it in another way."""


class StoredThread(NamedTuple):
    """What `load` needs, all from one snapshot."""

    parent_thread_id: str | None
    extra: str
    messages: list[StoredMessage]


class StoredPending(NamedTuple):
    """A pending request and the run that waits on it."""

    request: str
    run_id: str | None


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread without its messages. `forked_at_seq` is the parent's seq of the last message that was copied."""

    thread_id: str
    parent_thread_id: str | None
    forked_at_seq: int | None
    last_seq: int
    last_completion_seq: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: open while `completed_at` is None."""

    run_id: str
    claimed_at: datetime
    completed_at: datetime | None
    completion_seq: int | None
