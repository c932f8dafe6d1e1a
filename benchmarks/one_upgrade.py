"""One upgrade in a process of its own, so that its memory is its own: `python one_upgrade.py URL`.

It begins when a line comes in. Everything that happens is printed, a line of JSON each, with the time of the machine's
monotonic clock.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import threadkeep
from threadkeep.migrations import environment  # noqa: F401 - to have it all in memory before the first measurement

_SLOW = 0.1


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def peak_memory() -> int:
    """The most that this process ever had in memory, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Linux counts what the parent had, at the moment it started us, into ru_maxrss.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def tell_of_slow_statements() -> None:
    began = 0.0

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def before(*_: Any) -> None:
        nonlocal began
        began = time.monotonic()

    @sa.event.listens_for(sa.Engine, "after_cursor_execute")
    def after(conn: object, cursor: object, statement: str, *_: Any) -> None:
        seconds = time.monotonic() - began
        if seconds > _SLOW:
            tell("statement", seconds=seconds, statement=" ".join(statement.split()))


def main(url: str) -> None:
    tell_of_slow_statements()
    tell("ready", memory=peak_memory())
    sys.stdin.readline()

    def progress(step: str, done: int, total: int, within: bool) -> None:
        tell("progress", step=step, done=done, total=total, within=within)

    tell("begin")
    asyncio.run(threadkeep.upgrade(url, progress=progress))
    tell("end", memory=peak_memory())


if __name__ == "__main__":
    main(sys.argv[1])
