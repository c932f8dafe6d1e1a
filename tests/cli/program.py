"""Runs the real program, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
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


def run(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The outcome of `threadkeep words…`, in this folder, with these environment variables."""
    return run_as([*PROGRAM, *words], cwd, env)


def run_well(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The same, for what must succeed and have nothing to complain about."""
    outcome = run(*words, cwd=cwd, env=env)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome


def run_as(command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The same, for a command of several words instead of `threadkeep`."""
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, timeout=60, encoding="utf-8")
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return inherited | {"PYTHONUTF8": "1"} | dict(variables or {})
