"""After the upgrade no old release writes into the database: none that was running, and none that starts."""

from typing import Any

import pytest

import threadkeep
from migrations.databases import Place
from with_cubepi.contents import rows_of, schema_of
from with_cubepi.releases import Release, Releases, pythons

PATIENCE = 30
"""Seconds within which a writer has to notice the upgrade."""


async def test_a_worker_that_is_running_fails_at_every_write(release: Release, place: Place) -> None:
    await prove_that_a_worker_fails(release, place)


@pytest.mark.alone
async def test_it_fails_also_where_nothing_is_strict(release: Release, mysql_place: Place) -> None:
    """There a server fills in what an old worker leaves out, and takes its rows."""
    (modes,) = (await mysql_place.execute("SELECT @@GLOBAL.sql_mode"))[0]
    await mysql_place.execute("SET GLOBAL sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    try:
        await prove_that_a_worker_fails(release, mysql_place)
    finally:
        await mysql_place.execute(f"SET GLOBAL sql_mode = '{modes}'")


async def prove_that_a_worker_fails(release: Release, place: Place) -> None:
    """It has written by every method before, on this very connection, and holds it open over the upgrade."""
    release.ask("work", place)
    try:
        before = release.ask("try", turn="before")
        assert {name: error for name, error in before.items() if error} == {}, "this tests nothing"
        await threadkeep.upgrade(place.url)
        rows, schema = await rows_of(place), await schema_of(place)

        after = release.ask("try", turn="after")

        assert [name for name, error in after.items() if error is None] == []
        assert await rows_of(place) == rows
        assert await schema_of(place) == schema
    finally:
        release.ask("let go")


async def test_no_release_starts(first_or_last: Release, releases: Releases, place: Place) -> None:
    """Whichever release has written the database, and whichever tries."""
    first_or_last.ask("write", place, seed=6)
    await threadkeep.upgrade(place.url)
    await prove_that_none_starts(releases, place)


async def test_no_release_starts_on_a_database_that_never_was_theirs(releases: Releases, server_place: Place) -> None:
    await threadkeep.upgrade(server_place.url)
    await prove_that_none_starts(releases, server_place)


async def test_in_a_file_that_never_was_theirs_they_touch_nothing_of_ours(
    releases: Releases, sqlite_place: Place
) -> None:
    """They make tables of their own there. Only a file that was theirs gets the views that keep them out."""
    await threadkeep.upgrade(sqlite_place.url)
    rows = await rows_of(sqlite_place)
    for name in pythons():
        assert releases[name].ask("start", sqlite_place)["error"] is None
    after = await rows_of(sqlite_place)
    assert {table: after[table] for table in rows} == rows


async def prove_that_none_starts(releases: Releases, place: Place) -> None:
    rows, schema = await rows_of(place), await schema_of(place)
    started = [name for name in pythons() if releases[name].ask("start", place)["error"] is None]
    assert started == []
    assert await rows_of(place) == rows
    assert await schema_of(place) == schema


async def test_nothing_is_lost_that_was_written_during_the_upgrade(release: Release, place: Place) -> None:
    """What an old writer was told is done is there afterwards, once and in its order; then it fails."""
    release.ask("keep writing", place)
    try:
        await threadkeep.upgrade(place.url)
    finally:
        writers = release.ask("finish writing", seconds=PATIENCE)

    assert [writer["number"] for writer in writers if writer["error"] is None] == [], "still writing"
    async with place.checkpointer() as cp:
        assert await texts_of(cp, "quiet") == ["before"]
        shared = await texts_of(cp, "shared")
        for writer in writers:
            assert_done(writer["shared"], [text for text in shared if text.startswith(f"{writer['number']}:")])
            await prove_that_nothing_is_lost(cp, writer)


async def prove_that_nothing_is_lost(cp: Any, writer: dict[str, Any]) -> None:
    thread_id = f"writer {writer['number']}"
    assert_done(writer["own"], await texts_of(cp, thread_id))
    extra = (await cp.load(thread_id)).extra
    assert_done(writer["extra"], sorted(extra, key=extra.__getitem__))
    for new in writer["new_threads"]:
        assert await texts_of(cp, new) == [new.removeprefix("new ")]
    runs = sorted((run for run in await cp.runs.list(thread_id) if run.completion_seq), key=lambda r: r.completion_seq)
    assert_done(writer["completed_runs"], [run.run_id for run in runs])
    for number, question_id in enumerate(writer["answers"]):
        assert await cp.load_hitl_answer(thread_id, question_id) == number
    # The last one that it was told is kept, or the next one, of which it was not told any more.
    request, run_id = await cp.load_pending(thread_id)
    assert request.thread_id == run_id
    asked, last = (int(text.partition(":")[2]) for text in (run_id, writer["pending"]))
    assert asked in (last, last + 1)


def assert_done(told: list[str], there: list[str]) -> None:
    """All that it was told is there, and at most its last step beyond that."""
    assert len(set(there)) == len(there), "something is there twice"
    assert there[: len(told)] == told
    assert len(there) <= len(told) + 2, "more than it was told"


async def texts_of(cp: Any, thread_id: str) -> list[str]:
    """What was said in a thread, which must have no gaps."""
    messages = (await cp.load(thread_id)).messages
    assert (await cp.threads.get(thread_id)).last_seq == len(messages)
    return [message.content[0].text for message in messages]
