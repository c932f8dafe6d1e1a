"""The contract: what every backend promises. `threadkeep.testing` holds a test for each sentence here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass
class CheckpointData:
    """A thread as it was at one moment. It is the caller's to change: nothing in it is shared with the store."""

    messages: list[Any] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    parent_thread_id: str | None = None


@runtime_checkable
class MinimalCheckpointer(Protocol):
    """The three methods a backend must have; an agent can run on these alone."""

    async def load(self, thread_id: str) -> CheckpointData | None:
        """All messages in append order, `extra` and `parent_thread_id`, from one snapshot.

        None for a thread that does not exist. A thread exists from its first write of any kind.
        """
        ...

    async def append(self, thread_id: str, messages: Sequence[Any]) -> None:
        """Add messages at the next seqs, all or none; create the thread when needed. An empty list does nothing.

        A message of a completed run raises RunAlreadyCompletedError and nothing is written, also when the completion
        commits while the append waits. A run that was never claimed may be appended to; it is in no snapshot.
        """
        ...

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        """Merge into the thread's extra, one level deep; create the thread when needed, also for `{}`.

        Concurrent merges of different keys both survive. A key set to None is kept as None.
        """
        ...


@runtime_checkable
class Checkpointer(MinimalCheckpointer, Protocol):
    """The whole protocol. Methods beyond the minimal three are optional for backends other than ours."""

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Claim the run; create the thread when needed. Exactly one of any number of concurrent claims wins.

        Raises RunAlreadyClaimedError while the run is open, RunAlreadyCompletedError once it is complete.
        """
        ...

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete the run and give it the thread's next completion_seq. Completing it again changes nothing.

        Raises RunNotClaimedError.
        """
        ...

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Any]:
        """The messages `fork` would copy, in seq order.

        These are the legacy ones, and those of runs that were completed no later than `after_run_id`.
        Raises ThreadNotFoundError; RunNotCompletedError when that run is unknown, open or abandoned.
        """
        ...

    async def fork(
        self,
        src_thread_id: str,
        new_thread_id: str,
        *,
        after_run_id: str,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Copy that slice into a new thread, with seqs from 1 and the run rows that belong to it.

        Copies `extra`; `metadata` is then written under `extra["fork"]`. Records `parent_thread_id`, and as
        `forked_at_seq` the source seq of the last copied message (0 when none was). Pending request, answers and
        open runs stay behind; the source is untouched. Raises as `snapshot` does, and ThreadAlreadyExistsError.
        """
        ...

    async def save_pending_request(self, thread_id: str, request: Any | None, *, run_id: str | None = None) -> None:
        """Set the pending request and its run together; a second request replaces the first.

        None clears both (run_id is then ignored) and creates no thread.
        """
        ...

    async def clear_pending_request_if_matches(self, thread_id: str, *, question_id: str, run_id: str | None) -> bool:
        """Clear the pending request in one step if both ids still match; say whether it did."""
        ...

    async def load_pending(self, thread_id: str) -> tuple[Any, str | None] | None:
        """`(request, run_id)` from one row, or None."""
        ...

    async def load_pending_request(self, thread_id: str) -> Any | None:
        """The pending request, or None."""
        ...

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """The run that waits on the pending request; None when nothing is pending."""
        ...

    async def save_hitl_answer(
        self, thread_id: str, question_id: str, answer: Any, *, run_id: str | None = None
    ) -> None:
        """Keep an answer for replay on resume. A second answer to the same question replaces the first."""
        ...

    async def load_hitl_answer(self, thread_id: str, question_id: str, *, run_id: str | None = None) -> Any | None:
        """The stored answer, or None. A run_id of None is a key of its own."""
        ...

    async def has_hitl_answer(self, thread_id: str, question_id: str, *, run_id: str | None = None) -> bool:
        """Whether there is an answer: tells a stored None from none."""
        ...

    async def clear_hitl_answers(
        self, thread_id: str, question_ids: Iterable[str] | None = None, *, run_id: str | None = None
    ) -> None:
        """Forget the answers to these questions, or all of this run's (of no run's, when run_id is None)."""
        ...
