"""The program `alembic`, from the repository's own folder."""

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

import threadkeep
from migrations.databases import (
    NEWEST,
    Place,
    drift_of,
    prove_that_it_is_what_the_model_describes,
    prove_that_it_works,
    version_rows,
)
from migrations.finishing import apply_script
from migrations.golden import prove_that_legacy_threads_go_on, prove_that_nothing_was_lost, put_v3
from migrations.program import REPOSITORY, alembic, alembic_well
from threadkeep.migrations.upgrading import alembic_config
from threadkeep.sql.tables import metadata

HEAD = ScriptDirectory.from_config(alembic_config()).get_current_head()


async def test_a_fresh_database_comes_up_and_shows_no_drift(place: Place) -> None:
    alembic_well("-x", f"url={place.url}", "upgrade", "head")  # the other way to give the URL
    assert f"{HEAD} (head)" in alembic_well("current", url=place.url)
    assert "No new upgrade operations detected" in alembic_well("check", url=place.url)
    assert await version_rows(place) == NEWEST
    await prove_that_it_works(place)
    await prove_that_it_is_what_the_model_describes(place)


async def test_drift_would_be_found(place: Place) -> None:
    """Else the test above would prove nothing."""
    await threadkeep.upgrade(place.url)
    assert await drift_of(place) == ""

    def change(conn: sa.Connection) -> None:
        metadata.tables["cubepi_runs"].indexes.copy().pop().drop(conn)
        conn.exec_driver_sql("ALTER TABLE cubepi_pending ADD COLUMN surplus INTEGER")

    await place.run(change)
    drift = await drift_of(place)
    assert "ix_cubepi_runs_thread_seq" in drift
    assert "surplus" in drift


async def test_the_script_makes_the_same_schema(place: Place) -> None:
    await apply_script(place)
    assert await version_rows(place) == NEWEST
    assert await place.execute("SELECT version_num FROM cubepi_alembic_version") == [(HEAD,)]
    assert await drift_of(place) == ""
    await prove_that_it_works(place)


async def test_told_so_the_script_takes_a_v3_database_over(place: Place) -> None:
    await put_v3(place)
    await apply_script(place, "-x", "cubepi=3")
    assert await version_rows(place) == NEWEST
    assert await drift_of(place) == ""
    await prove_that_nothing_was_lost(place)
    await prove_that_legacy_threads_go_on(place)
    await threadkeep.upgrade(place.url)
    assert await place.execute("SELECT version_num FROM cubepi_alembic_version") == [(HEAD,)]


def test_history_needs_no_database() -> None:
    history = alembic_well("history")
    assert (
        history.index("v9 -> threadkeep_v10")
        < history.index("v8 -> threadkeep_v9")
        < history.index("v7 -> threadkeep_v8")
        < history.index("v6 -> threadkeep_v7")
        < history.index("v5 -> threadkeep_v6")
        < history.index("v4 -> threadkeep_v5")
        < history.index("v3 -> threadkeep_v4")
        < history.index("<base> -> ")
    )


def one_line_of(*words: str, url: str | None = None) -> str:
    outcome = alembic(*words, url=url)
    assert outcome.code != 0
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    return line


@pytest.mark.parametrize("words", [("upgrade", "head"), ("upgrade", "head", "--sql")])
def test_without_a_url_it_says_how_to_give_one(words: tuple[str, ...]) -> None:
    line = one_line_of(*words)
    assert "THREADKEEP_URL" in line
    assert "-x url=" in line


@pytest.mark.parametrize(
    "url",
    [
        "oracle://user:hidden@host/database",
        "postgresql://user:hidden@127.0.0.1:1/database",
        "postgresql://user:hid/den@127.0.0.1:1/database",
        "mysql://user:hidden@127.0.0.1:1/database",
        "sqlite:////no/such/folder/file.db",
    ],
)
def test_a_bad_url_gets_one_line_without_the_password(url: str) -> None:
    line = one_line_of("upgrade", "head", url=url)
    assert "hid" not in line


async def test_what_cannot_be_undone_says_so_in_one_line(sqlite_place: Place) -> None:
    """On SQLite alone: the refusal is in the revision and looks at no database."""
    await threadkeep.upgrade(sqlite_place.url)
    outcome = alembic("downgrade", "threadkeep_v3", url=sqlite_place.url)
    assert outcome.code != 0
    assert "Traceback" not in outcome.err
    assert "v3 cannot hold" in outcome.err


async def test_what_was_there_before_v6_stays(place: Place) -> None:
    """Down and up again: a database of the release before has the same rows."""
    await threadkeep.upgrade(place.url)
    async with place.checkpointer() as cp:
        await cp.claim_run("thread", "run")
        await cp.save_extra("thread", {"kept": True})
        before = await cp.load("thread"), await cp.threads.get("thread"), await cp.runs.list("thread")
    alembic_well("downgrade", "threadkeep_v5", url=place.url)
    assert await version_rows(place) == [(1005, "0.1.0")]
    await threadkeep.upgrade(place.url)
    assert await drift_of(place) == ""
    async with place.checkpointer() as cp:
        assert (await cp.load("thread"), await cp.threads.get("thread"), await cp.runs.list("thread")) == before


@pytest.mark.parametrize("kept", ["call", "checkpoint", "lease", "status"])
async def test_what_v5_has_no_place_for_stays_at_v6(sqlite_place: Place, kept: str) -> None:
    """On SQLite alone: what the revision looks for is the same everywhere."""
    async with sqlite_place.checkpointer() as cp:
        await cp.save_extra("thread", {})
        match kept:
            case "call":
                await cp.ledger.issue("thread", "call", "tool", {})
            case "checkpoint":
                await cp.checkpoints.save("thread")
            case "lease":
                async with cp.runs.lease("thread", "run", ttl=1):
                    pass
            case "status":
                await cp.threads.set_status("thread", "failed")
    outcome = alembic("downgrade", "threadkeep_v5", url=sqlite_place.url)
    assert outcome.code != 0
    assert "v5 has no place" in outcome.err
    assert await version_rows(sqlite_place) == NEWEST


def test_our_folder_does_not_hide_the_library() -> None:
    assert not (REPOSITORY / "alembic" / "__init__.py").exists()
