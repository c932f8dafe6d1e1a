"""How long the upgrade of a large v3 database takes, who has to wait for it, and what it needs.

    nox -s benchmark-upgrade -- --messages 1000000 postgresql mysql mariadb sqlite

Each database is made as cubepi 0.7.0 made it, filled, upgraded in a process of its own, watched from other connections
meanwhile, and dropped. Ends with an error if a server's table was rewritten, or a message is missing.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from v3_database import V3Database
from v3_in_sqlite import V3InSqlite
from v3_on_mysql import V3OnMariadb, V3OnMysql
from v3_on_postgresql import V3OnPostgresql
from v3_rows import MESSAGES_PER_THREAD, thread_id_of
from watching import Outcome, Watched, watching

import servers
import threadkeep

KINDS: dict[str, type[V3Database]] = {
    "sqlite": V3InSqlite,
    "postgresql": V3OnPostgresql,
    "mysql": V3OnMysql,
    "mariadb": V3OnMariadb,
}
CHECKING = "checking"
FINISHING = "later revisions, commit"
_THREAD = thread_id_of(3)
_AROUND = 0.5  # seconds of watching before and after, to see what is usual
_SLOW = 1.0
_WIDTH = 60
_V3_TABLES = ("cubepi_threads", "cubepi_messages", "cubepi_schema_version", "the file")

Result = dict[str, Any]
console = Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--repeat", type=int, default=1, help="so many databases of each kind")
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    given = arguments.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    results: list[Result] = []
    try:
        for kind in given.kinds or KINDS:
            for _ in range(given.repeat):
                try:
                    with empty_database(kind) as url:
                        results.append(asyncio.run(measure(kind, url, given.messages)))
                except pytest.skip.Exception as why:
                    console.print(f"{kind}: {why}")
                    break
                show(results[-1])
    finally:
        servers.stop()
        if given.json:
            given.json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    show_all(results)
    if wrong := [f"{result['kind']}: {fault}" for result in results for fault in result["faults"]]:
        sys.exit("\n".join(wrong))


@contextlib.contextmanager
def empty_database(kind: str) -> Iterator[str]:
    if kind in servers.SERVERS:
        with servers.fresh_database(kind) as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/v3.db"


# ---- measuring ------------------------------------------------------------------------------------------


async def measure(kind: str, url: str, messages: int) -> Result:
    """Make the database, upgrade it, and tell everything about it."""
    database = KINDS[kind](url)
    await database.open()
    try:
        await database.create()
        with bar() as progress:
            task = progress.add_task(f"{kind}: filling", total=messages)
            await database.fill(messages, lambda more: progress.advance(task, more))
        stored = max(1, messages // MESSAGES_PER_THREAD) * MESSAGES_PER_THREAD
        size, identities = await database.size(), await database.identities()
        async with watching(database, _THREAD) as watched:
            events = await upgrade(kind, url)
        result = {
            "kind": kind,
            "version": await database.version(),
            "messages": stored,
            **figures_of_upgrade(events),
            **figures_of_watch(database, watched, events),
            **await figures_of_disk(database, watched, size, identities),
        }
        result["faults"] = await faults(database, result)
        return result
    finally:
        await database.close()


async def upgrade(kind: str, url: str) -> list[dict[str, Any]]:
    """Run the upgrade; what it told."""
    events: list[dict[str, Any]] = []
    program = Path(__file__).with_name("one_upgrade.py")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, program, url, stdin=pipe, stdout=pipe)
    # Both are there, as PIPE was asked for: this tells the type checker.
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    with bar() as progress:
        task = progress.add_task(f"{kind}: {CHECKING}", total=None)
        async for line in process.stdout:
            event = json.loads(line)
            events.append(event)
            if event["event"] == "ready":
                await asyncio.sleep(_AROUND)
                process.stdin.write(b"begin\n")
                process.stdin.close()
            elif event["event"] == "progress":
                name = event["step"] or (progress.tasks[task].description if event["within"] else FINISHING)
                progress.update(task, description=name, completed=event["done"], total=event["total"])
    if await process.wait() != 0:
        raise SystemExit(f"the upgrade of {kind} failed")
    await asyncio.sleep(_AROUND)
    return events


def bar() -> Progress:
    # Drawn rarely: it takes time from what is measured.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, refresh_per_second=2, transient=True)


def figures_of_upgrade(events: list[dict[str, Any]]) -> Result:
    times = {event["event"]: event["at"] for event in events if event["event"] in ("begin", "end")}
    memory = {event["event"]: event["memory"] for event in events if "memory" in event}
    begun = [(CHECKING, times["begin"])]
    begun += [(e["step"] or FINISHING, e["at"]) for e in events if e["event"] == "progress" and not e["within"]]
    ends = [at for _, at in begun[1:]] + [times["end"]]
    news = [times["begin"], *(e["at"] for e in events if e["event"] == "progress"), times["end"]]
    return {
        "seconds": times["end"] - times["begin"],
        "steps": [{"step": name, "seconds": end - at} for (name, at), end in zip(begun, ends, strict=True)],
        "longest_silence": max(later - earlier for earlier, later in itertools.pairwise(news)),
        "memory": {"before": memory["ready"], "peak": memory["end"]},
        "slow_statements": slow_statements(events),
    }


def slow_statements(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that took more than a second in all, the slowest first."""
    times: dict[str, list[float]] = {}
    for event in events:
        if event["event"] == "statement":
            times.setdefault(event["statement"], []).append(event["seconds"])
    slow: list[dict[str, Any]] = [
        {"statement": text, "times": len(each), "seconds": sum(each)} for text, each in times.items()
    ]
    return sorted((s for s in slow if s["seconds"] > _SLOW), key=lambda s: -s["seconds"])


