"""Whatever is wrong is told in one line, with an exit code, without a traceback or a password."""

import asyncio
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

import servers
from cli.program import run
from programs import Outcome
from threadkeep import open_checkpointer

FAILED, MISUSED = 1, 2
GOOD = "sqlite:///good.db"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database, an empty file, a text file and a folder."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "empty.db").touch()
    (folder / "notes.txt").write_text("This is no database. " * 20)
    (folder / "sub").mkdir()

    async def fill() -> None:
        async with open_checkpointer(f"sqlite:///{folder}/good.db") as cp:
            await cp.claim_run("thread", "open")

    asyncio.run(fill())
    return folder


def told(outcome: Outcome) -> str:
    """The one line."""
    assert outcome.out == ""
    assert outcome.err.startswith("threadkeep: ")
    assert outcome.err.count("\n") == 1
    assert "\x1b" not in outcome.err
    assert "unexpected" not in outcome.err.replace("unexpected extra argument", "")
    return outcome.err


CASES: list[tuple[list[str], int, str]] = [
    # arguments
    (["nonsense"], MISUSED, "No such command 'nonsense'"),
    (["check"], MISUSED, "Missing argument 'URL'"),
    (["check", GOOD, "more"], MISUSED, "unexpected extra argument"),
    (["check", GOOD, "--loudly"], MISUSED, "No such option"),
    (["threads", GOOD, "--limit", "0"], MISUSED, "--limit"),
    (["threads", GOOD, "--status", "asleep"], MISUSED, "'asleep': it must be one of active, completed"),
    (["resume", GOOD], MISUSED, "Missing argument 'THREAD'"),
    (["fork", GOOD, "thread", "new"], MISUSED, "Missing option '--after'"),
    # URLs
    (["check", "good.db"], MISUSED, "not a database URL"),
    (["upgrade", "oracle://x"], MISUSED, "oracle://"),
    (["check", "sqlite://good.db"], MISUSED, "sqlite:///relative.db"),
    (["threads", "memory://"], MISUSED, "in memory"),
    (["upgrade", "sqlite://"], MISUSED, "in memory"),
    # files
    (["check", "sqlite:///missing.db"], FAILED, "there is no file"),
    (["threads", "sqlite:///mis\x1b[2J\nsing.db"], FAILED, "there is no file"),
    (["show", "sqlite:///missing.db", "thread"], FAILED, "there is no file"),
    (["resume", "sqlite:///missing.db", "thread", "--repair"], FAILED, "there is no file"),
    (["fork", "sqlite:///missing.db", "a", "b", "--after=c"], FAILED, "there is no file"),
    (["threads", "sqlite:///empty.db"], FAILED, "threadkeep upgrade URL"),
    (["check", "sqlite:///notes.txt"], FAILED, "not a database"),
    (["check", "sqlite:///sub"], FAILED, "unable to open"),
    (["upgrade", "sqlite:///no/such/folder.db"], FAILED, "there is no folder"),
    (["demo", "--keep", "good.db"], FAILED, "is there already"),
    (["demo", "--keep", "no/such/folder.db"], FAILED, "there is no folder"),
    (["demo", "--keep", "what?.db"], MISUSED, "cannot be written as a URL"),
    # threads and runs
    (["show", GOOD, "nowhere"], FAILED, "no thread 'nowhere': 'threadkeep threads URL'"),
    (["show", GOOD, " space"], MISUSED, "white space"),
    (["show", GOOD, "x" * 256], MISUSED, "256 bytes"),
    (["resume", GOOD, "nowhere"], FAILED, "no thread 'nowhere': 'threadkeep threads URL'"),
    (["resume", GOOD, "nowhere", "--repair"], FAILED, "no thread 'nowhere': 'threadkeep threads URL'"),
    (["resume", GOOD, "\x1b[31m"], MISUSED, "control character"),
    (["threads", GOOD, "--parent", "nowhere"], FAILED, "no thread 'nowhere': 'threadkeep threads URL'"),
    (["threads", GOOD, "--after", "nowhere"], FAILED, "no thread 'nowhere': 'threadkeep threads URL'"),
    (["fork", GOOD, "thread", "new", "--after=open"], FAILED, "not completed"),
    (["fork", GOOD, "thread", "\x1b[31m", "--after=open"], MISUSED, "control character"),
]


