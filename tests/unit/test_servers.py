"""Where the tests' servers come from: the order, the skip and the failure, in pytest runs of their own."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from servers import SERVERS, NotAvailable, _program, fresh_database, migrated_database

TESTS = Path(__file__).parents[1]
NO_DOCKER = {"DOCKER_HOST": "tcp://127.0.0.1:1"}
NO_PROGRAMS = {"PATH": ""}

ASK = """
import servers
servers.PROGRAM_FOLDERS = ()

def test_postgresql():
    servers.server_url("postgresql")

def test_mysql():
    servers.server_url("mysql")

def test_mariadb():
    servers.server_url("mariadb")
"""


def run_pytest(folder: Path, tests: str, environment: dict[str, str]) -> str:
    """What a run of these tests prints, with our settings and conftest, and nothing from this environment."""
    file = folder / "test_inner.py"
    file.write_text(tests)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("THREADKEEP", "DOCKER"))}
    words = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "0", "-rA", str(file)]
    return subprocess.run(
        [*words, "-c", str(TESTS.parent / "pyproject.toml")],
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "COLUMNS": "1000",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    ).stdout


# ---- which server -------------------------------------------------------------------------------------


def test_a_url_in_the_environment_comes_first_and_nothing_else_is_tried(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
import sys
import servers

def test_url():
    assert servers.server_url("mysql") == "mysql://somebody@127.0.0.1:1/none"
    assert "testcontainers" not in sys.modules
""",
        {"THREADKEEP_TEST_MYSQL_URL": "mysql://somebody@127.0.0.1:1/none"},
    )
    assert "1 passed" in output


def test_a_url_that_does_not_answer_fails_the_test(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
import servers

def test_database():
    with servers.fresh_database("postgresql"):
        pass
""",
        {"THREADKEEP_TEST_POSTGRESQL_URL": "postgresql://somebody@127.0.0.1:1/none"},
    )
    assert "1 failed" in output


def test_without_a_server_the_skip_says_what_was_tried(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, ASK, NO_DOCKER | NO_PROGRAMS)
    assert "3 skipped" in output
    for kind, program in [("postgresql", "initdb"), ("mysql", "mysqld"), ("mariadb", "mariadb-install-db")]:
        (reason,) = [line for line in output.splitlines() if f"no {kind} server" in line]
        assert f"THREADKEEP_TEST_{kind.upper()}_URL is not set; no Docker engine answers" in reason
        assert f"; {program} is not on this machine. Set THREADKEEP_TEST_{kind.upper()}_URL" in reason


def test_a_required_server_that_is_missing_fails_the_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, ASK, NO_DOCKER | NO_PROGRAMS | {"THREADKEEP_REQUIRE": "mysql,mariadb"})
    assert "2 failed, 1 skipped" in output
    assert "THREADKEEP_REQUIRE names mysql" in output
    assert "THREADKEEP_REQUIRE names mariadb" in output


def test_docker_is_asked_before_programs_are_started(tmp_path: Path, engine_without_images: str) -> None:
    output = run_pytest(tmp_path, ASK, {"DOCKER_HOST": engine_without_images} | NO_PROGRAMS)
    assert "3 skipped" in output
    (reason,) = [line for line in output.splitlines() if "no postgresql server" in line]
    assert 0 < reason.index("Docker did not start postgres:17") < reason.index("initdb is not on this machine")


@pytest.fixture
def engine_without_images() -> Iterator[str]:
    """The URL of something that answers as a Docker engine does, but has and finds no image."""

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.endswith(("/version", "/_ping", "/info"))
            self.answer(200 if known else 404, b'{"ApiVersion": "1.44"}')

        def do_POST(self) -> None:
            self.answer(404, b'{"message": "no such image"}')

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_programs_on_this_machine_are_started_and_stopped(tmp_path: Path) -> None:
    try:
        _program("initdb")
    except NotAvailable as reason:
        pytest.skip(f"{reason}; it is PostgreSQL's, whose server is the quickest to start")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - the server's user has to get in, and is not the tests'
        output = run_pytest(
            tmp_path,
            """
import servers

def test_database():
    with servers.fresh_database("postgresql") as url:
        print("started", url)
""",
            NO_DOCKER | {"TMPDIR": folder, "THREADKEEP_REQUIRE": "postgresql"},
        )
        assert "1 passed" in output
        (url,) = [line.split()[1] for line in output.splitlines() if line.startswith("started ")]
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", make_url(url).port or 0)) != 0, "the server still runs"
        assert os.listdir(folder) == []


# ---- databases on it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_fresh_database_is_empty_and_goes_even_while_it_is_in_use(kind: str) -> None:
    with fresh_database(kind) as url:
        engine = engine_for(url)
        connection = await engine.connect()
        assert await connection.run_sync(table_names) == []
        await connection.execute(text("CREATE TABLE notes (note VARCHAR(10))"))
        await connection.commit()
        await connection.execute(text("INSERT INTO notes VALUES ('a 🧵')"))  # and no commit
    with pytest.raises(DBAPIError):
        await connection.execute(text("SELECT * FROM notes"))
    await connection.close()
    await engine.dispose()


@pytest.mark.parametrize("kind", SERVERS)
async def test_migrated_databases_are_separate_and_at_the_newest_schema(kind: str) -> None:
    with migrated_database(kind) as first, migrated_database(kind) as second:
        one, two = engine_for(first), engine_for(second)
        async with one.begin() as connection:
            assert (await connection.execute(text("SELECT version FROM cubepi_schema_version"))).all()
            await connection.execute(text("DELETE FROM cubepi_schema_version"))
        async with one.connect() as ours, two.connect() as theirs:
            assert (await theirs.execute(text("SELECT version FROM cubepi_schema_version"))).all()
            assert await ours.run_sync(table_names) == await theirs.run_sync(table_names)
        await one.dispose()
        await two.dispose()


def engine_for(url: str) -> AsyncEngine:
    parsed = make_url(url)
    driver = {"postgresql": "asyncpg", "mysql": "asyncmy"}[parsed.drivername]
    return create_async_engine(parsed.set(drivername=f"{parsed.drivername}+{driver}"))


def table_names(connection: Connection) -> list[str]:
    return sorted(inspect(connection).get_table_names())
