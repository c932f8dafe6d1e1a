"""What an operation costs as its thread grows, and as the database fills with other threads.

    python benchmarks/growth.py --png growth.png sqlite postgresql mysql mariadb

First one database with threads of 100, 1,000, 10,000 and 100,000 messages: every operation is asked of each of them in
turns. Then two databases with the same small thread, in one of which are few other threads and in the other many: again
in turns. What is told are the medians, and the median of the ratios within a round: a machine that is noisy for a while
is noisy for both.

With --strict, it ends with an error if a target is missed: `append`, `claim_run` and `mark_run_complete` cost the
longest thread at most 1.3 times what they cost the shortest, and nothing costs more among many other threads.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import growth_plot
import growth_rows
import pytest
from context_window import KINDS, WINDOW, console, database
from growth_rows import Advance
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from transcripts import answer

import servers
import threadkeep

SIZES = "100,1000,10000,100000"
TARGET = 1.3
FLAT_BY_SIZE = ("append", "claim_run", "mark_run_complete")
FEW = 200
SMALL = 100
"""Messages of the thread whose operations are measured among other threads."""
_WARM_UP = 7
"""asyncpg's prepared statements are planned anew five times, and then perhaps once for all."""
_WHOLE_EVERY = 30
"""What reads a whole thread is asked once while the rest is asked so many times, but not less than three times."""

