"""Runs the real program, in a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = [sys.executable, "-m", "threadkeep.cli"]

# What a developer's own terminal may say about widths and colours is not to reach the tests.
_UNSET = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONIOENCODING"}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


def run(*words: str | Path, cwd: Path | None = None, **variables: str) -> Outcome:
    """The outcome of `threadkeep words…`, with these environment variables."""
    return run_as([*PROGRAM, *map(str, words)], cwd=cwd, **variables)


def run_as(command: list[str], *, cwd: Path | None = None, **variables: str) -> Outcome:
    done = subprocess.run(
        command, cwd=cwd, env=environment(**variables), capture_output=True, timeout=60, encoding="utf-8"
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_well(*words: str | Path, cwd: Path | None = None, **variables: str) -> Outcome:
    """The same, for what must succeed and have nothing to complain about."""
    outcome = run(*words, cwd=cwd, **variables)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return inherited | {"PYTHONUTF8": "1"} | variables
