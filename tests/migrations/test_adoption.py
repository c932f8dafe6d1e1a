"""A v3 database of cubepi's becomes ours, in place, and loses nothing."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import msgpack
import pytest
import sqlalchemy as sa

import threadkeep
from cli.program import run_well
from migrations.databases import NEWEST, Place, drift_of, prove_that_it_works, version_rows
from migrations.golden import (
    EXPECTED,
    WITH_MESSAGES,
    everything,
    prove_that_legacy_threads_go_on,
    prove_that_nothing_was_lost,
    put_v3,
)
from migrations.program import alembic_well, at_once
from threadkeep import CheckpointerLockTimeoutError, CubepiSchemaMismatch, CubepiSchemaUninitialized
from threadkeep.sql.dialects import Hooks


@pytest.fixture
async def v3(place: Place) -> Place:
    """A database that cubepi 0.7.0 wrote, of each kind in turn."""
    await put_v3(place)
    return place


async def by_upgrade(place: Place) -> None:
    assert await threadkeep.upgrade(place.url) == {}


async def by_upgrade_of_an_engine(place: Place) -> None:
    async with place.engine() as engine:
        await threadkeep.upgrade(engine)


async def by_alembic(place: Place) -> None:
    await asyncio.to_thread(alembic_well, "upgrade", "head", url=place.url)


async def by_command_line(place: Place) -> None:
    out = (await asyncio.to_thread(run_well, "upgrade", place.url)).out
    assert "took over cubepi's schema 3: it is now version 1010, with 23 threads, 422 messages" in out


@pytest.mark.parametrize("way", [by_upgrade, by_upgrade_of_an_engine, by_alembic, by_command_line])
async def test_every_way_takes_it_over(v3: Place, way: Callable[[Place], Any]) -> None:
    await way(v3)
    assert await version_rows(v3) == NEWEST
    await prove_that_nothing_was_lost(v3)
    await prove_that_legacy_threads_go_on(v3)


async def test_it_is_then_what_the_model_describes(v3: Place) -> None:
    await threadkeep.upgrade(v3.url)
    assert await drift_of(v3) == ""
    await prove_that_it_works(v3)


async def test_a_second_upgrade_finds_nothing_to_do(v3: Place) -> None:
    await threadkeep.upgrade(v3.url)
    before = await v3.run(everything)
    await threadkeep.upgrade(v3.url)
    assert await v3.run(everything) == before


async def test_two_at_once_both_succeed(v3: Place) -> None:
    await asyncio.to_thread(at_once, "upgrade", v3.url, 3)
    await prove_that_nothing_was_lost(v3)


async def test_before_the_upgrade_the_gate_names_it(server_place: Place) -> None:
    """On servers: a SQLite file is upgraded when it is opened."""
    await put_v3(server_place)
    with pytest.raises(CubepiSchemaMismatch, match="threadkeep upgrade URL") as caught:
        async with server_place.checkpointer():
            pass
    assert caught.value.actual == 3


async def test_a_file_is_taken_over_when_it_is_opened(sqlite_place: Place) -> None:
    await put_v3(sqlite_place)
    await prove_that_nothing_was_lost(sqlite_place)
    await prove_that_legacy_threads_go_on(sqlite_place)


async def test_a_file_on_a_hosts_engine_is_not(sqlite_place: Place) -> None:
    """It is the host's database: it is checked, like a server."""
    await put_v3(sqlite_place)
    async with sqlite_place.engine() as engine:
        with pytest.raises(CubepiSchemaUninitialized):
            async with sqlite_place.checkpointer(engine):
                pass


# ---- payloads stay ------------------------------------------------------------------------------------


async def test_a_thread_may_hold_both_formats(server_place: Place) -> None:
    """msgpack rows stay as they are, new ones are JSON. (SQLite's rows were JSON all along.)"""
    await put_v3(server_place)
    payloads = "SELECT thread_id, seq, payload FROM cubepi_messages ORDER BY thread_id, seq"
    before = await server_place.execute(payloads)
    await threadkeep.upgrade(server_place.url)
    assert await server_place.execute(payloads) == before
    assert {row[0] for row in await server_place.execute("SELECT format FROM cubepi_messages")} == {0}

    async with server_place.checkpointer() as cp:
        (thread_id, *_) = WITH_MESSAGES
        old = (await cp.load(thread_id)).messages
        await cp.append(thread_id, old)
        assert (await cp.load(thread_id)).messages == [*old, *old]
    formats = await server_place.execute("SELECT format, COUNT(*) FROM cubepi_messages GROUP BY format ORDER BY format")
    assert formats == [(0, len(before)), (1, len(old))]


async def test_the_metadata_column_is_the_truth_of_old_rows(server_place: Place) -> None:
    """cubepi reads it from there, and hosts have changed it there."""
    await put_v3(server_place)
    (thread_id, *_) = WITH_MESSAGES
    changed = "UPDATE cubepi_messages SET metadata = '{\"changed\": [1, 1.5, null]}' WHERE seq = 1"
    await server_place.execute(changed)
    await threadkeep.upgrade(server_place.url)
    async with server_place.checkpointer() as cp:
        first, *others = (await cp.load(thread_id)).messages
        assert first.metadata == {"changed": [1, 1.5, None]}
        assert [m.metadata for m in others] == [m["metadata"] for m in EXPECTED[thread_id]["messages"][1:]]


