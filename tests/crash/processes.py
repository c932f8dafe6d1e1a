"""Starts workers, reads what they say, and kills, stops and continues them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from crash.worker import Job, encoded


class Worker:
    """One worker process at a time; each job is done by a new one."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._code: int | None = 0
        self.lines: list[str] = []
        """All that it has said and that was read."""

    def start(self, job: Job) -> None:
        """A new process, which has this job. What it says is read from then on."""
        assert self._program.stdin is not None
        assert self._code is not None, "the last one has not ended yet"
        self._code = None
        self.lines = []
        self._program.stdin.write(encoded(job) + "\n")
        self._program.stdin.flush()
        word, pid = self._next().split()
        assert word == "started"
        self._pid = int(pid)

    def next_line(self) -> str | None:
        """What it says next; None once it has ended."""
        if self._code is None:
            line = self._next()
            word, _, code = line.partition(" ")
            if word != "ended":
                self.lines.append(line)
                return line
            self._code = int(code)
        return None

    def wait_for(self, *wanted: str) -> str | None:
        """Read on until it says one of these. None if it ended first."""
        while (line := self.next_line()) is not None:
            if line in wanted:
                return line
        return None

    def end(self) -> int:
        """Read all it says until it has ended. Its exit code, or minus the signal that ended it."""
        while self.next_line() is not None:
            pass
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def stop(self) -> None:
        """Have it do nothing from now on, as a machine does that sleeps."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def kill_if_alive(self) -> None:
        if self._code is None:
            self.kill()
            self.end()

    def close(self) -> None:
        self.kill_if_alive()
        self._program.communicate()  # closes its input, at which it ends

    def _send(self, number: signal.Signals) -> None:
        # Also to one that has ended in the meantime: it is not forgotten before the next is started.
        os.kill(self._pid, number)

    def _next(self) -> str:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        assert line, "the worker's program has failed: its traceback is in the captured stderr"
        return line.rstrip("\n")
