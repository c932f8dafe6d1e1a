"""Runs `threadkeep`, each time in a process of its own."""

import sys
from collections.abc import Mapping
from pathlib import Path

import programs
from programs import Outcome

PROGRAM = [sys.executable, "-m", "threadkeep.cli"]


def run(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The outcome of `threadkeep words…`, in this folder, with these environment variables."""
    return programs.run("threadkeep", *words, cwd=cwd, env=env)


def run_well(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The same, for what must succeed and have nothing to complain about."""
    return well(run(*words, cwd=cwd, env=env))


def well(outcome: Outcome) -> Outcome:
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome
