"""Databases for the command line to look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import servers

BACKENDS = ("sqlite", *servers.SERVERS)


@pytest.fixture(params=BACKENDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, on each backend in turn."""
    if request.param == "sqlite":
        (tmp_path / "empty.db").touch()
        yield f"sqlite:///{tmp_path}/empty.db"
    else:
        with servers.fresh_database(request.param) as url:
            yield url


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that is ready for use, on each backend in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ready.db"  # the checkpointer that fills it makes it
    else:
        with servers.migrated_database(request.param) as url:
            yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """For what is the same on every backend because it happens before or after the database."""
    return f"sqlite:///{tmp_path}/ready.db"
