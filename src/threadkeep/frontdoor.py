"""The protocol's methods as every backend of ours has them: check the ids, encode, let the store do it, decode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from threadkeep import message_log, resuming
from threadkeep.checkpoints import Checkpoints
from threadkeep.codec import Codec, used_up
from threadkeep.context import Context
from threadkeep.errors import CheckpointerError, InvalidIdError
from threadkeep.files import Files
from threadkeep.heartbeats import Heartbeats
from threadkeep.ids import check_id, check_optional_id
from threadkeep.ledger import Ledger
from threadkeep.message_log import MessageLog
from threadkeep.parts import Parts
from threadkeep.protocol import CheckpointData
from threadkeep.records import Fence, ResumeReport, StoredMessage
from threadkeep.rules import NO_RUN
from threadkeep.runs import Runs
from threadkeep.store import Store
from threadkeep.threads import Threads
from threadkeep.usage import UsageBook


class CheckpointerMethods:
    """What a checkpointer offers, a transaction of it, and a lease: the type of what works with any of them.

    Promises are in `protocol.Checkpointer`. In a transaction nothing can be held, for others cannot see it.
    """

    def __init__(self, store: Store, codec: Codec, heartbeats: Heartbeats, *, is_transaction: bool = False) -> None:
        self._store = store
        self._codec = codec
        self._heartbeats = heartbeats
        self.threads = Threads(store, codec)
        self.messages = MessageLog(store, codec)
        self.parts = Parts(store, codec)
        self.usage = UsageBook(store)
        self.context = Context(store, codec, self.parts)
        self.files = Files(store, codec)
        self.runs = Runs(store, heartbeats, lambda fence: Lease(self, fence), is_transaction=is_transaction)
        self.ledger = Ledger(store, codec, heartbeats, is_transaction=is_transaction)
        self.checkpoints = Checkpoints(store, codec)

    def transaction(self) -> AbstractAsyncContextManager[CheckpointerMethods]:
        """The same methods on one transaction: all of it happens when the block ends well, or nothing."""
        raise CheckpointerError("this is a transaction already: begin another from the checkpointer")

    async def resume(self, thread_id: str) -> ResumeReport | None:
        """Where the thread stood when its last worker left it, from one snapshot. None if there is no such thread."""
        worker = self._heartbeats.worker
        return await resuming.report(self._store, self._codec, worker, check_id("thread_id", thread_id))

    async def repair(self, thread_id: str) -> list[Any]:
        """Append a result for each tool call in the transcript that has none, so that a model's API takes the thread.

        A call that the ledger knows as completed gets its real result, any other an error that says it was
        interrupted; one that is in flight will get its own. Returns the messages that were appended.
        """
        worker = self._heartbeats.worker
        return await resuming.repair(self._store, self._codec, worker, check_id("thread_id", thread_id))

    async def load(self, thread_id: str) -> CheckpointData | None:
        """See `protocol.MinimalCheckpointer.load`."""
        thread_id = check_id("thread_id", thread_id)

        def decode(stored: list[StoredMessage]) -> list[Any]:
            return self._codec.decode_messages(thread_id, used_up(stored))

        stored = await self._store.load(thread_id, decode)
        if stored is None:
            return None
        return CheckpointData(
            messages=stored.messages,
            extra=self._codec.decode_extra(thread_id, stored.extra),
            parent_thread_id=stored.parent_thread_id,
        )

    async def append(self, thread_id: str, messages: Sequence[Any]) -> None:
        """See `protocol.MinimalCheckpointer.append`."""
        await message_log.append(self._store, self._codec, check_id("thread_id", thread_id), messages)

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        """See `protocol.MinimalCheckpointer.save_extra`."""
        thread_id = check_id("thread_id", thread_id)
        await self._store.save_extra(thread_id, self._codec.encode_object(extra, "extra"))

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """See `protocol.Checkpointer.claim_run`."""
        await self._store.claim_run(check_id("thread_id", thread_id), check_id("run_id", run_id))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """See `protocol.Checkpointer.mark_run_complete`."""
        await self._store.mark_run_complete(check_id("thread_id", thread_id), check_id("run_id", run_id))

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Any]:
        """See `protocol.Checkpointer.snapshot`."""
        thread_id = check_id("thread_id", thread_id)
        rows = await self._store.snapshot(thread_id, check_id("after_run_id", after_run_id))
        return self._codec.decode_messages(thread_id, used_up(rows))

    async def fork(
        self,
        src_thread_id: str,
        new_thread_id: str,
        *,
        after_run_id: str,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """See `protocol.Checkpointer.fork`."""
        await self._store.fork(
            check_id("src_thread_id", src_thread_id),
            check_id("new_thread_id", new_thread_id),
            check_id("after_run_id", after_run_id),
            None if metadata is None else self._codec.encode_object(metadata, "metadata"),
        )

    async def save_pending_request(self, thread_id: str, request: Any | None, *, run_id: str | None = None) -> None:
        """See `protocol.Checkpointer.save_pending_request`."""
        thread_id = check_id("thread_id", thread_id)
        if request is None:
            await self._store.clear_pending(thread_id)
            return
        run_id = check_optional_id("run_id", run_id)
        question_id, text = self._codec.encode_request(request)
        await self._store.set_pending(thread_id, question_id, text, run_id)

    async def clear_pending_request_if_matches(self, thread_id: str, *, question_id: str, run_id: str | None) -> bool:
        """See `protocol.Checkpointer.clear_pending_request_if_matches`."""
        return await self._store.clear_pending_if_matches(
            check_id("thread_id", thread_id),
            check_id("question_id", question_id),
            check_optional_id("run_id", run_id),
        )

    async def load_pending(self, thread_id: str) -> tuple[Any, str | None] | None:
        """See `protocol.Checkpointer.load_pending`."""
        thread_id = check_id("thread_id", thread_id)
        pending = await self._store.load_pending(thread_id)
        if pending is None:
            return None
        return self._codec.decode_request(thread_id, pending.request), pending.run_id

    async def load_pending_request(self, thread_id: str) -> Any | None:
        """See `protocol.Checkpointer.load_pending_request`."""
        pending = await self.load_pending(thread_id)
        return None if pending is None else pending[0]

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """See `protocol.Checkpointer.load_pending_run_id`."""
        pending = await self._store.load_pending(check_id("thread_id", thread_id))
        return None if pending is None else pending.run_id

    async def save_hitl_answer(
        self, thread_id: str, question_id: str, answer: Any, *, run_id: str | None = None
    ) -> None:
        """See `protocol.Checkpointer.save_hitl_answer`."""
        key = _answer_key(thread_id, run_id, question_id)
        await self._store.save_answer(*key, self._codec.encode_answer(answer))

    async def load_hitl_answer(self, thread_id: str, question_id: str, *, run_id: str | None = None) -> Any | None:
        """See `protocol.Checkpointer.load_hitl_answer`."""
        key = _answer_key(thread_id, run_id, question_id)
        text = await self._store.load_answer(*key)
        return None if text is None else self._codec.decode_answer(*key, text)

    async def has_hitl_answer(self, thread_id: str, question_id: str, *, run_id: str | None = None) -> bool:
        """See `protocol.Checkpointer.has_hitl_answer`."""
        return await self._store.load_answer(*_answer_key(thread_id, run_id, question_id)) is not None

    async def clear_hitl_answers(
        self, thread_id: str, question_ids: Iterable[str] | None = None, *, run_id: str | None = None
    ) -> None:
        """See `protocol.Checkpointer.clear_hitl_answers`."""
        thread_id = check_id("thread_id", thread_id)
        run_key = check_optional_id("run_id", run_id) or NO_RUN
        if isinstance(question_ids, str):
            raise InvalidIdError("question_ids", question_ids, "it is one string where a list of ids belongs")
        if question_ids is not None:
            question_ids = sorted({check_id("question_ids", question_id) for question_id in question_ids})
        await self._store.clear_answers(thread_id, run_key, question_ids)


class Lease(CheckpointerMethods):
    """A run that this worker holds: the checkpointer's methods, whose writes are refused once the lease is lost."""

    def __init__(self, of: CheckpointerMethods, fence: Fence) -> None:
        super().__init__(of._store.fenced(fence), of._codec, of._heartbeats)
        self._of = of
        self._fence = fence
        self.thread_id, self.run_id, self.token = fence
        self.is_lost = False
        """Whether a heartbeat came too late. Writes notice it by themselves."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[CheckpointerMethods]:
        """The same methods on one transaction, each write of which needs the lease."""
        async with self._of.transaction() as transaction:
            store = transaction._store.fenced(self._fence)
            yield CheckpointerMethods(store, self._codec, self._heartbeats, is_transaction=True)


def _answer_key(thread_id: str, run_id: str | None, question_id: str) -> tuple[str, str, str]:
    return (
        check_id("thread_id", thread_id),
        check_optional_id("run_id", run_id) or NO_RUN,
        check_id("question_id", question_id),
    )
