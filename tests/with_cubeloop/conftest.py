"""These tests need cubeloop, which is no dependency of ours: `nox -s cubeloop` installs it and runs them.

Where it is missing they do not exist for pytest, rather than being skipped one by one. Asked for by name,
this folder then gives "no tests ran", and with it an exit code that fails the session.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

import servers
import threadkeep

if any(distributions(name="cubeloop")):
    from . import travel_agent
else:
    collect_ignore_glob = ["test_*.py"]

IN_THIS_PROCESS = "memory://"


@pytest.fixture(params=["memory", "sqlite", *servers.SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind, new and with our tables."""
    match request.param:
        case "memory":
            yield IN_THIS_PROCESS
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'agent.db'}"
        case server:
            with servers.migrated_database(server) as server_url:
                yield server_url


@pytest.fixture
async def checkpointer(url: str) -> AsyncIterator[Any]:
    """Ours, with cubeloop's message and request classes."""
    async with threadkeep.open_checkpointer(url, **travel_agent.TYPES) as opened:
        yield opened


@pytest.fixture
def respond_elsewhere(url: str, checkpointer: Any) -> Callable[[str, str, Any], Awaitable[None]]:
    """Give an answer from another process, which opens the database anew and shares no object with this one.

    What MemoryCheckpointer keeps lives and dies with its process, so nobody can resume it from another; there
    a second agent does it, which has nothing from the first but the checkpointer and the ids.
    """

    async def respond(thread_id: str, run_id: str, answer: Any) -> None:
        if url == IN_THIS_PROCESS:
            agent = travel_agent.travel_agent(checkpointer, thread_id, run_id)
            await travel_agent.respond(travel_agent.pause_when_asking(agent), answer)
            return
        process = await travel_agent.other_process("respond", url, thread_id, run_id, json.dumps(answer))
        await process.communicate()
        assert process.returncode == 0, "the resuming process failed: its traceback is in the captured stderr"

    return respond
