"""Backends with a database behind them, and a host's engine on the same one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends import BACKENDS, Backend
from sql.sessions import Server, looking_at

# Memory has no connection to use or to lose, and neither has a host's engine a ":memory:" database of ours to share.
ON_A_DATABASE = [name for name in BACKENDS if name not in ("memory", "sqlite-in-memory")]


@pytest.fixture(params=ON_A_DATABASE)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture
async def server(backend: Backend) -> AsyncIterator[Server]:
    async with looking_at(backend) as server:
        yield server