Operation = Callable[["Place", int], Awaitable[Any]]
Times = dict[str, list[float]]
Result = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where an operation is asked for: a checkpointer, and threads of one size in its database."""

    cp: Any
    logs: list[str]
    """As many as it takes that appending does not make them much longer."""
    compacted: str
    messages: int
    ids: list[str]
    """Of messages in the first of the logs."""

    def log(self, turn: int) -> str:
        return self.logs[turn % len(self.logs)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    arguments.add_argument("--sizes", type=sizes, default=SIZES, help=f"messages in the threads; {SIZES}")
    arguments.add_argument("--threads", type=int, default=100_000, help="other threads; 100000, or 0 to leave them out")
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments.add_argument("--png", type=Path, metavar="FILE", help="draw the growth by messages (needs matplotlib)")
    arguments.add_argument("--strict", action="store_true", help="end with an error if a target is missed")
    given = arguments.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    if 0 < given.threads < FEW:
        arguments.error(f"--threads must be {FEW} or more, or 0")
    results: list[Result] = []
    try:
        for kind in given.kinds or KINDS:
            try:
                results.append(measure(kind, given.sizes, given.threads, given.rounds))
            except pytest.skip.Exception as why:
                console.print(f"{kind}: {why}")
                continue
            show(results[-1])
            if given.json:
                given.json.write_text(json.dumps(results, indent=2) + "\n")
    finally:
        servers.stop()
    if given.png and results:
        growth_plot.draw(results, given.png)
    missed = [
        f"{result['kind']}: {name}: {figures['ratio']:.2f}"
        for result in results
        for part in ("by_size", "by_threads")
        for name, figures in result[part].items()
        if figures["is_met"] is False
    ]
    if missed:
        console.print(f"More than {TARGET} times as much:", *missed, sep="\n  ")
        sys.exit(1 if given.strict else 0)
    console.print("No target is missed.")


def sizes(text: str) -> list[int]:
    given = sorted(int(size) for size in text.split(","))
    if len(given) < 2 or given[0] <= WINDOW:
        raise argparse.ArgumentTypeError(f"needs two sizes or more, each above {WINDOW}")
    return given


def measure(kind: str, sizes: list[int], threads: int, rounds: int) -> Result:
    """All figures of one kind of database."""
    result: Result = {"kind": kind, "rounds": rounds, "sizes": sizes, "threads": [FEW, threads], "by_threads": {}}
    with bars() as progress, database(kind) as url:
        result["by_size"] = asyncio.run(by_size(kind, url, sizes, rounds, progress))
    if threads:
        with bars() as progress, ExitStack() as opened:
            urls = {str(count): opened.enter_context(database(kind)) for count in (FEW, threads)}
            result["by_threads"] = asyncio.run(by_threads(kind, urls, rounds, progress))
    return result


# ---- as the thread grows --------------------------------------------------------------------------------


async def by_size(kind: str, url: str, sizes: list[int], rounds: int, progress: Progress) -> Result:
    """The figures of every operation on threads of these sizes, in one database."""
    async with threadkeep.open_checkpointer(url) as cp:
        copies = {size: -(-10 * (rounds + _WARM_UP) // size) for size in sizes}
        task = progress.add_task(f"{kind}: filling threads", total=sum(size * (copies[size] + 1) for size in sizes))
        places = {}
        for size in sizes:
            place = await make_place(cp, url, size, copies[size], lambda more: progress.advance(task, more))
            await growth_rows.add_children(url, place.logs[0])
            places[str(size)] = place
        await growth_rows.settle(kind, url)
        listing = {"threads.list": lambda place, _: place.cp.threads.list(parent_thread_id=place.logs[0], limit=WINDOW)}
        times = await in_turns({**writing(), **reading(), **listing}, places, rounds, progress)
        await in_turns(reading_all(), {"first": places[str(sizes[0])]}, _WARM_UP, progress)
        times |= await in_turns(reading_all(), places, max(3, rounds // _WHOLE_EVERY), progress, is_each_alone=True)
    times["load, per message"] = {
        size: [taken / places[size].messages for taken in each] for size, each in times.pop("load").items()
    }
    return {name: figures_of(taken, TARGET if name in FLAT_BY_SIZE else None) for name, taken in times.items()}


async def make_place(cp: Any, url: str, size: int, copies: int, advance: Advance) -> Place:
    logs, compacted = [log_of(size, number) for number in range(copies)], f"compacted-{size}"
    ids = [await growth_rows.fill(cp, url, thread, size, advance) for thread in (*logs, compacted)]
    await growth_rows.compact(cp, compacted)
    return Place(cp, logs, compacted, size, ids[0])


def log_of(size: int, number: int = 0) -> str:
    return f"log-{size}-{number}"


def writing() -> dict[str, Operation]:
    """In this order: a run is claimed before it is completed."""

    async def append(place: Place, turn: int) -> None:
        thread = place.log(turn)
        await place.cp.append(thread, [answer(growth_rows.open_run_of(thread, place.messages))])

    return {
        "append": append,
        "claim_run": lambda place, turn: place.cp.claim_run(place.log(turn), f"turn-{turn}"),
        "mark_run_complete": lambda place, turn: place.cp.mark_run_complete(place.log(turn), f"turn-{turn}"),
        "save_extra": lambda place, turn: place.cp.save_extra(place.log(turn), {"turn": turn}),
    }


def reading() -> dict[str, Operation]:
    return {
        "context.load": lambda place, _: place.cp.context.load(place.compacted),
        "context.items": lambda place, _: place.cp.context.items(place.compacted),
        "messages.list": lambda place, _: place.cp.messages.list(place.logs[0], limit=WINDOW, reverse=True),
        "messages.get": lambda place, turn: place.cp.messages.get(place.logs[0], place.ids[turn % len(place.ids)]),
    }


def reading_all() -> dict[str, Operation]:
    return {
        "load": lambda place, _: place.cp.load(place.logs[0]),
        "resume": lambda place, _: place.cp.resume(place.logs[0]),
    }


# ---- as the database fills with others ------------------------------------------------------------------


async def by_threads(kind: str, urls: dict[str, str], rounds: int, progress: Progress) -> Result:
    """The figures of every operation on the same small thread, in databases with so many other threads."""
    places = {}
    async with AsyncExitStack() as opened:
        task = progress.add_task(f"{kind}: filling databases", total=sum(map(int, urls)))
        for count, url in urls.items():
            cp = await opened.enter_async_context(threadkeep.open_checkpointer(url))
            await growth_rows.add_others(url, int(count), log_of(SMALL), lambda more: progress.advance(task, more))
            places[count] = await make_place(cp, url, SMALL, 1, lambda _: None)
            await growth_rows.settle(kind, url)
        operations = {**writing(), "append to a new thread": new_thread, **reading(), **reading_all(), **listing()}
        times = await in_turns(operations, places, rounds, progress)
    return {name: figures_of(taken, TARGET) for name, taken in times.items()}


async def new_thread(place: Place, turn: int) -> None:
    thread = uuid.uuid4().hex
    await place.cp.append(thread, [answer(f"{thread}-run")])


def listing() -> dict[str, Operation]:
    def by(**filters: Any) -> Operation:
        return lambda place, _: place.cp.threads.list(limit=WINDOW, **filters)

    return {
        "threads.list": by(),
        "threads.list, parent": by(parent_thread_id=log_of(SMALL)),
        "threads.list, a status of all": by(status="active"),
        "threads.list, a status of few": by(status="failed"),
        "threads.list, metadata of many": by(metadata=growth_rows.COMMON),
        "threads.list, metadata of few": by(metadata=growth_rows.RARE),
        "threads.list, both metadata": by(metadata=growth_rows.COMMON | growth_rows.RARE),
        "threads.list, metadata of many and a status": by(metadata=growth_rows.COMMON, status="failed"),
    }


# ---- measuring ------------------------------------------------------------------------------------------


async def in_turns(
    operations: dict[str, Operation],
    places: dict[str, Place],
    rounds: int,
    progress: Progress,
    *,
    is_each_alone: bool = False,
) -> dict[str, Times]:
    """Milliseconds of every operation in every place. Each round begins with another place.

    A long thread takes long to forget, and it may take the whole buffer of a server: what is each alone waits for the
    one, and against the other it is first asked for nothing, unless it is as long itself.
    """
    times: dict[str, Times] = {name: {place: [] for place in places} for name in operations}
    warm_up = 0 if is_each_alone else _WARM_UP
    task = progress.add_task("measuring", total=warm_up + rounds)
    names = list(places)
    longest = max(place.messages for place in places.values())
    for turn in range(warm_up + rounds):
        first = turn % len(names)
        for operation, each in operations.items():
            taken = times[operation]
            for name in (*names[first:], *names[:first]):
                if is_each_alone:
                    if places[name].messages < longest:
                        await each(places[name], turn)
                    await asyncio.sleep(0)  # the event loop has the last result until then
                    gc.collect()
                began = time.perf_counter()
                await each(places[name], turn)
                ended = time.perf_counter()
                if turn >= warm_up:
                    taken[name].append((ended - began) * 1_000)
        progress.advance(task)
    return times


def figures_of(taken: Times, target: float | None) -> Result:
    """Medians and quartiles, and how many times as much the last place takes as the first."""
    medians = {place: statistics.median(times) for place, times in taken.items()}
    first, *_, last = medians
    in_pairs = [there / here for here, there in zip(taken[first], taken[last], strict=True)]
    ratio = statistics.median(in_pairs)
    return {
        "medians": medians,
        "quartiles": {place: quartiles(times) for place, times in taken.items()},
        "ratio": ratio,
        "ratio_quartiles": quartiles(in_pairs),
        "target": target,
        "is_met": None if target is None else ratio <= target,
    }


def quartiles(values: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


# ---- telling --------------------------------------------------------------------------------------------


def bars() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def show(result: Result) -> None:
    kind, (few, many) = result["kind"], result["threads"]
    show_part(f"{kind}: milliseconds, by messages in the thread", result["by_size"], result["sizes"])
    if result["by_threads"]:
        title = f"{kind}: milliseconds on a thread of {SMALL} messages, by other threads"
        show_part(title, result["by_threads"], [few, many])


def show_part(title: str, part: Result, places: list[int]) -> None:
    table = Table(title=title)
    table.add_column("operation")
    for place in places:
        table.add_column(f"{place:,}", justify="right")
    table.add_column("")
    table.add_column("ratio", justify="right")
    table.add_column("quartiles", justify="right")
    table.add_column(f"≤ {TARGET}")
    for name, figures in part.items():
        medians = list(figures["medians"].values())
        table.add_row(
            name,
            *(f"{milliseconds:.3g}" if milliseconds < 1_000 else f"{milliseconds:,.0f}" for milliseconds in medians),
            growth_plot.sparkline(medians),
            f"{figures['ratio']:.2f}",
            "{:.2f} to {:.2f}".format(*figures["ratio_quartiles"]),
            verdict(figures),
        )
    console.print(table)


def verdict(figures: Result) -> str:
    if figures["is_met"] is None:
        return "[dim]no target"
    return "[green]yes" if figures["is_met"] else "[red]no"


if __name__ == "__main__":
    main()
