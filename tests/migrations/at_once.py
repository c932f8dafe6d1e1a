"""A program that says "ready", waits for a line, and then upgrades a database or opens it: `at_once.py VERB URL`."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import threadkeep
from threadkeep import TextContent, UserMessage


async def open_and_append(url: str) -> None:
    async with threadkeep.open_checkpointer(url) as checkpointer:
        await checkpointer.append("thread", [UserMessage(content=[TextContent(text="hello")])])


VERBS: dict[str, Callable[[str], Awaitable[None]]] = {"upgrade": threadkeep.upgrade, "open": open_and_append}


async def main(verb: str, url: str) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await VERBS[verb](url)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
