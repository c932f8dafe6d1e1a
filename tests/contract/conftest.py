"""The fixtures that the conformance kit asks for, over every backend there is."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backends import BACKENDS, Backend


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture
async def checkpointer(backend: Backend) -> AsyncIterator[Any]:
    async with backend.opened() as checkpointer:
        yield checkpointer


@pytest.fixture
def make_checkpointer(backend: Backend) -> Any:
    return backend.opened
