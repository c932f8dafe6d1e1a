"""Watching an upgrade from other connections: who waits, who fails, and which locks it holds."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from v3_database import V3Database

PAUSE = 0.02
"""Seconds between two questions. A lock that is held for less may go unseen."""


@dataclass(frozen=True)
class Outcome:
    """How one statement fared."""

    began: float
    ended: float
    error: str | None

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Held:
    """A lock, as far as it was seen."""

    first: float
    last: float
    seconds: float = 0.0


@dataclass
class Watched:
    """All that was seen."""

    reads: list[Outcome] = field(default_factory=list)
    writes: list[Outcome] = field(default_factory=list)
    locks: dict[tuple[str, str], Held] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)


@asynccontextmanager
async def watching(database: V3Database, thread_id: str) -> AsyncIterator[Watched]:
    """Read this thread, write like an old worker, and look at the upgrade's session, all the time."""
    watched = Watched()
    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_ask_again(lambda: database.read(thread_id), watched.reads, done))
        tasks.create_task(_ask_again(database.write, watched.writes, done))
        tasks.create_task(_look_again(database, watched, done))
        try:
            yield watched
        finally:
            done.set()


async def _ask_again(ask: Callable[[], Awaitable[object]], outcomes: list[Outcome], done: asyncio.Event) -> None:
    while not done.is_set():
        began = time.monotonic()
        error = None
        try:
            await ask()
        except Exception as refused:  # each driver has errors of its own
            error = f"{type(refused).__name__}: {refused}"
        outcomes.append(Outcome(began, time.monotonic(), error))
        await asyncio.sleep(PAUSE)


async def _look_again(database: V3Database, watched: Watched, done: asyncio.Event) -> None:
    before: dict[tuple[str, str], float] = {}
    while not done.is_set():
        seen = await database.look()
        now = time.monotonic()
        for lock in seen.locks:
            held = watched.locks.setdefault(lock, Held(now, now))
            # Held from one look to the next. A pause between two looks may hide that it was let go.
            held.seconds += now - before.get(lock, now)
            held.last = now
        before = dict.fromkeys(seen.locks, now)
        for name, figure in seen.figures.items():
            watched.figures[name] = max(figure, watched.figures.get(name, 0))
        await asyncio.sleep(PAUSE)
