"""An upgrade of what the newest old release wrote, killed half way and run again."""

import os
from contextlib import ExitStack

import pytest

import servers
import threadkeep
from migrations.databases import Place
from migrations.program import killed_upgrades
from with_cubepi.comparing import differences
from with_cubepi.releases import Releases, pythons

STATEMENTS = 114
"""A few more than it takes."""
STEP = 1 if "THREADKEEP_STRESS" in os.environ else 20


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
async def test_killed_between_any_two_statements_it_can_be_run_again(releases: Releases, kind: str) -> None:
    """These two keep what was done. The v3 databases that PostgreSQL and SQLite roll back are in tests/migrations."""
    *_, newest = pythons()
    with ExitStack() as stack:
        places = [Place(kind, stack.enter_context(servers.fresh_database(kind))) for _ in range(0, STATEMENTS, STEP)]
        written = [releases[newest].ask("write", place, seed=7, partitioned=False) for place in places]
        killed_upgrades(*((place.url, number * STEP + 3) for number, place in enumerate(places)))
        for place, expected in zip(places, written, strict=True):
            await threadkeep.upgrade(place.url)
            async with place.checkpointer() as cp:
                trouble = await differences(cp, place, expected)
                assert not trouble, "\n".join(trouble)
