"""Inside a host's own Alembic: the two hosts in examples/host_with_alembic, run as their README says.

In one_head/ a revision of the host's calls ours. In branch/ ours are a branch of the host's history.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

import threadkeep
from backends import host_url
from cli.program import run_well
from migrations.databases import NEWEST, Place, prove_that_it_works, schema_of, version_rows
from migrations.golden import everything, prove_that_nothing_was_lost, put_v3
from migrations.program import REPOSITORY
from programs import run
from threadkeep import CubepiSchemaMismatch
from threadkeep.migrations import hosts_own
from threadkeep.sql.tables import metadata

EXAMPLE = REPOSITORY / "examples" / "host_with_alembic"
NO_DRIFT = "No new upgrade operations detected.\n"


@dataclass(frozen=True)
class Host:
    """One way to have our revisions in a host's history, on one database."""

    folder: Path
    place: Place

    @property
    def calls_ours(self) -> bool:
        """Or else has them as a branch."""
        return self.folder.name == "one_head"

    def alembic(self, *words: str) -> str:
        """What `alembic words…` prints. It must succeed."""
        return self.run("alembic", *words)

    def upgrade(self, *words: str) -> str:
        return self.alembic("upgrade", "head" if self.calls_ours else "heads", *words)

    def run(self, *words: str) -> str:
        kind, url = self.place.kind, self.place.url
        url = url.replace("sqlite:", "sqlite+aiosqlite:") if kind == "sqlite" else host_url(kind, url)
        outcome = run(*words, cwd=self.folder, env={"DATABASE_URL": url})
        assert outcome.code == 0, outcome.err
        return outcome.out


@pytest.fixture(params=["one_head", "branch"])
def host(request: pytest.FixtureRequest, place: Place) -> Host:
    """Each host, on an empty database of each kind."""
    return Host(EXAMPLE / request.param, place)


async def everything_in(place: Place) -> tuple[Any, Any]:
    return await place.run(lambda conn: (schema_of(conn), everything(conn)))


async def said_in(place: Place) -> dict[str, list[str]]:
    """The texts of every thread."""
    async with place.checkpointer() as checkpointer:
        threads = [record.thread_id for record in await checkpointer.threads.list()]
        return {id_: [m.content[0].text for m in (await checkpointer.load(id_)).messages] for id_ in threads}


# ---- from nothing ---------------------------------------------------------------------------------------


async def test_a_fresh_database_gets_the_hosts_tables_and_ours(place: Place, host: Host) -> None:
    host.upgrade()
    version_tables = {"alembic_version", "cubepi_alembic_version"} if host.calls_ours else {"alembic_version"}
    assert set(await place.run(schema_of)) == {"users", "orders", "ratings", *metadata.tables, *version_tables}
    assert await version_rows(place) == NEWEST
    await prove_that_it_works(place)
    assert host.run("python", "../shop.py") == "said:    ['I have ordered a lamp.']\nordered: ['lamp']\n"

    heads = host.alembic("heads").splitlines()
    current = {line.split()[0] for line in host.alembic("current").splitlines()}
    if host.calls_ours:
        assert heads == ["0005 (head)"]
        assert current == {"0005"}
    else:
        assert heads == ["0004 (shop) (head)", "threadkeep_v10 (threadkeep) (head)"]
        assert current == {"0004", "threadkeep_v10"}

    before = await everything_in(place)
    host.upgrade()
    assert host.alembic("check") == NO_DRIFT
    assert run_well("upgrade", place.url).out.startswith("nothing to do")
    assert await everything_in(place) == before


async def test_a_host_takes_us_in_and_goes_on_with_its_own_history(place: Place, host: Host) -> None:
    """Its revisions after ours have an `op` that works, in both directions, and our rows stay."""
    host.alembic("upgrade", "0002")
    assert set(await place.run(schema_of)) == {"users", "orders", "alembic_version"}
    await place.execute(
        "INSERT INTO users (id, email) VALUES (7, 'bob@example.com')",
        "INSERT INTO orders (id, user_id, item) VALUES (8, 7, 'chair')",
    )
    host.upgrade()
    assert await place.execute("SELECT id, user_id, item, thread_id FROM orders") == [(8, 7, "chair", None)]
    host.run("python", "../shop.py")

    # In one_head/ this goes back behind the revision that calls ours.
    host.alembic("downgrade", "0002")
    tables = await place.run(schema_of)
    assert "ratings" not in tables
    assert set(tables["orders"]["columns"]) == {"id", "user_id", "item"}
    assert await said_in(place) == {"chat": ["I have ordered a lamp."]}

    host.upgrade()
    assert host.alembic("check") == NO_DRIFT
    assert await said_in(place) == {"chat": ["I have ordered a lamp."]}


