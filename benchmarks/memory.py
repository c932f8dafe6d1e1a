"""How much memory it takes to append many messages in one call, to load them, and to stream them.

    python benchmarks/memory.py --messages 100000 sqlite postgresql mysql mariadb

Each call is made in a process of its own, which has made a small one like it before. What is told is how far the
process rose above what it had right before the call: for `append` the caller's messages were there already, for `load`
the messages that it returns are counted in. The data are the encoded payloads, as the database has them. The objects
are the messages as Python has them: the caller's, or those returned. The target is three times the data, and for
streaming, that ten times the messages take no more than 1.2 times as much.

With --trace, which lines of Python held the most when most was held.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from context_window import KINDS, console, database
from rich.table import Table

import servers
from threadkeep.message_log import MessageLog
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql import tables

CALLS = ("append", "load", "load-dict", "stream")
TARGET = 3.0
FLAT = 1.2
NOISE = 2 << 20
"""By so much two runs of the same may differ: a garbage collection comes earlier or later."""
_FEWER = 10
_MIB = 1 << 20

Result = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    arguments.add_argument("--of", choices=("talk", "transcript"), default="talk", help="text alone, or tools, too")
    arguments.add_argument("--messages", type=int, help="100000, or with --trace 2000: tracing takes long")
    arguments.add_argument("--calls", type=calls, default=",".join(CALLS), help=f"{','.join(CALLS)}, or some of them")
    arguments.add_argument("--repeat", type=int, default=1, help="so many processes for each call")
    arguments.add_argument("--trace", action="store_true", help="tell where the memory goes, and not how much")
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments.add_argument("--strict", action="store_true", help="end with an error if a target is missed")
    given = arguments.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    given.messages = given.messages or (2_000 if given.trace else 100_000)
    if "stream" in given.calls and not hasattr(MessageLog, "stream"):
        console.print("There is no messages.stream: it is left out.")
        given.calls.remove("stream")
    results: list[Result] = []
    try:
        for kind in given.kinds or KINDS:
            try:
                with database(kind) as url:
                    results.append(work_on(kind, url, given))
            except pytest.skip.Exception as why:
                console.print(f"{kind}: {why}")
    finally:
        servers.stop()
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")
    if given.trace:
        return
    show(results)
    told = [(result["kind"], name, call) for result in results for name, call in result["calls"].items()]
    missed = [f"{kind}: {name}" for kind, name, call in told if call["is_met"] is False]
    if missed:
        console.print("Missed:", *missed, sep="\n  ")
        sys.exit(1 if given.strict else 0)
    console.print("No target is missed.")


def calls(text: str) -> list[str]:
    given = text.split(",")
    if unknown := set(given) - set(CALLS):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}")
    return given


def work_on(kind: str, url: str, given: argparse.Namespace) -> Result:
    if given.trace:
        result = trace(kind, url, given.messages, given.of, given.calls)
        show_trace(result)
        return result
    with console.status(kind):
        return measure(kind, url, given.messages, given.of, given.repeat, given.calls)


def one_call(operation: str, url: str, thread: str, messages: int, of: str, *more: str) -> dict[str, Any]:
    """What the process told that made the call."""
    program = Path(__file__).with_name("one_call.py")
    words = [sys.executable, program, operation, url, thread, str(messages), of, *more]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)  # noqa: S603 - the words are our own
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def data_of(url: str, thread: str) -> int:
    """The bytes of the thread's payloads."""
    its_payloads = sa.select(sa.func.sum(sa.func.length(tables.messages.c.payload)))
    its_payloads = its_payloads.where(tables.messages.c.thread_id == thread)
    return int(asyncio.run(on_connection(url, lambda conn: conn.execute(its_payloads).scalar_one())))


# ---- how much -------------------------------------------------------------------------------------------


