"""`cp.ledger`: every tool call is recorded before it is executed, so that no crash makes it happen twice."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from threadkeep.codec import Codec
from threadkeep.errors import (
    CheckpointerError,
    ToolCallInFlightError,
    ToolCallInterruptedError,
    ToolCallSettledError,
)
from threadkeep.heartbeats import Heartbeats, checked_ttl
from threadkeep.ids import check_id, check_optional_id
from threadkeep.json_values import canonical, digest
from threadkeep.records import (
    CallState,
    Completed,
    Execution,
    Failed,
    Issued,
    LedgerEntry,
    NewCall,
    StoredCall,
    StoredOutcome,
    Worker,
)
from threadkeep.rules import call_state
from threadkeep.store import Store

_ERROR_LENGTH = 10_000
DEFAULT_TTL = 30.0
"""Seconds after which the outcome of a call is unknown whose process has died."""


class Ledger:
    """The tool calls of a checkpointer. In a transaction, calls can be settled and looked at, not issued."""

    def __init__(self, store: Store, codec: Codec, heartbeats: Heartbeats, *, is_transaction: bool) -> None:
        self._store = store
        self._codec = codec
        self._heartbeats = heartbeats
        self._is_transaction = is_transaction

    # ---- around a tool --------------------------------------------------------------------------------------

    async def once(
        self,
        thread_id: str,
        call_id: str,
        tool_name: str,
        args: dict[str, Any],
        function: Callable[..., Any],
        *,
        idempotency_key: str | None = None,
        run_id: str | None = None,
        verify: Callable[[LedgerEntry], Any] | None = None,
        replay_safe: bool = False,
        ttl: float = DEFAULT_TTL,
    ) -> Any:
        """`function(**args)`, at most once for this key: a completed call gives back its result without running again.

        The key is that of thread, tool and arguments, unless the host gives one: the same call, asked for a second time
        on purpose, needs a key of its own, such as its call_id.

        The call is recorded before the function runs and after it. If the function raises, the call has failed, and may
        be tried again. If this process dies meanwhile, or is cancelled, the outcome is unknown, and the call is not run
        again by itself: `verify(entry)`, sync or async, may say Completed(result), Failed(error), or None for "I cannot
        tell"; without it, ToolCallInterruptedError is raised. A call that is `replay_safe`, because it only reads, is
        run again. ToolCallInFlightError means that somebody is executing it right now.

        A sync function runs in a thread of its own. The result must be JSON.
        """
        wanted = partial(
            self._issue, thread_id, call_id, tool_name, args, idempotency_key=idempotency_key, run_id=run_id, ttl=ttl
        )
        call, execute = await wanted(takes_over=replay_safe)
        if not execute and self._state(call) is CallState.UNKNOWN and verify is not None:
            outcome = await _awaited(verify(self._entry(call)))
            if outcome is not None:
                # What was verified is this execution: if another came after it, its outcome decides.
                with suppress(ToolCallSettledError):
                    await self._settle(thread_id, call.call_id, _checked(outcome), call.execution, self._worker())
                call, execute = await wanted()
        if execute and _is_async(function):
            return await self._execute(call, _called(function, args))
        if execute:
            # A thread cannot be stopped. If this task is cancelled, the call goes on, and what comes of it is recorded.
            executing = self._execute(call, _in_a_thread(function, args))
            return await asyncio.shield(self._heartbeats.in_background(executing))
        match self._state(call):
            case CallState.COMPLETED:
                return self._entry(call).result
            case CallState.IN_FLIGHT:
                raise ToolCallInFlightError(thread_id, call.call_id)
        raise ToolCallInterruptedError(thread_id, call.call_id)

    async def _execute(self, call: StoredCall, running: Awaitable[Any]) -> Any:
        try:
            result = await running
        except Exception as error:
            try:
                await self._settle(*_key(call), Failed(_told(error)), call.execution)
            except Exception:
                await self._let_go(call)
            raise
        except BaseException:
            await asyncio.shield(self._let_go(call))
            raise
        try:
            return (await self._settle(*_key(call), Completed(result), call.execution)).result
        except BaseException:
            # It has happened, and the ledger does not know what came of it.
            await asyncio.shield(self._let_go(call))
            raise

    async def _let_go(self, call: StoredCall) -> None:
        """Nobody knows what came of it: say so now, not when it expires."""
        self._forget(call)
        with suppress(Exception):  # then it expires
            await self._store.let_go_of_call(*_key(call), call.execution)

    # ---- step by step ---------------------------------------------------------------------------------------

    async def issue(
        self,
        thread_id: str,
        call_id: str,
        tool_name: str,
        args: dict[str, Any],
        *,
        idempotency_key: str | None = None,
        run_id: str | None = None,
        ttl: float = DEFAULT_TTL,
    ) -> Issued:
        """Record that the call is about to be executed. Of any number that issue its key at once, one is to execute it.

        The others get the entry that is in the way: in flight, of unknown outcome, or completed with its result. A call
        that failed may be issued again. Raises ToolCallMismatchError when the id is taken by another call.
        """
        call, execute = await self._issue(
            thread_id, call_id, tool_name, args, idempotency_key=idempotency_key, run_id=run_id, ttl=ttl
        )
        return Issued(self._entry(call), execute)

    async def _issue(
        self,
        thread_id: str,
        call_id: str,
        tool_name: str,
        args: dict[str, Any],
        *,
        idempotency_key: str | None,
        run_id: str | None,
        ttl: float,
        takes_over: bool = False,
    ) -> tuple[StoredCall, bool]:
        if self._is_transaction:
            raise CheckpointerError(
                "a call cannot be issued in a transaction: it must be recorded before it is executed"
            )
        ttl = checked_ttl(ttl)
        call = NewCall(
            thread_id=check_id("thread_id", thread_id),
            call_id=check_id("call_id", call_id),
            tool_name=check_id("tool_name", tool_name),
            args=self._codec.encode_object(args, "args"),
            idempotency_key=check_optional_id("idempotency_key", idempotency_key)
            or default_key(thread_id, tool_name, args),
            run_id=check_optional_id("run_id", run_id),
        )
        issuing = self._store.issue_call(call, self._worker(), ttl, takes_over)
        stored, execute = await self._heartbeats.or_undone(issuing, self._undo)
        if execute:
            self._heartbeats.executing[_key(stored)] = stored.execution
            self._heartbeats.start(_beat(stored), ttl, partial(self._renew, stored, ttl))
        return stored, execute

    async def _undo(self, issued: tuple[StoredCall, bool]) -> None:
        """Whoever wanted to execute it was cancelled before it was told that it may."""
        call, execute = issued
        if execute:
            await self._settle(*_key(call), Failed("cancelled before it was executed"), call.execution)

    async def _renew(self, call: StoredCall, ttl: float) -> bool:
        is_renewed = await self._store.renew_call(*_key(call), call.execution, ttl)
        has_settled_it = _beat(call) in self._heartbeats.settled
        self._heartbeats.settled.discard(_beat(call))
        if is_renewed:
            return True
        now = await self._store.get_call(*_key(call))
        # One that failed may be executed by another worker by now. If it was not this process that said so, it must not
        # forget that it has lost the call, or what it says late would pass for news.
        if has_settled_it or (now is not None and now.status == CallState.COMPLETED):
            self._forget_execution(call)
        return False

    async def complete(self, thread_id: str, call_id: str, result: Any) -> LedgerEntry:
        """The call happened, and gave this result. The first result stands; the entry says which that is.

        Raises ToolCallNotFoundError; ToolCallSettledError when it has failed, or another worker has taken it over.
        """
        return await self._end(thread_id, call_id, Completed(result))

    async def fail(self, thread_id: str, call_id: str, error: str) -> LedgerEntry:
        """The call did not happen. It may be issued again.

        Raises as `complete` does, and ToolCallInFlightError when another worker is executing it.
        """
        return await self._end(thread_id, call_id, Failed(error))

    async def resolve(
        self, thread_id: str, call_id: str, outcome: Completed | Failed, *, owner: str | None = None
    ) -> LedgerEntry:
        """Settle by hand a call of unknown outcome: Completed(result), or Failed(error), which may be tried again.

        Raises ToolCallInFlightError while its owner is alive; with `owner`, that owner's calls count as dead.
        """
        return await self._settle(thread_id, call_id, _checked(outcome), None, self._worker(owner))

    # ---- looking --------------------------------------------------------------------------------------------

    async def get(self, thread_id: str, call_id: str) -> LedgerEntry | None:
        """The call's entry, or None."""
        stored = await self._store.get_call(check_id("thread_id", thread_id), check_id("call_id", call_id))
        return None if stored is None else self._entry(stored)

    async def interrupted(self, thread_id: str, *, owner: str | None = None) -> Sequence[LedgerEntry]:
        """The calls that were issued and not settled: in flight, or of unknown outcome, as their state says.

        A host that was restarted under the name it had before passes it as `owner`, or has opened its checkpointer with
        it: then the calls it left behind are unknown at once, and not only when they expire.
        """
        calls = await self._store.list_calls(check_id("thread_id", thread_id), only_issued=True)
        return [self._entry(call, self._worker(owner)) for call in calls]

    async def find_completed(self, thread_id: str | None, idempotency_key: str) -> LedgerEntry | None:
        """The completed call with this key: of this thread, or, for None, of any. None if there is none."""
        stored = await self._store.find_completed_call(
            check_optional_id("thread_id", thread_id), check_id("idempotency_key", idempotency_key)
        )
        return None if stored is None else self._entry(stored)

    async def list(self, thread_id: str) -> list[LedgerEntry]:
        """All calls of the thread, in the order they were issued."""
        calls = await self._store.list_calls(check_id("thread_id", thread_id), only_issued=False)
        return [self._entry(call) for call in calls]

    # ---- one level down -------------------------------------------------------------------------------------

    def _worker(self, owner: str | None = None) -> Worker:
        worker = self._heartbeats.worker
        return worker if owner is None else Worker(check_id("owner", owner), worker.process)

    async def _end(self, thread_id: str, call_id: str, outcome: Completed | Failed) -> LedgerEntry:
        execution = self._heartbeats.executing.get((check_id("thread_id", thread_id), check_id("call_id", call_id)))
        # That a call has happened may be known elsewhere. That it will not happen, only to whoever executes it.
        is_hearsay = execution is None and isinstance(outcome, Failed)
        return await self._settle(thread_id, call_id, outcome, execution, self._worker() if is_hearsay else None)

    async def _settle(
        self,
        thread_id: str,
        call_id: str,
        outcome: Completed | Failed,
        execution: Execution | None,
        by_hand: Worker | None = None,
    ) -> LedgerEntry:
        key = check_id("thread_id", thread_id), check_id("call_id", call_id)
        stored = await self._store.settle_call(*key, self._encoded(outcome), execution, by_hand)
        if not self._is_transaction:
            self._forget(stored)
        elif stored.execution == self._heartbeats.executing.get(key):
            self._heartbeats.settled.add(_beat(stored))  # unless it is rolled back: the next beat looks
        return self._entry(stored)

    def _forget(self, call: StoredCall) -> None:
        """This execution has ended. A later one, of this process too, goes on."""
        self._forget_execution(call)
        self._heartbeats.stop(_beat(call))

    def _forget_execution(self, call: StoredCall) -> None:
        if self._heartbeats.executing.get(_key(call)) == call.execution:
            del self._heartbeats.executing[_key(call)]

    def _encoded(self, outcome: Completed | Failed) -> StoredOutcome:
        if isinstance(outcome, Completed):
            return StoredOutcome(CallState.COMPLETED, result=self._codec.encode_value(outcome.result, "result"))
        return StoredOutcome(CallState.FAILED, error=self._codec.encode_value(outcome.error, "error"))

    def _state(self, call: StoredCall) -> CallState:
        return call_state(call, self._worker())

    def _entry(self, call: StoredCall, worker: Worker | None = None) -> LedgerEntry:
        return entry_of(self._codec, call, call_state(call, worker or self._worker()))


