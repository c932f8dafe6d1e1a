"""Databases without tables, one of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from migrations.databases import Place

KINDS = ("sqlite", *servers.SERVERS)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database, on each kind of server in turn and on SQLite."""
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=servers.SERVERS)
def server_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same for what does not hold on SQLite, which upgrades itself."""
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=[server for server in servers.SERVERS if server != "postgresql"])
def mysql_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same for what only MySQL and MariaDB do: they commit each DDL statement by itself."""
    yield from _place(request.param, tmp_path)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """The same for what only SQLite does."""
    return Place.of_file(tmp_path / "threads.db")


def _place(kind: str, folder: Path) -> Iterator[Place]:
    if kind == "sqlite":
        yield Place.of_file(folder / "threads.db")
    else:
        with servers.fresh_database(kind) as url:
            yield Place(kind, url)
