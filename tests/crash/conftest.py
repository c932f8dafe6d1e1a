"""Workers that can be killed, and the file that their side effects go to."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.processes import Worker


@pytest.fixture
def effects(tmp_path: Path) -> str:
    """The file that side effects go to."""
    return str(tmp_path / "effects")


@pytest.fixture(scope="session")
def _workers() -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture
def new_worker(_workers: list[Worker]) -> Iterator[Callable[[], Worker]]:
    """Gives a worker that has nothing to do. Whatever it does when the test ends, it is killed."""
    taken: list[Worker] = []

    def take() -> Worker:
        worker = _workers.pop() if _workers else Worker()
        taken.append(worker)
        return worker

    yield take
    for worker in taken:
        worker.kill_if_alive()
        _workers.append(worker)


@pytest.fixture
def worker(new_worker: Callable[[], Worker]) -> Worker:
    return new_worker()
