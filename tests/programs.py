"""Runs real programs, each time in a process of its own."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# What a developer's own terminal says of widths and colours is not to reach the tests, nor which database is theirs.
_UNSET = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONIOENCODING", "THREADKEEP_URL"}

_OF_CLICK = "ignore:'click.:DeprecationWarning"
"""What a new click says of an old typer is between the two."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


def run(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The outcome of `threadkeep …`, `alembic …` or `python file`, in this folder, with these environment variables."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        job = {"words": words, "cwd": str(cwd or Path.cwd()), "env": environment(env)}
        code = _ask(json.dumps(job | {"out": str(out), "err": str(err)}))
        return Outcome(code, out.read_text("utf-8"), err.read_text("utf-8"))


def start(command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Outcome:
    """The outcome of a command that is given in full, in a new interpreter."""
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, timeout=60, encoding="utf-8")
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return inherited | {"PYTHONUTF8": "1"} | dict(variables or {})


def _ask(job: str) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(job + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


@cache
def _server() -> "subprocess.Popen[str]":
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-W", _OF_CLICK, str(Path(__file__).with_name("forking.py"))],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    atexit.register(server.communicate)  # closes its input, at which it ends
    return server