# ---- from a database of cubepi's ------------------------------------------------------------------------


async def test_a_database_of_cubepis_is_taken_over_and_shows_no_drift(place: Place, host: Host) -> None:
    await put_v3(place, partitioned=False)
    host.upgrade()
    assert host.alembic("check") == NO_DRIFT
    assert run_well("upgrade", place.url).out.startswith("nothing to do")
    await prove_that_nothing_was_lost(place)
    await prove_that_it_works(place)


async def test_without_the_filter_a_host_would_drop_our_tables(place: Place) -> None:
    """On PostgreSQL also the partitions that cubepi made, with the messages in them."""
    ours = {*metadata.tables, "cubepi_alembic_version"}
    if place.kind == "postgresql":
        await put_v3(place)
        ours |= {f"cubepi_messages_p{number:02}" for number in range(64)}
    await threadkeep.upgrade(place.url)

    def dropped(conn: sa.Connection, **options: Any) -> set[str]:
        context = MigrationContext.configure(conn, opts=options)
        # A host without a table: whatever is there seems to be too much.
        return {change[1].name for change in compare_metadata(context, sa.MetaData()) if change[0] == "remove_table"}

    assert await place.run(dropped) == ours
    assert await place.run(lambda conn: dropped(conn, include_name=hosts_own)) == set()


# ---- as a script ----------------------------------------------------------------------------------------


async def test_the_hosts_script_makes_the_same_as_its_upgrade(place: Place, host: Host, tmp_path: Path) -> None:
    if host.calls_ours:
        host = one_that_calls_ours_again(host, tmp_path / "host")
    await place.execute(*statements_of(host.upgrade("--sql")))
    made = await everything_in(place)
    await prove_that_it_works(place)
    host.upgrade()
    await threadkeep.upgrade(place.url)
    assert host.alembic("check") == NO_DRIFT
    assert await everything_in(place) == made

    def drop_everything(conn: sa.Connection) -> None:
        there = sa.MetaData()
        there.reflect(conn)
        there.drop_all(conn)

    await place.run(drop_everything)
    host.upgrade()
    assert await everything_in(place) == made


def one_that_calls_ours_again(host: Host, folder: Path) -> Host:
    """As a host does when a later release of ours brings more. To both calls, all of it may be there already."""
    shutil.copytree(EXAMPLE, folder)
    versions = folder / host.folder.name / "versions"
    first = (versions / "0003_threadkeep.py").read_text()
    (versions / "0006_again.py").write_text(first.replace('"0003"', '"0006"').replace('"0002"', '"0005"'))
    return Host(folder / host.folder.name, host.place)


def statements_of(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    statements = [statement.strip() for statement in "\n".join(lines).split(";")]
    return [statement for statement in statements if statement not in ("", "BEGIN", "COMMIT")]


# ---- who is in charge -----------------------------------------------------------------------------------


async def test_our_own_upgrade_leaves_a_branch_to_the_host(place: Place) -> None:
    """It would have to write into the host's version table. It says who is to do it."""
    host = Host(EXAMPLE / "branch", place)
    host.alembic("upgrade", "threadkeep_v4")
    before = await everything_in(place)
    with pytest.raises(CubepiSchemaMismatch, match="alembic upgrade heads"):
        await threadkeep.upgrade(place.url)
    assert await everything_in(place) == before
    host.upgrade()
    await prove_that_it_works(place)


async def test_a_branch_does_not_begin_anew_where_our_own_upgrade_was(place: Place) -> None:
    """The host says where it stands, as with tables of its own that were there before Alembic."""
    host = Host(EXAMPLE / "branch", place)
    await threadkeep.upgrade(place.url)
    before = await place.run(schema_of)
    with pytest.raises(AssertionError, match="these tables are Threadkeep's"):
        host.upgrade()
    assert {name: table for name, table in (await place.run(schema_of)).items() if name in before} == before

    host.alembic("stamp", "threadkeep_v10")
    await place.execute("DROP TABLE cubepi_alembic_version")
    host.upgrade()
    assert host.alembic("check") == NO_DRIFT
    await threadkeep.upgrade(place.url)
    await prove_that_it_works(place)
