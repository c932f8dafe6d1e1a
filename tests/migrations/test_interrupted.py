"""An upgrade that is killed half way, by SIGKILL, and run again."""

import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import threadkeep
from migrations.databases import NEWEST, Place, drift_of, prove_that_it_works, schema_of, version_rows
from migrations.golden import everything, prove_that_legacy_threads_go_on, prove_that_nothing_was_lost, put_v3
from migrations.program import killed_upgrades
from servers import fresh_database

POINTS = (2, 20, 45, 999)
"""Where an upgrade that is one transaction is killed: before so many changes, the last of them at the commit."""
EACH = "THREADKEEP_STRESS" in os.environ


async def leave_empty(place: Place) -> None:
    """A database without tables."""


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    ("fill", "statements", "step"),
    # A few more statements than it takes, so that the last are killed at the end. A v3 database takes a while to make.
    [(leave_empty, 72, 1 if EACH else 12), (put_v3, 95, 1 if EACH else 12)],
)
async def test_on_mysql_running_it_again_finishes_it(
    kind: str, fill: Callable[[Place], Awaitable[None]], statements: int, step: int
) -> None:
    """These two commit each DDL statement by itself, so the upgrade stays where it was killed."""
    with ExitStack() as stack:
        whole, *halves = (Place(kind, stack.enter_context(fresh_database(kind))) for _ in range(0, statements, step))
        for place in (whole, *halves):
            await fill(place)
        await threadkeep.upgrade(whole.url)
        expected = await whole.run(schema_of)
        killed_upgrades(*((half.url, (number + 1) * step) for number, half in enumerate(halves)))
        left = [await half.run(schema_of) for half in halves]
        assert len({repr(schema) for schema in left}) > len(halves) // 2, "they were not killed half way"

        for half in halves:
            await threadkeep.upgrade(half.url)
            assert await half.run(schema_of) == expected
            assert await version_rows(half) == NEWEST
            if fill is put_v3:
                await prove_that_nothing_was_lost(half)
        if fill is put_v3:
            await prove_that_legacy_threads_go_on(halves[0])
        assert await drift_of(halves[0]) == ""
        await prove_that_it_works(halves[0])


@pytest.mark.parametrize("fill", [leave_empty, put_v3])
async def test_on_postgresql_it_rolls_back_whole(fill: Callable[[Place], Awaitable[None]]) -> None:
    """Its DDL has transactions, and the whole upgrade is one."""
    with ExitStack() as stack:
        places = {n: Place("postgresql", stack.enter_context(fresh_database("postgresql"))) for n in POINTS}
        await prove_that_nothing_happened_and_it_can_be_done(places, fill)


@pytest.mark.parametrize("fill", [leave_empty, put_v3])
async def test_on_sqlite_it_rolls_back_whole(tmp_path: Path, fill: Callable[[Place], Awaitable[None]]) -> None:
    """Likewise, as BEGIN is ours: Python's driver would begin too late."""
    places = {n: Place.of_file(tmp_path / f"{n}.db") for n in POINTS}
    await prove_that_nothing_happened_and_it_can_be_done(places, fill)


async def prove_that_nothing_happened_and_it_can_be_done(
    places: dict[int, Place], fill: Callable[[Place], Awaitable[None]]
) -> None:
    for place in places.values():
        await fill(place)
    before = {place: await place.run(everything) for place in places.values()}
    killed_upgrades(*((place.url, statement) for statement, place in places.items()))
    for place in places.values():
        assert await place.run(everything) == before[place]
        await threadkeep.upgrade(place.url)
        assert await version_rows(place) == NEWEST
        if fill is put_v3:
            await prove_that_nothing_was_lost(place)
        await prove_that_it_works(place)


async def test_a_file_that_is_killed_while_it_opens_stays_cubepis(sqlite_place: Place) -> None:
    """`async with SQLiteCheckpointer(path)` is an upgrade too, on a connection of its own."""
    await put_v3(sqlite_place)
    before = await sqlite_place.run(everything)
    for statement in (5, 25, 45, 999):
        killed_upgrades((str(sqlite_place.path), statement))
        assert await sqlite_place.run(everything) == before
    await prove_that_nothing_was_lost(sqlite_place)