@pytest.mark.parametrize(("words", "code", "reason"), CASES, ids=[" ".join(case[0])[:50] for case in CASES])
def test_one_line_says_what_is_wrong(words: list[str], code: int, reason: str, folder: Path) -> None:
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    outcome = run(*words, cwd=folder)

    assert reason in told(outcome)
    assert outcome.code == code
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == before


def test_a_row_that_does_not_decode_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/broken.db"

    async def fill() -> None:
        async with open_checkpointer(url, message_type=Any) as cp:
            await cp.append("thread", ["fine", "broken"])

    asyncio.run(fill())
    with closing(sqlite3.connect(tmp_path / "broken.db")) as connection, connection:
        connection.execute("UPDATE cubepi_messages SET payload = ? WHERE seq = 2", (b"\xff\x1b[2J",))
    outcome = run("show", url, "thread")

    assert "cubepi_messages" in told(outcome)
    assert "'seq': 2" in outcome.err
    assert outcome.code == FAILED


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that refuses, and goes on refusing: another test cannot get it while it is bound here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


# A password as it is, with the characters that end it too early, in the options, and where no URL was expected.
LEAKS = [
    ["check", "postgresql://user:sesame@127.0.0.1:{port}/x"],
    ["upgrade", "postgresql://user:sesame@127.0.0.1:{port}/x"],
    ["check", "postgresql://user:sesa/sesame@127.0.0.1:{port}/x"],
    ["check", "postgresql://user:sesa?sesame@127.0.0.1:{port}/x"],
    ["check", "postgresql://user:sesa#sesame@127.0.0.1:{port}/x"],
    ["check", "postgresql://user:sesa@sesame@127.0.0.1:{port}/x"],
    ["check", "postgresql://127.0.0.1:{port}/x?password=sesame&user=me@home"],
    ["check", "postgresql://user:sesame@127.0.0.1:port/x"],
    ["check", "mysql://user:sesame@127.0.0.1:{port}/x"],
    ["check", "mysql://user:sesa?sesame@127.0.0.1:{port}/x"],
    ["upgrade", "mysql://user:sesa@sesame@127.0.0.1:{port}/x"],
    ["check", "mysql://user:sesame@127.0.0.1:port/x"],
    ["check", "user:sesame@postgresql://127.0.0.1"],
    ["postgresql://user:sesame@127.0.0.1:{port}/x"],
    ["check", "sqlite:///x.db", "postgresql://user:sesame@127.0.0.1:{port}/x"],
]


@pytest.mark.parametrize("words", LEAKS, ids=[" ".join(words) for words in LEAKS])
def test_no_part_of_a_password_is_shown(words: list[str], closed_port: int) -> None:
    outcome = run(*(word.format(port=closed_port) for word in words))

    assert outcome.code in (FAILED, MISUSED)
    assert "sesa" not in told(outcome)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_not_there_is_named(scheme: str, closed_port: int) -> None:
    outcome = run("threads", f"{scheme}://user:sesame@127.0.0.1:{closed_port}/x")

    assert f"cannot connect to {scheme}://***@127.0.0.1:{closed_port}/x: Connection refused" in told(outcome)
    assert outcome.code == FAILED


@pytest.mark.parametrize("kind", servers.SERVERS)
def test_a_database_that_is_not_on_the_server_is_named(kind: str) -> None:
    url = make_url(servers.server_url(kind)).set(database="no_such_database")
    outcome = run("check", url.render_as_string(hide_password=False))

    assert "no_such_database" in told(outcome)
    assert outcome.code == FAILED


# Not on PostgreSQL: the servers of these tests trust everybody there.
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_wrong_password_is_told_and_not_shown(kind: str) -> None:
    url = make_url(servers.server_url(kind)).set(password="sesame")  # noqa: S106 - it opens nothing
    outcome = run("check", url.render_as_string(hide_password=False))

    assert "Access denied" in told(outcome)
    assert "sesame" not in outcome.err
    assert outcome.code == FAILED