def figures_of_watch(database: V3Database, watched: Watched, events: list[dict[str, Any]]) -> Result:
    begin, end = (next(e["at"] for e in events if e["event"] == name) for name in ("begin", "end"))
    written = [write for write in watched.writes if write.error is None]
    refused = [write for write in watched.writes if write.error is not None]
    locks = sorted(watched.locks.items(), key=lambda item: (item[0][0], -database.strength.index(item[0][1])))
    return {
        "reads": waits(watched.reads, begin),
        "writes": {
            **waits(watched.writes, begin),
            "succeeded": len(written),
            "last_success": max(write.ended for write in written) - begin,
            "first_refusal": min(write.ended for write in refused) - begin if refused else None,
            "refused_from": min(write.began for write in refused) - begin if refused else None,
        },
        "timeline": {"reads": timeline(watched.reads, begin, end), "writes": timeline(watched.writes, begin, end)},
        "blind": database.blind,
        "locks": [
            {
                "object": name,
                "lock": lock,
                "seconds": held.seconds,
                "first": held.first - begin,
                "last": held.last - begin,
            }
            for (name, lock), held in locks
        ],
        "server": {name: figure for name, figure in watched.figures.items() if name != "disk"},
    }


def waits(outcomes: list[Outcome], begin: float) -> Result:
    longest = max(outcomes, key=lambda outcome: outcome.seconds)
    return {
        "usual": statistics.median(outcome.seconds for outcome in outcomes if outcome.ended < begin),
        "longest": longest.seconds,
        "longest_at": longest.began - begin,
        "errors": Counter(outcome.error for outcome in outcomes if outcome.error is not None),
    }


def timeline(outcomes: list[Outcome], begin: float, end: float) -> str:
    """The time of the upgrade from left to right: ▁ answered at once, █ waiting, x refused."""
    cells = ["▁"] * _WIDTH
    scale = _WIDTH / (end - begin)
    for outcome, following in itertools.pairwise(outcomes):
        first, last = (int((at - begin) * scale) for at in (outcome.began, following.began))
        for cell in range(max(first, 0), min(last + 1, _WIDTH)):
            if outcome.seconds > 0.1:
                cells[cell] = "█"
            elif outcome.error is not None and cells[cell] != "█":
                cells[cell] = "x"
    return "".join(cells)


async def figures_of_disk(database: V3Database, watched: Watched, size: int, identities: dict[str, int]) -> Result:
    await database.settle()
    after = await database.identities()
    return {
        "disk": {"before": size, "peak": watched.figures.get("disk"), "after": await database.size()},
        "kept": {
            "what": database.kept,
            "same": sum(after.get(name) == identity for name, identity in identities.items()),
            "changed": [name for name, identity in identities.items() if after.get(name) != identity],
        },
    }


