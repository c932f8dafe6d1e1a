"""`threadkeep upgrade` and `threadkeep check`."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

import threadkeep
from cli.program import run, run_well
from programs import Outcome
from threadkeep.migrations.upgrading import alembic_config, on_connection
from threadkeep.sql.tables import SCHEMA_VERSION

SERVER_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}


@pytest.fixture
def server_name(request: pytest.FixtureRequest) -> str:
    return SERVER_NAMES[request.node.callspec.params["empty_url"]]


async def bring_to(url: str, revision: str) -> None:
    def upgrade(conn: sa.Connection) -> None:
        command.upgrade(alembic_config(conn), revision)

    await on_connection(url, upgrade)


def refusal(outcome: Outcome) -> str:
    """The one line that a command which failed has said."""
    assert (outcome.code, outcome.out) == (1, "")
    assert len(outcome.err.splitlines()) == 1
    return outcome.err


def test_an_empty_database_is_refused_until_it_is_upgraded(empty_url: str, server_name: str) -> None:
    assert "threadkeep upgrade URL" in refusal(run("check", empty_url))
    (made,) = run_well("upgrade", empty_url).lines
    assert f"made the schema, version {SCHEMA_VERSION}" in made
    (again,) = run_well("upgrade", empty_url).lines
    assert again.startswith("nothing to do")
    (ok,) = run_well("check", empty_url).lines
    assert ok.startswith(f"ok: threadkeep {threadkeep.__version__} ")
    assert f"schema {SCHEMA_VERSION}, {server_name} " in ok


async def test_an_older_schema_is_refused_and_the_upgrade_says_from_where_to_where(empty_url: str) -> None:
    await bring_to(empty_url, "threadkeep_v9")
    old = SCHEMA_VERSION - 1

    assert f"version {old}" in refusal(run("check", empty_url))
    (upgraded,) = run_well("upgrade", empty_url).lines
    assert f"from version {old} to {SCHEMA_VERSION}" in upgraded


def test_commands_that_look_do_not_upgrade_an_older_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    asyncio.run(bring_to(url, "threadkeep_v4"))
    before = (tmp_path / "old.db").read_bytes()

    for words in (["check"], ["threads"], ["show", "a"], ["resume", "a"], ["fork", "a", "b", "--after=c"]):
        assert "threadkeep upgrade URL" in refusal(run(words[0], url, *words[1:]))
    assert (tmp_path / "old.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["old.db"]


@pytest.mark.parametrize("open_to_us", [True, False])
def test_a_newer_schema_is_taken_only_if_it_is_open_to_this_library(open_to_us: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/newer.db"
    asyncio.run(threadkeep.upgrade(url))
    newer = (9999, "0.0.1" if open_to_us else "999.0")
    with sqlite3.connect(tmp_path / "newer.db") as connection:
        connection.execute("UPDATE cubepi_schema_version SET version = ?, oldest_library = ?", newer)
        connection.execute("UPDATE cubepi_alembic_version SET version_num = 'of the future'")
    connection.close()

    if open_to_us:
        assert "schema 9999 (newer than its own" in run_well("check", url).out
        assert run_well("upgrade", url).out.startswith("nothing to do: the schema is version 9999, newer")
    else:
        for name in ("check", "upgrade"):
            assert "upgrade threadkeep" in refusal(run(name, url))


def test_upgrade_makes_a_sqlite_file(tmp_path: Path) -> None:
    run_well("upgrade", "sqlite:///new.db", cwd=tmp_path)
    assert (tmp_path / "new.db").is_file()
