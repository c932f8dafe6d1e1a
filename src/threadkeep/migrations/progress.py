"""A progress bar for upgrades that take a while. It needs rich, which comes with the extra `cli`."""

from __future__ import annotations

from threading import Timer
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_PATIENCE = 1.0
"""Seconds: what is done by then needs no bar."""


class UpgradeBar:
    """A bar on standard error, for `upgrade(url, progress=bar)` in a `with` block. What is quickly done shows none."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]}"), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("looking at the database", total=None, rows="")
        self._timer = Timer(_PATIENCE, self._progress.start)  # a single statement may take minutes: nobody else calls
        self._timer.daemon = True
        self._step = ""
        self._before = 0

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()

    def __call__(self, step: str, done: int, total: int, within: bool) -> None:
        """Show it."""
        if within:
            part = done / total if total else 0.0
            self._progress.update(self._task, completed=self._before + part, rows=f"{done:,} of {total:,} rows")
        else:
            self._step, self._before = step or self._step, done
            self._progress.update(self._task, description=self._step, completed=done, total=total, rows="")
