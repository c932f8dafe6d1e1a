"""What the context window of a long thread costs, beside a thread that is as short as the window.

    nox -s benchmark-context -- --messages 100000 sqlite postgresql mysql mariadb

One thread has 50 messages. The other has many, and all but 50 of its items are compacted: some old messages stay, one
summary stands for most, the newest came later. Both are read and written in turns, so that a noisy machine is noisy for
both, and what is told are the medians and their ratio.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import servers
import threadkeep
from threadkeep import TextContent, UserMessage
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

KINDS = ("sqlite", "postgresql", "mysql", "mariadb")
WINDOW = 50
STAYED = 10
_BATCH = 1_000
_TEXT = "So it goes, and what was said before is said again in other words. " * 14  # about 1 KB

console = Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    arguments.add_argument("--messages", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    given = arguments.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    if given.messages <= WINDOW:
        arguments.error(f"--messages must be more than {WINDOW}")
    results = []
    try:
        for kind in given.kinds or KINDS:
            try:
                with database(kind) as url:
                    results.append({"kind": kind, **asyncio.run(measure(kind, url, given.messages, given.rounds))})
            except pytest.skip.Exception as why:
                console.print(f"{kind}: {why}")
    finally:
        servers.stop()
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")
    show(results, given.messages)


@contextmanager
def database(kind: str) -> Iterator[str]:
    if kind in servers.SERVERS:
        with servers.fresh_database(kind) as url:
            asyncio.run(threadkeep.upgrade(url))
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/threads.db"


async def measure(kind: str, url: str, messages: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each operation, on the short thread and on the long one."""
    async with threadkeep.open_checkpointer(url) as cp:
        await fill(cp, kind, messages)
        items = await cp.context.items("long")
        later = WINDOW - STAYED - 1
        began = time.perf_counter()
        await cp.context.swap("long", items[STAYED : len(items) - later], said("All that was said."))
        swap = time.perf_counter() - began
        await on_connection(url, gather_statistics)
        window = await cp.context.load("long")
        if len(window) != WINDOW:
            sys.exit(f"{kind}: {len(window)} items are in the window, and not {WINDOW}")
        operations: dict[str, Callable[[str], Awaitable[Any]]] = {
            "load, and context.load": lambda thread: (cp.load if thread == "short" else cp.context.load)(thread),
            "context.load": cp.context.load,
            "context.items": cp.context.items,
            "messages.list, the last 50": lambda thread: cp.messages.list(thread, limit=WINDOW, reverse=True),
            # The last, because it makes the window longer.
            "append": lambda thread: cp.append(thread, [said("one more")]),
        }
        figures = {name: await in_turns(operation, rounds) for name, operation in operations.items()}
        return {"swap_seconds": swap, "operations": figures}


def gather_statistics(conn: sa.Connection) -> None:
    """As every server does by itself some time later: a plan that is good without them may be bad with them."""
    names = ", ".join(table.name for table in tables.metadata.sorted_tables)
    conn.exec_driver_sql("ANALYZE" if conn.dialect.name in ("sqlite", "postgresql") else f"ANALYZE TABLE {names}")


def said(text: str) -> UserMessage:
    return UserMessage(content=[TextContent(text=f"{text} {_TEXT}")])


async def fill(cp: Any, kind: str, messages: int) -> None:
    await cp.append("short", [said(f"{number}") for number in range(WINDOW)])
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{kind}: filling", total=messages)
        for first in range(0, messages, _BATCH):
            batch = [said(f"{number}") for number in range(first, min(first + _BATCH, messages))]
            await cp.append("long", batch)
            progress.advance(task, len(batch))


async def in_turns(operation: Callable[[str], Awaitable[Any]], rounds: int) -> dict[str, float]:
    """The medians in milliseconds, and how many times the short thread's the long one's is."""
    taken: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(rounds):
        for thread in taken:
            began = time.perf_counter()
            await operation(thread)
            taken[thread].append((time.perf_counter() - began) * 1_000)
    short, long = (statistics.median(times) for times in taken.values())
    return {"short": short, "long": long, "ratio": long / short}


def show(results: list[dict[str, Any]], messages: int) -> None:
    table = Table(title=f"Milliseconds: {WINDOW} messages, and {messages:,} with {WINDOW} items in the window")
    for column in ("", "operation", "short", "long", "ratio"):
        table.add_column(column, justify="left" if column in ("", "operation") else "right")
    for result in results:
        for name, figures in result["operations"].items():
            table.add_row(result["kind"], name, *(f"{figures[which]:.2f}" for which in ("short", "long", "ratio")))
        table.add_row(result["kind"], "swap (once)", "", f"{result['swap_seconds'] * 1_000:,.0f}", "", end_section=True)
    console.print(table)


if __name__ == "__main__":
    main()
