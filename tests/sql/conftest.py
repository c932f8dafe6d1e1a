"""Backends with a database behind them, and a host's engine on the same one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from backends import BACKENDS, Backend
from sql.sessions import Server

# Memory has no connection to use or to lose, and neither has a host's engine a ":memory:" database of ours to share.
ON_A_DATABASE = [name for name in BACKENDS if name not in ("memory", "sqlite-in-memory")]


@pytest.fixture(params=ON_A_DATABASE)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture
async def server(backend: Backend) -> AsyncIterator[Server]:
    assert backend.engine is not None
    engine = create_async_engine(backend.engine.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as looking:
        yield Server(looking)
    await engine.dispose()
