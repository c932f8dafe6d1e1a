"""An upgrade that is killed half way, by SIGKILL, and run again."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

import threadkeep
from migrations.databases import NEWEST, Place, prove_that_it_works, schema_of, version_rows
from migrations.program import killed_upgrades
from servers import fresh_database

STATEMENTS = 37
"""A few more than an upgrade of an empty MySQL database has: the last ones are killed at the commit."""
POINTS = (2, 6, 12, 99)
STEP = 1 if "THREADKEEP_STRESS" in os.environ else 4


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
async def test_on_mysql_running_it_again_finishes_it(kind: str) -> None:
    """These two commit each DDL statement by itself, so the upgrade stays where it was killed."""
    with ExitStack() as stack:
        whole, *halves = (Place(kind, stack.enter_context(fresh_database(kind))) for _ in range(0, STATEMENTS, STEP))
        await threadkeep.upgrade(whole.url)
        expected = await whole.run(schema_of)
        killed_upgrades(*((half.url, (number + 1) * STEP) for number, half in enumerate(halves)))
        left = [await half.run(schema_of) for half in halves]
        assert len({repr(schema) for schema in left}) > len(halves) // 2, "they were not killed half way"

        for half in halves:
            await threadkeep.upgrade(half.url)
            assert await half.run(schema_of) == expected
            assert await version_rows(half) == NEWEST
        await prove_that_it_works(halves[0])


async def test_on_postgresql_it_rolls_back_whole() -> None:
    """Its DDL has transactions, and the whole upgrade is one."""
    with ExitStack() as stack:
        places = {n: Place("postgresql", stack.enter_context(fresh_database("postgresql"))) for n in POINTS}
        await prove_that_nothing_happened_and_it_can_be_done(places)


async def test_on_sqlite_it_rolls_back_whole(tmp_path: Path) -> None:
    """Likewise, as BEGIN is ours: Python's driver would begin too late."""
    places = {n: Place.of_file(tmp_path / f"{n}.db") for n in POINTS}
    await prove_that_nothing_happened_and_it_can_be_done(places)


async def prove_that_nothing_happened_and_it_can_be_done(places: dict[int, Place]) -> None:
    killed_upgrades(*((place.url, statement) for statement, place in places.items()))
    for place in places.values():
        assert await place.run(schema_of) == {}
        await threadkeep.upgrade(place.url)
        assert await version_rows(place) == NEWEST
        await prove_that_it_works(place)
