"""Listing threads by metadata: which index is walked, and that the same threads are found whichever it is."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from backends import BACKENDS, Backend
from threadkeep.labels import labels_of
from threadkeep.records import ThreadQuery
from threadkeep.sql.operations import threads

OFTEN, SELDOM, ONCE = {"often": 1}, {"seldom": 1}, {"once": 1}
COUNT = 24


@pytest.fixture(params=["aiosqlite-of-host", "postgresql-of-host", "mysql-of-host", "mariadb-of-host"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """With an engine of the host's, to ask on a connection of it."""
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture(autouse=True)
def short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few threads are enough to tell a sparse index from a dense one."""
    monkeypatch.setattr(threads, "_SOME_WAY", 3)
    monkeypatch.setattr(threads, "_WAYS_AT_ONCE", 2)


async def fill(cp: Any) -> None:
    """Threads whose ids say nothing of their order. The newer half has few sub-threads, the older one many."""
    await cp.threads.create("parent")
    for number in range(COUNT):
        metadata = {**OFTEN, **(SELDOM if number % 3 == 0 else {}), **(ONCE if number == 9 else {})}
        parent = "parent" if number < COUNT // 2 or number % 4 == 0 else None
        thread = f"{number * 7 % COUNT}"
        await cp.threads.create(thread, metadata=metadata, parent_thread_id=parent)
        if number % 5 == 0:
            await cp.threads.set_status(thread, "failed")
        if number % 6 == 0:
            await cp.threads.soft_delete(thread)


async def test_every_filter_finds_what_it_should(backend: Backend) -> None:
    async with backend.opened() as cp:
        await fill(cp)
        everything = await cp.threads.list(include_deleted=True)
        wanted: list[dict[str, Any]] = [{}, OFTEN, SELDOM, ONCE, OFTEN | SELDOM, OFTEN | SELDOM | ONCE, {"never": 1}]
        for metadata, status, parent, deleted in product(
            wanted, (None, "active", "failed"), (None, "parent"), (False, True)
        ):
            expected = [
                record
                for record in everything
                if metadata.items() <= record.metadata.items()
                and status in (None, record.status)
                and parent in (None, record.parent_thread_id)
                and (deleted or record.deleted_at is None)
            ]
            found: list[Any] = []
            filters = {"status": status, "parent_thread_id": parent, "include_deleted": deleted, "limit": 5}
            while page := await cp.threads.list(metadata=metadata, after=found[-1] if found else None, **filters):
                assert page[0] not in found, "a thread came again"
                found += page
            assert found == expected, (metadata, status, parent, deleted)


async def test_the_sparsest_index_is_walked(backend: Backend) -> None:
    """From where the page begins: what is rare among the newest may be common among the oldest."""
    async with backend.opened() as cp:
        await fill(cp)
        everything = await cp.threads.list(include_deleted=True)
        old = next(record for record in everything if record.thread_id == f"{(COUNT // 2) * 7 % COUNT}")

        async def begins_with(metadata: dict[str, Any], **filters: Any) -> str | None:
            query = ThreadQuery(
                filters.get("parent"), filters.get("status"), labels_of(metadata), False, 100, filters.get("after")
            )
            assert backend.engine is not None
            async with backend.engine.connect() as conn:
                return await conn.run_sync(lambda conn: threads.label_to_walk(conn, query))

        (often,), (seldom,), (once,) = map(labels_of, (OFTEN, SELDOM, ONCE))
        assert await begins_with({}) is None
        assert await begins_with(OFTEN) == often
        assert await begins_with(OFTEN | SELDOM) == seldom
        assert await begins_with(OFTEN | SELDOM | ONCE) == once
        assert await begins_with(OFTEN, status="failed") is None
        assert await begins_with(ONCE, status="failed", parent="parent") == once
        assert await begins_with(OFTEN, parent="parent") is None
        assert await begins_with(SELDOM, parent="parent") is None
        assert await begins_with(SELDOM, parent="parent", after=old) == seldom
