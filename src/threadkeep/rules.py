"""The decisions every backend takes alike, as functions of what it has just read under its lock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from threadkeep import json_values
from threadkeep.errors import (
    CheckpointCorruptionError,
    MessageTooLargeError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotCompletedError,
)
from threadkeep.records import RunRecord

_Encoded = TypeVar("_Encoded", str, bytes)

NO_RUN = ""
"""How the answers ledger writes "no run": no id is empty, and a key column cannot be null."""


def utc_now() -> datetime:
    """The time every row is stamped with: aware, UTC, to the microsecond."""
    return datetime.now(UTC)


def refuse_second_claim(thread_id: str, run_id: str, run: RunRecord | None) -> None:
    """A run is claimed once."""
    if run is None:
        return
    if run.completed_at is None:
        raise RunAlreadyClaimedError(thread_id, run_id)
    raise RunAlreadyCompletedError(thread_id, run_id)


def refuse_completed(thread_id: str, completed: Iterable[str]) -> None:
    """A completed run gets no more messages."""
    for run_id in completed:
        raise RunAlreadyCompletedError(thread_id, run_id)


def require_cutoff(thread_id: str, run_id: str, completion_seq: int | None) -> int:
    """A fork or snapshot is cut after a completed run: its completion_seq."""
    if completion_seq is None:
        raise RunNotCompletedError(thread_id, run_id)
    return completion_seq


def decoded_extra(thread_id: str, stored: str) -> dict[str, Any]:
    """The extra that is stored, or CheckpointCorruptionError."""
    try:
        extra = json_values.decode(stored)
    except ValueError as error:
        raise CheckpointCorruptionError("cubepi_threads", {"thread_id": thread_id}, f"extra: {error}") from error
    if not isinstance(extra, dict):
        raise CheckpointCorruptionError("cubepi_threads", {"thread_id": thread_id}, "extra is not a JSON object")
    return extra


def merged_extra(thread_id: str, stored: str, changes: str, max_bytes: int) -> str:
    """The stored extra with the changes merged in, one level deep. A key set to None is kept as None."""
    merged = {**decoded_extra(thread_id, stored), **json_values.decode(changes)}
    return within(json_values.encode_again(merged), "extra", max_bytes)


def forked_extra(thread_id: str, stored: str, metadata: str | None, max_bytes: int) -> str:
    """The extra of a fork: the source's, with the fork's metadata under "fork"."""
    return stored if metadata is None else merged_extra(thread_id, stored, f'{{"fork":{metadata}}}', max_bytes)


def within(encoded: _Encoded, what: str, max_bytes: int) -> _Encoded:
    """The encoded value, or MessageTooLargeError."""
    size = len(encoded) if isinstance(encoded, bytes) or encoded.isascii() else len(encoded.encode())
    if size > max_bytes:
        raise MessageTooLargeError(what, size, max_bytes)
    return encoded
