"""These tests need old releases of cubepi and cubeloop, each in an environment of its own: `nox -s cubepi` makes them.

Where THREADKEEP_OLD_RELEASES does not name them, these tests do not exist for pytest, rather than being skipped one by
one. Asked for by name, this folder then gives "no tests ran", and with it an exit code that fails the session.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import servers
from migrations.databases import Place
from with_cubepi.releases import Release, Releases, pythons

if not pythons():
    collect_ignore_glob = ["test_*.py"]

KINDS = ("sqlite", *servers.SERVERS)


@pytest.fixture(scope="session")
def releases() -> Iterator[Releases]:
    """The old releases, running."""
    running = Releases()
    yield running
    running.close()


@pytest.fixture(params=list(pythons()))
def release(request: pytest.FixtureRequest, releases: Releases) -> Release:
    """Each of them in turn."""
    return releases[request.param]


@pytest.fixture(params=[*pythons()][:: max(len(pythons()) - 1, 1)])
def first_or_last(request: pytest.FixtureRequest, releases: Releases) -> Release:
    """The oldest and the newest of them, where those between would show nothing else."""
    return releases[request.param]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database, on each kind of server in turn and on SQLite."""
    with _place(request.param, tmp_path) as place:
        yield place


@pytest.fixture(params=servers.SERVERS)
def server_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same for what only servers have."""
    with _place(request.param, tmp_path) as place:
        yield place


@pytest.fixture(params=[server for server in servers.SERVERS if server != "postgresql"])
def mysql_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same for what only MySQL and MariaDB have."""
    with _place(request.param, tmp_path) as place:
        yield place


@pytest.fixture(autouse=True)
def server_settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that changes a server's settings, marked `alone`, has all servers to itself."""
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    with (tmp_path_factory.getbasetemp().parent / "server settings").open("w") as file:
        fcntl.flock(file, kind)
        yield


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """The same for what only SQLite does."""
    return Place.of_file(tmp_path / "threads.db")


@contextmanager
def _place(kind: str, folder: Path) -> Iterator[Place]:
    if kind == "sqlite":
        yield Place.of_file(folder / "threads.db")
    else:
        with servers.fresh_database(kind) as url:
            yield Place(kind, url)
