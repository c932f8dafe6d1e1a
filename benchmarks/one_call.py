"""One call in a process of its own, so that its memory is its own.

`python one_call.py OPERATION URL THREAD MESSAGES KIND` prints one line of JSON. OPERATION is a key of `OPERATIONS`,
KIND one of `KINDS`; with `trace` after it, what is told is which lines of Python held the most when most was held.
"""

import asyncio
import ctypes
import gc
import json
import resource
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from transcripts import talk, transcript

import threadkeep

Call = Callable[[Any, str, Any], Awaitable[Any]]

_WARM_UP = 20
_STATUS = Path("/proc/self/status")
_FRAMES = 40
"""Between a line of ours and the driver's lie some thirty of SQLAlchemy's."""
_SITES = 8


# ---- the calls ------------------------------------------------------------------------------------------


async def append(cp: Any, thread: str, messages: Any) -> None:
    await cp.append(thread, messages)


async def load(cp: Any, thread: str, _: Any) -> Any:
    return await cp.load(thread)


async def stream(cp: Any, thread: str, _: Any) -> None:
    async for _record in cp.messages.stream(thread):
        pass


Messages = Callable[[str, int], Iterator[Any]]
KINDS: dict[str, Messages] = {"talk": talk, "transcript": transcript}

OPERATIONS: dict[str, tuple[Call, dict[str, Any]]] = {
    # With the options of the checkpointer.
    "append": (append, {}),
    "load": (load, {}),
    "load-dict": (load, {"message_type": dict}),
    "stream": (stream, {}),
}


def main(operation: str, url: str, thread: str, messages: int, kind: str, is_trace: bool) -> None:
    call, options = OPERATIONS[operation]
    work = trace if is_trace else measure
    given = list(KINDS[kind](thread, messages)) if call is append else None
    print(json.dumps(asyncio.run(work(call, url, thread, given, options))))


# ---- how much -------------------------------------------------------------------------------------------


async def measure(
    call: Call, url: str, thread: str, given: list[Any] | None, options: dict[str, Any]
) -> dict[str, int]:
    """In bytes: the most that the call took, how much of it is kept while its result is, and what the caller holds."""
    async with threadkeep.open_checkpointer(url, **options) as cp:
        await warm_up(cp, call, thread, options)
        before = settled()
        forget_peak()
        result = await call(cp, thread, given)
        peak = memory("VmHWM")
        await asyncio.sleep(0)  # until then the event loop has our future, and the future what it got from the store
        kept = settled() - before
    return {"peak": peak - before, "kept": kept, "objects": size_of(given or result)}


async def warm_up(cp: Any, call: Call, thread: str, options: dict[str, Any]) -> None:
    """What is made once for a process is not the call's: compiled statements, connections, a driver's caches."""
    small = f"{thread}-warm-{time.monotonic_ns()}"
    given = list(transcript(small, _WARM_UP))
    if options.get("message_type") is dict:
        given = [message.model_dump() for message in given]
    await cp.append(small, given)
    await call(cp, f"{small}-again" if call is append else small, given)


def size_of(root: Any) -> int:
    """The size of an object and of all that it holds, each counted once. What belongs to no one object is left out."""
    total, seen, left = 0, set(), [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        left += gc.get_referents(each)
        if isinstance(each, dict):
            left += each  # its keys, which the collector passes over if all of them are strings
    return total


def settled() -> int:
    """What is in memory once all is given back that is of no use. glibc keeps what was freed, and what a call takes
    from there would not be seen as taken."""
    gc.collect()
    with suppress(AttributeError, OSError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)
    return memory("VmRSS")


def forget_peak() -> None:
    """Let VmHWM begin again with what there is now. Where that cannot be, the rise is told too low, if at all."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    """VmRSS or VmHWM in bytes; elsewhere than on Linux the most there ever was, for both."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


# ---- where ----------------------------------------------------------------------------------------------


async def trace(call: Call, url: str, thread: str, given: list[Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """The lines that held the most at the peak. What is not Python's, such as SQLite's own memory, is not seen.

    The call is made twice: when the second time comes as near to the first one's peak as it has been, it is looked at.
    """
    async with threadkeep.open_checkpointer(url, **options) as cp:
        await warm_up(cp, call, thread, options)
        gc.collect()
        tracemalloc.start(_FRAMES)
        await call(cp, thread, given)
        gc.collect()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.clear_traces()
        watch = Watch(peak)
        watch.start()
        await call(cp, f"{thread}-again" if call is append else thread, given)
        watch.done.set()
        watch.join()
        tracemalloc.stop()
    return {"peak": peak, "seen": watch.most, "sites": sites(watch.snapshot)}


class Watch(threading.Thread):
    """Takes pictures of what is allocated, each time that it is clearly more than in the last one."""

    def __init__(self, peak: int) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.most = int(peak * 0.7)
        self.snapshot: tracemalloc.Snapshot | None = None

    def run(self) -> None:
        while not self.done.wait(0.002):
            now, _ = tracemalloc.get_traced_memory()
            if now > self.most * 1.03:
                self.most, self.snapshot = now, tracemalloc.take_snapshot()


def sites(snapshot: tracemalloc.Snapshot | None) -> list[dict[str, Any]]:
    """Where memory was allocated, and the line of ours that led there."""
    held: Counter[tuple[str, str]] = Counter()
    for found in snapshot.traces if snapshot else ():
        frames = [f"{frame.filename}:{frame.lineno}" for frame in reversed(found.traceback)]
        ours = next((frame for frame in frames if "threadkeep/" in frame), frames[0])
        held[frames[0], ours] += found.size
    return [
        {"bytes": size, "site": shortened(site), "ours": shortened(ours)}
        for (site, ours), size in held.most_common(_SITES)
    ]


def shortened(site: str) -> str:
    for folder in ("site-packages/", "src/", "lib/"):
        site = site.rpartition(folder)[2]
    return site


if __name__ == "__main__":
    _, operation, url, thread, messages, kind, *more = sys.argv
    main(operation, url, thread, int(messages), kind, more == ["trace"])
