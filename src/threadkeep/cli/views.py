"""Threads as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from threadkeep.cli.summaries import request_text, role_of, run_of, text_of
from threadkeep.cli.terminal import out, printable, shortened
from threadkeep.records import RunRecord, ThreadRecord

_TEXT_LIMIT = 160
_VALUE_LIMIT = 240

# Names that every palette has and that can be read on light and on dark: no yellow, no blue, no bright ones.
_ROLE_STYLES = {"user": "green", "assistant": "cyan", "tool_result": "magenta"}
_OPEN = Text("open", style="red")


def thread_table(records: Sequence[ThreadRecord]) -> Table:
    """One row a thread: how far its seqs go, and how many of its runs are completed."""
    # A thread's UUID, which people copy, has a line to itself on 80 columns: so much room is left for the rest.
    wide = out().width >= 100
    room = out().width - len("UUID" * 9 + "  9999  9999  2026-01-01 00:00  ") - (18 if wide else 0)
    table = new_table()
    table.add_column("thread", overflow="fold", style="bold")
    table.add_column("parent", overflow="ellipsis", no_wrap=True, max_width=max(8, room))
    table.add_column("seqs", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("created (UTC)", no_wrap=True)
    if wide:
        table.add_column("updated (UTC)", no_wrap=True)
    for record in records:
        cells: list[RenderableType] = [
            an_id(record.thread_id),
            an_id(record.parent_thread_id),
            str(record.last_seq),
            str(record.last_completion_seq),
            f"{record.created_at:%Y-%m-%d %H:%M}",
        ]
        if wide:
            cells.append(f"{record.updated_at:%Y-%m-%d %H:%M}")
        table.add_row(*cells)
    return table


def thread_view(
    record: ThreadRecord,
    extra: dict[str, Any],
    pending: tuple[Any, str | None] | None,
    runs: Sequence[RunRecord],
    messages: Sequence[tuple[int, Any]],
    last: int,
) -> RenderableType:
    """A whole thread, with the last of its messages."""
    shown = messages[-last:]
    parts: list[RenderableType] = [_record(record)]
    parts += _section("extra", _extra(extra) if extra else None)
    parts += _section("pending request", _pending(*pending) if pending else None)
    parts += _section("runs", _runs(runs) if runs else None)
    parts += _section("messages", _messages(shown) if shown else None)
    if len(shown) < len(messages):
        hidden = len(messages) - len(shown)
        parts.append(Text(f"the first {hidden:,} are not shown: add --last {len(messages)}", style="dim"))
    return Group(*parts)


def an_id(value: str | None) -> Text:
    """An id as it is, but for what a terminal would obey."""
    return Text("" if value is None else printable(value))


def role(message: Any) -> Text:
    """The role of a message, in its colour."""
    name = role_of(message)
    return Text(shortened(name, 20), style=_ROLE_STYLES.get(name, ""))


def run_state(run: RunRecord) -> Text:
    """Whether the run is complete, and as which one of its thread."""
    if run.completed_at is None:
        return _OPEN
    return Text(f"completed, completion_seq {run.completion_seq}", style="green")


def new_table() -> Table:
    """A table without lines: they would take the room of the ids."""
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def _record(record: ThreadRecord) -> Table:
    table = _pairs()
    table.add_row("thread", Text(printable(record.thread_id), style="bold"))
    if record.parent_thread_id is not None:
        origin = an_id(record.parent_thread_id)
        if record.forked_at_seq is not None:
            origin.append(f", copied up to its seq {record.forked_at_seq}")
        table.add_row("fork of", origin)
    table.add_row("created", f"{_time(record.created_at)} UTC")
    table.add_row("updated", f"{_time(record.updated_at)} UTC")
    return table


def _extra(extra: dict[str, Any]) -> Table:
    table = _pairs()
    for key, value in extra.items():
        text = json.dumps(value, ensure_ascii=False)
        table.add_row(shortened(key, 30), Text(shortened(text, _VALUE_LIMIT)))
    return table


def _pending(request: Any, run_id: str | None) -> Table:
    table = _pairs()
    question_id = request.get("question_id") if isinstance(request, dict) else None
    table.add_row("question", an_id(question_id if isinstance(question_id, str) else None))
    table.add_row("of run", an_id(run_id))
    table.add_row("asks", Text(shortened(request_text(request), _VALUE_LIMIT)))
    return table


def _runs(runs: Sequence[RunRecord]) -> Table:
    table = new_table()
    table.add_column("run", overflow="fold")
    table.add_column("completion_seq", justify="right", no_wrap=True)
    table.add_column("claimed (UTC)", no_wrap=True)
    table.add_column("completed (UTC)", no_wrap=True)
    for run in runs:
        table.add_row(
            an_id(run.run_id),
            _OPEN if run.completed_at is None else str(run.completion_seq),
            _time(run.claimed_at),
            "" if run.completed_at is None else _time(run.completed_at),
        )
    return table


def _messages(messages: Sequence[tuple[int, Any]]) -> Table:
    table = new_table()
    table.add_column("seq", justify="right", no_wrap=True)
    table.add_column("role", no_wrap=True)
    # Cut where it is long: the table of runs has it whole.
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=max(8, out().width // 6))
    table.add_column("text", overflow="fold")
    for seq, message in messages:
        text = Text(shortened(text_of(message), _TEXT_LIMIT))
        table.add_row(str(seq), role(message), an_id(run_of(message)), text)
    return table


def _section(title: str, content: RenderableType | None) -> list[RenderableType]:
    if content is None:
        content = Text("none", style="dim")
    return [Text(f"\n{title}", style="bold"), Padding(content, (0, 0, 0, 2), expand=False)]


def _pairs() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
