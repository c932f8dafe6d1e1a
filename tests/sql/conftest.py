"""Backends with a database behind them, and a host's engine on the same one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends import BACKENDS, Backend

# Memory has no connection to use or to lose, and neither has a host's engine a ":memory:" database of ours to share.
ON_A_DATABASE = [name for name in BACKENDS if name not in ("memory", "sqlite-in-memory")]
OUR_OWN_POOLS = ["postgresql", "mysql", "mariadb"]


@pytest.fixture(params=ON_A_DATABASE)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend
