"""A program for the Python of an old release: `python -m with_cubepi.old_release`, with our folder tests/ on its path.

It takes requests on stdin and gives each its answer on stdout, one JSON to a line, until stdin ends:

    {"do": "write", "kind": …, "url": …, "seed": …}    makes or raises the release's tables and writes conversations;
                                                        the answer is what the release itself then reads
    {"do": "write twins", …, "identical": …}           the same with a fork that goes on in its source's words
    {"do": "write spellings", "kind": …, "url": …}     the same with runs that are spelled in several ways
    {"do": "write oddities", "kind": …, "url": …}      the same with values at the edge of what it takes
    {"do": "start", "kind": …, "url": …}               tries to open a checkpointer
    {"do": "work", "kind": …, "url": …}                opens one and keeps it, with a thread for each of two turns;
    {"do": "try", "turn": …}                           every write that the kept one has, and the error of each
    {"do": "keep writing", "kind": …, "url": …}        several writers, who go on beside what is asked meanwhile
    {"do": "finish writing", "seconds": …}             waits until they have all failed; what they were told is done
    {"do": "let go"}                                   closes the kept checkpointer
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from with_cubepi.old_conversations import Author
from with_cubepi.old_library import Sql, checkpointer, close_quietly
from with_cubepi.old_oddities import write_oddities
from with_cubepi.old_reading import read_all
from with_cubepi.old_schema import make_schema
from with_cubepi.old_worker import attempt, operations, prepare, said
from with_cubepi.old_writers import Writers

TURNS = ("before", "after")


@asynccontextmanager
async def opened(kind: str, url: str, *, partitioned: bool = True) -> AsyncIterator[tuple[Any, Sql]]:
    """The release's checkpointer on its own tables, and a plain connection beside it."""
    if kind != "sqlite":
        await make_schema(kind, url, partitioned=partitioned)
    async with checkpointer(kind, url) as cp, Sql(kind, url) as sql:
        yield cp, sql


class Program:
    """What stays between two requests."""

    _worker: Any = None
    _writers: Writers

    async def write(self, kind: str, url: str, seed: int, partitioned: bool = True) -> Any:
        async with opened(kind, url, partitioned=partitioned) as (cp, sql):
            author = Author(cp, kind, seed)
            if hasattr(cp, "fork"):
                await author.remember(sql)
            await author.write()
            return {"threads": await read_all(cp, sql), "forks": author.forks}

    async def write_twins(self, kind: str, url: str, identical: bool) -> Any:
        async with opened(kind, url) as (cp, sql):
            author = Author(cp, kind, seed=1)
            await author.write_twins(identical=identical)
            return {"threads": await read_all(cp, sql), "forks": author.forks}

    async def write_spellings(self, kind: str, url: str) -> Any:
        async with opened(kind, url) as (cp, sql):
            author = Author(cp, kind, seed=1)
            await author.write_spellings()
            return {"threads": await read_all(cp, sql), "forks": author.forks}

    async def write_oddities(self, kind: str, url: str) -> Any:
        async with opened(kind, url) as (cp, sql):
            refused = await write_oddities(cp)
            return {"threads": await read_all(cp, sql), "forks": {}, "refused": refused}

    async def start(self, kind: str, url: str) -> Any:
        cp = checkpointer(kind, url)
        try:
            await cp.__aenter__()
        except Exception as error:  # whatever the release, its driver and the database make of it
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            await close_quietly(cp)
        return {"error": None}

    async def work(self, kind: str, url: str) -> Any:
        if kind != "sqlite":
            await make_schema(kind, url, partitioned=True)
        cp = checkpointer(kind, url)
        self._worker = await cp.__aenter__()
        for turn in TURNS:
            await prepare(self._worker, turn)
        return {"ready": True}

    async def try_(self, turn: str) -> Any:
        return {
            name: await attempt(write, self._worker, turn, f"{turn} new {name}") for name, write in operations().items()
        }

    async def let_go(self) -> Any:
        await close_quietly(self._worker)
        return {}

    async def keep_writing(self, kind: str, url: str, count: int = 3) -> Any:
        if kind != "sqlite":
            await make_schema(kind, url, partitioned=True)
        async with checkpointer(kind, url) as cp:
            await cp.append("quiet", [said("before")])
        self._writers = Writers(kind, url)
        await self._writers.start(count)
        return {"ready": True}

    async def finish_writing(self, seconds: float) -> Any:
        return [asdict(writer) for writer in await self._writers.finish(seconds)]


async def main() -> None:
    program = Program()
    requests: dict[str, Callable[..., Awaitable[Any]]] = {
        "write": program.write,
        "write twins": program.write_twins,
        "write spellings": program.write_spellings,
        "write oddities": program.write_oddities,
        "start": program.start,
        "work": program.work,
        "try": program.try_,
        "let go": program.let_go,
        "keep writing": program.keep_writing,
        "finish writing": program.finish_writing,
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        words = json.loads(line)
        answer = await requests[words.pop("do")](**words)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
