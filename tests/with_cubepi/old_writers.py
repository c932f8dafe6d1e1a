"""Writers that go on as fast as they can, each on a connection of its own, until their first error."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from with_cubepi.old_library import can, checkpointer, close_quietly
from with_cubepi.old_worker import asked, said

SHARED = "shared"
"""All writers append to this thread.

The rest goes to threads of their own: where two merge into one extra, cubepi 0.7.0 on SQLite loses some by itself.
"""


@dataclass
class Writer:
    """What one writer was told to be done. What it does next is not in here, and may be done or not."""

    number: int
    shared: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    new_threads: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    completed_runs: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    pending: str | None = None
    error: str | None = None
    rounds: int = 0

    @property
    def thread_id(self) -> str:
        return f"writer {self.number}"

    async def write(self, cp: Any, stop: asyncio.Event) -> None:
        while not stop.is_set():
            text = f"{self.number}:{self.rounds}"
            await cp.append(SHARED, [said(text)])
            self.shared.append(text)
            await cp.append(self.thread_id, [said(f"{text}:a"), said(f"{text}:b")])
            self.own += [f"{text}:a", f"{text}:b"]
            await cp.append(f"new {text}", [said(text)])
            self.new_threads.append(f"new {text}")
            await cp.save_extra(self.thread_id, {text: self.rounds})
            self.extra.append(text)
            await cp.save_pending_request(self.thread_id, asked(text), run_id=text)
            self.pending = text
            if can("claim_run"):
                await cp.claim_run(self.thread_id, text)
                await cp.append(self.thread_id, [said(f"{text}:c", text)])
                self.own.append(f"{text}:c")
                await cp.mark_run_complete(self.thread_id, text)
                self.completed_runs.append(text)
            if can("save_hitl_answer"):
                await cp.save_hitl_answer(self.thread_id, text, self.rounds)
                self.answers.append(text)
            self.rounds += 1


class Writers:
    """Some of them at once."""

    def __init__(self, kind: str, url: str) -> None:
        self._kind, self._url = kind, url
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Writer]] = []

    async def start(self, count: int) -> None:
        """Come back when each has done a round."""
        running = [Writer(number) for number in range(count)]
        self._tasks = [asyncio.create_task(self._run(writer)) for writer in running]
        while not all(writer.rounds or task.done() for writer, task in zip(running, self._tasks, strict=True)):
            await asyncio.sleep(0.01)

    async def finish(self, seconds: float) -> list[Writer]:
        """Wait for each to fail. One that still writes after this time is told to stop, and has no error."""
        await asyncio.wait(self._tasks, timeout=seconds)
        self._stop.set()
        return await asyncio.gather(*self._tasks)

    async def _run(self, writer: Writer) -> Writer:
        cp = checkpointer(self._kind, self._url)
        try:
            await cp.__aenter__()
            await writer.write(cp, self._stop)
        except Exception as error:  # whatever the release, its driver and the database make of it
            writer.error = f"{type(error).__name__}: {error}"
        finally:
            await close_quietly(cp)
        return writer