def _told(error: Exception) -> str:
    """What a tool raised, as text that can be stored."""
    return f"{type(error).__name__}: {error}"[:_ERROR_LENGTH].encode(errors="backslashreplace").decode()


def _key(call: StoredCall) -> tuple[str, str]:
    return call.thread_id, call.call_id


def _beat(call: StoredCall) -> tuple[str, str, Execution]:
    return call.thread_id, call.call_id, call.execution


def _checked(outcome: Any) -> Completed | Failed:
    if not isinstance(outcome, (Completed, Failed)):
        raise TypeError(f"an outcome is Completed(result) or Failed(error), not a {type(outcome).__name__}")
    return outcome


def entry_of(codec: Codec, call: StoredCall, state: CallState) -> LedgerEntry:
    """The record that users get."""
    key = {"thread_id": call.thread_id, "call_id": call.call_id}

    def decoded(text: str | None) -> Any:
        return None if text is None else codec.decode_value(text, "cubepi_tool_calls", key)

    return LedgerEntry(
        thread_id=call.thread_id,
        call_id=call.call_id,
        tool_name=call.tool_name,
        args=decoded(call.args),
        idempotency_key=call.idempotency_key,
        run_id=call.run_id,
        state=state,
        result=decoded(call.result),
        error=decoded(call.error),
        owner=call.owner,
        attempt=call.attempt,
        issued_at=call.issued_at,
        expires_at=call.expires_at,
        ended_at=call.ended_at,
    )


def default_key(thread_id: str, tool_name: str, args: dict[str, Any]) -> str:
    """The same for the same call in the same thread: whatever the order of the arguments, and 1 is not 1.0 or True."""
    return digest(canonical([thread_id, tool_name, args]))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _called(function: Callable[..., Awaitable[Any]], args: dict[str, Any]) -> Any:
    return await function(**args)


async def _in_a_thread(function: Callable[..., Any], args: dict[str, Any]) -> Any:
    def run() -> tuple[Any, BaseException | None]:
        try:
            return function(**args), None
        except BaseException as error:  # carried over by hand: a Future cannot hold StopIteration
            return None, error

    result, error = await asyncio.to_thread(run)
    if error is not None:
        raise error
    return await _awaited(result)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
