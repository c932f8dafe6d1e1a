"""`cp.runs`: looking at the runs of a thread, and leasing them to one of many workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from threadkeep.errors import CheckpointerError
from threadkeep.heartbeats import Heartbeats, checked_ttl
from threadkeep.ids import check_id
from threadkeep.records import Fence, RunRecord
from threadkeep.store import Store

if TYPE_CHECKING:
    from threadkeep.frontdoor import Lease


class Runs:
    """The runs of a checkpointer, or of a transaction."""

    def __init__(
        self, store: Store, heartbeats: Heartbeats, leased: Callable[[Fence], Lease], *, is_transaction: bool
    ) -> None:
        self._store = store
        self._heartbeats = heartbeats
        self._leased = leased
        self._is_transaction = is_transaction

    async def list(self, thread_id: str) -> list[RunRecord]:
        """The thread's runs in the order they were claimed; none for a thread that does not exist."""
        return await self._store.list_runs(check_id("thread_id", thread_id))

    @asynccontextmanager
    async def lease(self, thread_id: str, run_id: str, *, ttl: float, exclusive: bool = False) -> AsyncIterator[Lease]:
        """Claim the run, or take over one whose lease has ended, and hold it: heartbeats renew it until the block ends.

        The handle has the checkpointer's methods. Each write through it raises LeaseLostError, and writes nothing,
        unless the lease is alive: also when this process comes back from a long pause. If the process dies, the lease
        ends after `ttl` seconds, by the database's clock, and another worker may lease the run.

        Raises LeaseHeldError while another lease on the run is alive; with `exclusive`, while any on the thread is; and
        while one that is exclusive is. Raises RunAlreadyCompletedError; RunAlreadyClaimedError for a run that was
        claimed plainly, which never expires.
        """
        if self._is_transaction:
            raise CheckpointerError("a lease cannot be taken in a transaction: others must see it")
        ttl = checked_ttl(ttl)
        key = check_id("thread_id", thread_id), check_id("run_id", run_id)
        acquiring = self._store.acquire_lease(*key, self._heartbeats.worker.owner, ttl, exclusive)
        token = await self._heartbeats.or_undone(acquiring, lambda token: self._store.release_lease(Fence(*key, token)))
        fence = Fence(*key, token)
        lease = self._leased(fence)

        async def renew() -> bool:
            lease.is_lost = lease.is_lost or not await self._store.renew_lease(fence, ttl)
            return not lease.is_lost

        self._heartbeats.start(fence, ttl, renew)
        try:
            yield lease
        finally:
            self._heartbeats.stop(fence)
            with suppress(Exception):  # then it expires by itself
                await self._store.release_lease(fence)