async def test_a_row_of_msgpack_that_does_not_decode_is_named(server_place: Place) -> None:
    await put_v3(server_place)
    await threadkeep.upgrade(server_place.url)
    (thread_id, *_) = WITH_MESSAGES
    broken = [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"role": "user"})]
    async with server_place.checkpointer() as cp:
        for payload in broken:

            def put(conn: sa.Connection, payload: bytes = payload) -> None:
                table = sa.table("cubepi_messages", *map(sa.column, ("thread_id", "seq", "payload")))
                conn.execute(
                    sa.update(table).where(table.c.thread_id == thread_id, table.c.seq == 2).values(payload=payload)
                )

            await server_place.run(put)
            with pytest.raises(threadkeep.CheckpointCorruptionError) as caught:
                await cp.load(thread_id)
            assert caught.value.key == {"thread_id": thread_id, "seq": 2}


STORAGE = {
    "postgresql": "SELECT relname, relfilenode FROM pg_class WHERE relname ~ '^cubepi_(threads|messages(_p[0-9]+)?)$'",
    "mysql": "SELECT NAME, TABLE_ID, SPACE FROM information_schema.INNODB_TABLES WHERE {of} ORDER BY NAME",
    "mariadb": "SELECT NAME, TABLE_ID, SPACE FROM information_schema.INNODB_SYS_TABLES WHERE {of} ORDER BY NAME",
}


async def storage_of(place: Place) -> Any:
    of = "(NAME LIKE CONCAT(DATABASE(), '/cubepi_threads') OR NAME LIKE CONCAT(DATABASE(), '/cubepi_messages%%'))"
    return sorted(await place.execute(STORAGE[place.kind].format(of=of)))


async def test_no_table_is_rewritten(server_place: Place) -> None:
    """A server that rewrites a table gives it other storage."""
    await put_v3(server_place)
    before = await storage_of(server_place)
    assert len(before) in (65, 66), before  # 64 partitions and threads; PostgreSQL lists their parent too
    await threadkeep.upgrade(server_place.url)
    assert await storage_of(server_place) == before


async def test_times_are_kept(server_place: Place) -> None:
    """In UTC, whatever zone the session is in."""
    await put_v3(server_place)
    as_utc = {
        "postgresql": "SELECT thread_id, (EXTRACT(epoch FROM created_at) * 1000000)::bigint FROM cubepi_threads",
        "mysql": "SELECT thread_id, UNIX_TIMESTAMP(created_at) * 1000000 FROM cubepi_threads",
    }
    as_utc["mariadb"] = as_utc["mysql"]
    before = dict(await server_place.execute(as_utc[server_place.kind]))
    async with server_place.engine() as engine:
        zone = "SET TIME ZONE 'Asia/Kolkata'" if server_place.kind == "postgresql" else "SET time_zone = '+05:30'"

        @sa.event.listens_for(engine.sync_engine, "connect")
        def elsewhere(connection: Any, _: object) -> None:
            connection.cursor().execute(zone)

        await threadkeep.upgrade(engine)
    async with server_place.checkpointer() as cp:
        records = await cp.threads.list(limit=1000)
        assert {record.thread_id: round(record.created_at.timestamp() * 1_000_000) for record in records} == before


# ---- beside others ------------------------------------------------------------------------------------


async def test_it_does_not_wait_for_ever_for_a_table_that_is_in_use(
    server_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody else would wait behind it. (On SQLite a busy timeout ends the wait for the file.)"""
    monkeypatch.setattr(Hooks, "migration_lock_timeout", 1)
    await put_v3(server_place, partitioned=False)
    before = await server_place.run(everything)
    async with server_place.engine() as engine, engine.connect() as conn:
        await conn.exec_driver_sql("SELECT COUNT(*) FROM cubepi_threads")  # and its transaction stays open
        with pytest.raises(CheckpointerLockTimeoutError, match="again"):
            await threadkeep.upgrade(server_place.url)
    assert await server_place.run(everything) in (before, {**before, "cubepi_alembic_version": ANY})
    await threadkeep.upgrade(server_place.url)
    await prove_that_nothing_was_lost(server_place)


@pytest.mark.parametrize("place", ["mysql", "mariadb"], indirect=True)
async def test_a_message_without_a_thread_gets_one(place: Place) -> None:
    """On these two no foreign key kept a host from deleting the row alone. cubepi still loads its messages."""
    await put_v3(place, partitioned=False)
    thread_id = WITH_MESSAGES[0]
    await place.execute(f"DELETE FROM cubepi_threads WHERE thread_id = '{thread_id}'")
    await threadkeep.upgrade(place.url)
    async with place.checkpointer() as cp:
        data = await cp.load(thread_id)
        assert len(data.messages) == (await cp.threads.get(thread_id)).last_seq > 0
        assert data.extra == {}


async def test_it_tells_how_far_it_is(v3: Place) -> None:
    told: list[tuple[str, int, int, bool]] = []

    def progress(step: str, done: int, total: int, within: bool) -> None:
        told.append((step, done, total, within))

    await threadkeep.upgrade(v3.url, progress=progress)
    steps = [(done, total) for _, done, total, within in told if not within]
    totals = [total for done, total in steps if done == 0]  # each revision that takes a while counts its own
    assert steps == [(number, total) for total in totals for number in range(total + 1)]
    assert "building the index on the ids of messages" in [name for name, *_ in told]
    assert all(name for name, done, total, within in told if not within and done < total)
    rows = [(done, total) for _, done, total, within in told if within]
    assert rows
    assert all(done < total for done, total in rows)
