"""Databases that several processes can meet in: one SQLite file, and each server."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from racing import start_racers
from servers import SERVERS, migrated_database


@pytest.fixture(scope="session")
def racers() -> Iterator[ProcessPoolExecutor]:
    with start_racers() as racers:
        yield racers


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/threads.db"
    else:
        with migrated_database(request.param) as url:
            yield url
