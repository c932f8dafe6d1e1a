"""Databases that real old releases have written come over whole, and Threadkeep goes on with them."""

import os
from typing import Any

import pytest

import threadkeep
from migrations.databases import NEWEST, Place, drift_of, version_rows
from with_cubepi.comparing import differences
from with_cubepi.contents import rows_of, schema_of
from with_cubepi.goes_on import (
    prove_that_every_row_can_be_deleted,
    prove_that_every_thread_goes_on,
    prove_that_its_messages_can_be_compacted,
    prove_that_its_questions_can_be_answered,
    prove_that_its_runs_go_on,
)
from with_cubepi.releases import Release, Releases, pythons


async def prove_that_it_came_over(place: Place, written: dict[str, Any]) -> None:
    async with place.checkpointer() as cp:
        trouble = await differences(cp, place, written)
        assert not trouble, "\n".join(trouble)
    assert await version_rows(place) == NEWEST
    assert await drift_of(place) == ""
    rows, schema = await rows_of(place), await schema_of(place)
    await threadkeep.upgrade(place.url)
    assert await rows_of(place) == rows, "a second upgrade has changed something"
    assert await schema_of(place) == schema, "a second upgrade has changed something"


async def prove_that_it_goes_on(place: Place, written: dict[str, Any]) -> None:
    async with place.checkpointer() as cp:
        await prove_that_every_thread_goes_on(cp, written["threads"])
        await prove_that_its_runs_go_on(cp, written["threads"])
        await prove_that_its_questions_can_be_answered(cp, written["threads"])
        await prove_that_its_messages_can_be_compacted(cp, written["threads"])
        await prove_that_every_row_can_be_deleted(cp, place)


SEEDS = range(1, 7) if "THREADKEEP_STRESS" in os.environ else [1]


@pytest.mark.stress
@pytest.mark.parametrize("seed", SEEDS)
async def test_everything_comes_over(release: Release, place: Place, seed: int) -> None:
    written = release.ask("write", place, seed=seed)
    await threadkeep.upgrade(place.url)
    await prove_that_it_came_over(place, written)


async def test_threadkeep_goes_on_with_it(first_or_last: Release, place: Place) -> None:
    """On SQLite opening the file is enough."""
    written = first_or_last.ask("write", place, seed=3)
    if place.kind != "sqlite":
        await threadkeep.upgrade(place.url)
    await prove_that_it_goes_on(place, written)


async def test_tables_without_partitions_come_over(first_or_last: Release, server_place: Place) -> None:
    """Only servers have partitions; a host need not have made them."""
    written = first_or_last.ask("write", server_place, seed=4, partitioned=False)
    await threadkeep.upgrade(server_place.url)
    await prove_that_it_came_over(server_place, written)


async def test_times_come_over_in_any_time_zone(releases: Releases, server_place: Place) -> None:
    """SQLite has none. On MySQL cubepi's times are shown in that of the session that looks, ours are not."""
    *_, newest = pythons()
    written = releases[newest].ask("write", server_place, seed=5)
    east: dict[str, Any] = {"init_command": "SET time_zone = '+05:00'"}
    if server_place.kind == "postgresql":
        east = {"server_settings": {"TimeZone": "Asia/Karachi"}}
    async with server_place.engine(connect_args=east) as engine:
        await threadkeep.upgrade(engine)
    await prove_that_it_came_over(server_place, written)


async def test_a_database_that_went_from_release_to_release_comes_over(releases: Releases, place: Place) -> None:
    """Each release raises the schema by its own helpers, and goes on with the threads of the one before."""
    forks: dict[str, int] = {}
    for seed, name in enumerate(pythons(), 10):
        written = releases[name].ask("write", place, seed=seed)
        forks |= written["forks"]
    await threadkeep.upgrade(place.url)
    await prove_that_it_came_over(place, written | {"forks": forks})
    await prove_that_it_goes_on(place, {"threads": dict([*written["threads"].items()][::5])})


async def test_a_fork_that_goes_on_like_its_source_is_cut_where_it_was(releases: Releases, place: Place) -> None:
    """Both say something of their own after the fork, and then the same."""
    await prove_that_twins_come_over(releases, place, identical=False)


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
async def test_also_if_both_go_on_with_the_same_words(releases: Releases, place: Place) -> None:
    """Only ids and exact times tell such messages from copies, and cubepi's times on MySQL are whole seconds."""
    await prove_that_twins_come_over(releases, place, identical=True)


async def prove_that_twins_come_over(releases: Releases, place: Place, *, identical: bool) -> None:
    *_, newest = pythons()
    written = releases[newest].ask("write twins", place, identical=identical)
    await threadkeep.upgrade(place.url)
    await prove_that_it_came_over(place, written)


async def test_a_run_that_is_spelled_in_several_ways_stays_one(releases: Releases, place: Place) -> None:
    """On MySQL it was one to cubepi, and each message keeps its spelling. On SQLite and PostgreSQL it was several."""
    *_, newest = pythons()
    written = releases[newest].ask("write spellings", place)
    await threadkeep.upgrade(place.url)
    await prove_that_it_came_over(place, written)


async def test_odd_values_come_over(first_or_last: Release, place: Place) -> None:
    """NaN, deep nesting, lone surrogates, 8 MB: what the release and its database took is there, whatever we take."""
    written = first_or_last.ask("write oddities", place)
    await threadkeep.upgrade(place.url)
    await prove_that_it_came_over(place, written)