async def faults(database: V3Database, result: Result) -> list[str]:
    """What must not be: a rewritten table, a message that is lost or not counted, a thread that does not load."""
    found = [f"{name} was rewritten" for name in result["kept"]["changed"]]
    expected = result["messages"] + result["writes"]["succeeded"]
    stored, counted = await database.counted()
    if (stored, counted) != (expected, expected):
        found.append(f"{expected:,} messages were written, {stored:,} are there, {counted:,} were counted")
    async with threadkeep.open_checkpointer(database.url) as checkpointer:
        data = await checkpointer.load(_THREAD)
        if data is None or len(data.messages) != MESSAGES_PER_THREAD:
            found.append("a thread does not load whole")
    return found


# ---- telling --------------------------------------------------------------------------------------------


def show(result: Result) -> None:
    console.rule(f"{result['version']}, {result['messages']:,} messages: {result['seconds']:.1f} s")
    console.print(steps_of(result))
    console.print(summary_of(result))
    console.print(locks_of(result) if result["locks"] else f"Locks: {result['blind'] or 'none seen'}")
    for slow in result["slow_statements"]:
        told = f"{slow['seconds']:6.1f} s, {slow['times']} times: {slow['statement'][:200]}"
        console.print(told, style="dim", markup=False, highlight=False)
    for fault in result["faults"]:
        console.print(fault, style="bold red", markup=False)


def steps_of(result: Result) -> Table:
    table = Table("step", "seconds", "", title="Steps", title_justify="left")
    table.columns[1].justify = "right"
    for step in result["steps"]:
        share = step["seconds"] / result["seconds"]
        table.add_row(step["step"], f"{step['seconds']:.2f}", "█" * round(share * 40))
    return table


def summary_of(result: Result) -> Table:
    reads, writes, memory, disk = (result[name] for name in ("reads", "writes", "memory", "disk"))
    table = Table("figure", "value", title="Summary", title_justify="left")
    table.add_row("longest time without news of progress", f"{result['longest_silence']:.1f} s")
    table.add_row("peak memory of the upgrade", f"{mib(memory['peak'])}, of which {mib(memory['before'])} at its start")
    for name, figure in result["server"].items():
        table.add_row(f"{name}, at most", mib(figure))
    table.add_row(
        "longest wait of a read",
        f"{reads['longest']:.2f} s at {reads['longest_at']:.1f} s; usual: {1000 * reads['usual']:.1f} ms",
    )
    table.add_row(
        "longest wait of an old worker's write",
        f"{writes['longest']:.2f} s at {writes['longest_at']:.1f} s; usual: {1000 * writes['usual']:.1f} ms",
    )
    table.add_row("its last success", f"{writes['last_success']:.1f} s")
    if writes["first_refusal"] is not None:
        table.add_row("its first refusal", f"{writes['first_refusal']:.1f} s, sent at {writes['refused_from']:.1f} s")
    for name in ("reads", "writes"):
        table.add_row(name, result["timeline"][name])
    for name, outcome in (("reads", reads), ("writes", writes)):
        for error, count in outcome["errors"].items():
            table.add_row(f"refused {name}", f"{count:,} times {error.splitlines()[0][:90]}")
    peak = f", at most {mib(disk['peak'])}" if disk["peak"] else ""
    table.add_row("disk", f"{mib(disk['before'])} before, {mib(disk['after'])} after{peak}")
    kept = result["kept"]
    table.add_row(
        "kept", f"{kept['what']} of {kept['same']}, changed: {len(kept['changed'])}" if kept["same"] else kept["what"]
    )
    return table


def locks_of(result: Result) -> Table:
    table = Table(
        "object", "lock", "held for", "from", "to", title="Locks: the strongest on each", title_justify="left"
    )
    shown: set[str] = set()
    for lock in result["locks"]:
        if lock["object"] not in shown and lock["object"].startswith(_V3_TABLES):
            shown.add(lock["object"])
            times = [f"{lock[name]:.2f} s" for name in ("seconds", "first", "last")]
            table.add_row(lock["object"], lock["lock"], *times)
    return table


def show_all(results: list[Result]) -> None:
    table = Table("", "messages", "seconds", "longest read", "peak memory", "disk", title="All", title_justify="left")
    for result in results:
        memory, disk = result["memory"], result["disk"]
        table.add_row(
            result["version"],
            f"{result['messages']:,}",
            f"{result['seconds']:.1f}",
            f"{result['reads']['longest']:.2f} s",
            f"{mib(memory['before'])} → {mib(memory['peak'])}",
            f"{mib(disk['before'])} → {mib(disk['after'])}",
        )
    console.print(table)


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


if __name__ == "__main__":
    main()
