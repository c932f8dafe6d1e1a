"""What all tests share. Where their servers come from is told in `servers.py`."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings

import servers
from racing import start_racers

# No deadline: how long an example takes is the server's affair. HYPOTHESIS_PROFILE chooses.
settings.register_profile("dev", deadline=None, max_examples=50)
# The same examples on every run, and the line that replays a failure.
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("stress", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_unconfigure() -> None:
    servers.stop()


@pytest.fixture(scope="session")
def racers() -> Iterator[ProcessPoolExecutor]:
    with start_racers() as racers:
        yield racers


@pytest.fixture(params=["sqlite", *servers.SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that several processes can meet in: one SQLite file, and each server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/threads.db"
    else:
        with servers.migrated_database(request.param) as url:
            yield url