def measure(kind: str, url: str, messages: int, of: str, repeat: int, wanted: list[str]) -> Result:
    """What each call takes, and whether that is little enough."""
    thread, few = "thread-0", "few"
    told = {"append": [one_call("append", url, f"thread-{number}", messages, of) for number in range(repeat)]}
    data = {thread: data_of(url, thread)}
    for operation in ("load", "load-dict"):
        if operation in wanted:
            told[operation] = [one_call(operation, url, thread, messages, of) for _ in range(repeat)]
    calls = {name: figures_of(each, messages, data[thread], TARGET) for name, each in told.items()}
    if "stream" in wanted:
        one_call("append", url, few, messages // _FEWER, of)
        data[few] = data_of(url, few)
        for name, streamed, count in (("stream a tenth", few, messages // _FEWER), ("stream", thread, messages)):
            each = [one_call("stream", url, streamed, count, of) for _ in range(repeat)]
            calls[name] = figures_of(each, count, data[streamed], None)
        calls["stream"]["is_met"] = calls["stream"]["peak"] <= FLAT * calls["stream a tenth"]["peak"] + NOISE
    return {"kind": kind, "messages": messages, "of": of, "calls": calls}


def figures_of(told: list[dict[str, int]], messages: int, data: int, target: float | None) -> dict[str, Any]:
    median = {name: statistics.median(each[name] for each in told) for name in told[0]}
    peaks = [each["peak"] for each in told]
    return {
        "messages": messages,
        "data": data,
        **median,
        "peaks": [min(peaks), max(peaks)],
        "is_met": None if target is None else median["peak"] / data <= target,
    }


def show(results: list[Result]) -> None:
    table = Table(title="MiB above what the process had before the call")
    for column in ("", "call", "messages", "data", "objects", "peak", "", "kept", "peak/data", "target"):
        table.add_column(column, justify="left" if column in ("", "call") else "right")
    for result in results:
        for name, call in result["calls"].items():
            low, high = call["peaks"]
            colour = {True: "green", False: "red", None: "dim"}[call["is_met"]]
            target = f"{TARGET:g}" if name not in ("stream", "stream a tenth") else "flat" if name == "stream" else ""
            table.add_row(
                result["kind"],
                name,
                f"{call['messages']:,}",
                *(f"{call[which] / _MIB:.1f}" for which in ("data", "objects", "peak")),
                f"{low / _MIB:.0f} to {high / _MIB:.0f}",
                f"{call['kept'] / _MIB:.1f}",
                f"[{colour}]{call['peak'] / call['data']:.2f}",
                target,
            )
        table.add_section()
    console.print(table)
    console.print(
        "objects: the messages in Python, the caller's (in no other figure) or those returned (in peak and kept, too)\n"
        "kept: what the process still has more once the call is over"
    )


# ---- where ----------------------------------------------------------------------------------------------


def trace(kind: str, url: str, messages: int, of: str, wanted: list[str]) -> Result:
    # Traced or not, it is appended: the others read it.
    how = ("trace",) if "append" in wanted else ()
    told = {"append": one_call("append", url, "thread", messages, of, *how)}
    told |= {name: one_call(name, url, "thread", messages, of, "trace") for name in wanted if name != "append"}
    traced = {name: told[name] for name in wanted}
    return {"kind": kind, "messages": messages, "data": data_of(url, "thread"), "calls": traced}


def show_trace(result: Result) -> None:
    data = result["data"]
    for name, told in result["calls"].items():
        peak, seen = told["peak"] / data, told["seen"] / data
        table = Table(
            title=f"{result['kind']}: {name} of {result['messages']:,} messages",
            caption=f"{peak:.2f} times the data were held by Python at most, {seen:.2f} when looked at",
        )
        table.add_column("times data", justify="right")
        table.add_column("MiB", justify="right")
        table.add_column("allocated at")
        table.add_column("called by")
        for site in told["sites"]:
            size = site["bytes"]
            called_by = "" if site["ours"] == site["site"] else site["ours"]
            table.add_row(f"{size / data:.2f}", f"{size / _MIB:.1f}", site["site"], called_by)
        console.print(table)


if __name__ == "__main__":
    main()
