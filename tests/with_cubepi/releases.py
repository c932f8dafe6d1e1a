"""The old releases, each a process of its own that this one talks to. `old_release.py` is what runs in there."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from migrations.databases import Place

TESTS = Path(__file__).parents[1]


def pythons() -> dict[str, str]:
    """The Python of each release, oldest first: THREADKEEP_OLD_RELEASES holds `name=python` words."""
    words = os.environ.get("THREADKEEP_OLD_RELEASES", "").split()
    return dict(word.split("=", 1) for word in words)


class Release:
    """A running process of an old release."""

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", "with_cubepi.old_release"],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, place: Place | None = None, **words: Any) -> Any:
        """Its answer. What it cannot do is a traceback on our own stderr, and an end to it."""
        where = {} if place is None else {"kind": place.kind, "url": place.url}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **where, **words}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.name} has died over {do!r}: its traceback is in the captured stderr"
        return json.loads(line)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Let it end, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Releases:
    """All of them, started when they are first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, Release] = {}

    def __getitem__(self, name: str) -> Release:
        running = self._running.get(name)
        if running is None or not running.is_alive:
            self._running[name] = Release(name, pythons()[name])
        return self._running[name]

    def close(self) -> None:
        for release in self._running.values():
            release.close()
