"""Threads as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from threadkeep.cli.summaries import call_text, draft_text, request_text, role_of, run_of, text_of
from threadkeep.cli.terminal import out, printable, shortened
from threadkeep.records import (
    CallState,
    Checkpoint,
    ContextItem,
    Draft,
    LedgerEntry,
    OpenRun,
    ResumeReport,
    RunRecord,
    RunState,
    ThreadRecord,
    UnansweredCall,
)

T = TypeVar("T")

_TEXT_LIMIT = 160
_VALUE_LIMIT = 240

# Names that every palette has and that can be read on light and on dark: no yellow, no blue, no bright ones.
_ROLE_STYLES = {"user": "green", "assistant": "cyan", "tool_result": "magenta"}
_OPEN = Text("open", style="red")
_STATE_STYLES: dict[str, str] = {
    CallState.IN_FLIGHT: "green",
    CallState.UNKNOWN: "red",
    RunState.LEASED: "green",
    RunState.ABANDONED: "red",
}
_ACTIVE = "active"
_DEFAULT_AGENT = "default"
_UUID = 36
_HEADER = 8
"""As much as the header of a column of ids takes, at most."""
_INDENT = 2


class _Listing(Generic[T]):
    """A table of records whose columns are chosen one by one."""

    def __init__(self) -> None:
        self._table = new_table()
        self._cells: list[Callable[[T], RenderableType]] = []

    def show(self, header: str, cell: Callable[[T], RenderableType], **layout: Any) -> None:
        """Add a column, and how it is made of a record."""
        self._table.add_column(header, **layout)
        self._cells.append(cell)

    def of(self, records: Sequence[T]) -> Table:
        """The table, with a row for each."""
        for record in records:
            self._table.add_row(*(cell(record) for cell in self._cells))
        return self._table


def thread_table(records: Sequence[ThreadRecord]) -> Table:
    """One row a thread: how far its seqs go, and how many of its runs are completed."""
    # A thread's UUID, which people copy, has a line to itself on 80 columns: so much room is left for the rest.
    width = out().width
    has_status = any(_status(record) for record in records)
    has_titles = any(record.title for record in records) and width >= 120  # else below the ids
    has_updated = width >= (140 if has_titles else 112 if has_status else 100)
    time = "2026-01-01 00:00" if width >= 100 or not has_status else "2026-01-01"
    # Where there is less room still, the rest goes, and the ids stay.
    least = (12, 35, 44) if has_status else (12, 30, 40)
    has_counts, has_created, has_parent = (width >= _UUID + columns for columns in least)
    has_status = has_status and has_created  # else below the ids, too
    room = width - _UUID - len(f"  9999  9999  {time}  ") - (18 if has_updated else 0) - (11 if has_status else 0)
    title_room = max(30, room - max(len(record.parent_thread_id or "parent") for record in records) - 4)
    room -= title_room + 2 if has_titles else 0

    def name(record: ThreadRecord) -> Text:
        text = an_id(record.thread_id)
        if not has_status and (status := _status(record)):
            text.append("\n").append(status)
        if record.title and not has_titles:
            text.append("\n").append(_title(record.title, _UUID))
        return text

    listing = _Listing[ThreadRecord]()
    listing.show("thread", name, overflow="fold", style="bold")
    if has_parent:
        most = max(6 if has_status else 8, room)
        listing.show("parent", lambda it: an_id(it.parent_thread_id), overflow="ellipsis", no_wrap=True, max_width=most)
    if has_counts:
        listing.show("seqs", lambda it: str(it.last_seq), justify="right", no_wrap=True)
        listing.show("runs", lambda it: str(it.last_completion_seq), justify="right", no_wrap=True)
    if has_created:
        created = "created (UTC)" if len(time) > 10 else "created"
        listing.show(created, lambda it: f"{it.created_at:%Y-%m-%d %H:%M}"[: len(time)], no_wrap=True)
    if has_updated:
        listing.show("updated (UTC)", lambda it: f"{it.updated_at:%Y-%m-%d %H:%M}", no_wrap=True)
    if has_status:
        listing.show("status", _status, no_wrap=True)
    if has_titles:
        listing.show(
            "title",
            lambda it: _title(it.title or "", title_room),
            overflow="ellipsis",
            no_wrap=True,
            max_width=title_room,
        )
    return listing.of(records)


def _status(record: ThreadRecord) -> Text:
    """What is to be said of a thread, if anything. Empty where it is active."""
    if record.deleted_at is not None:
        return Text("deleted", style="red")
    return Text("" if record.status == _ACTIVE else printable(record.status))


def _title(title: str, width: int) -> Text:
    text = Text(printable(" ".join(title.split())), style="dim not bold")
    text.truncate(width, overflow="ellipsis")
    return text


def thread_view(
    record: ThreadRecord,
    window: Sequence[ContextItem],
    extra: dict[str, Any],
    pending: tuple[Any, str | None] | None,
    runs: Sequence[RunRecord],
    messages: Sequence[tuple[int, Any]],
    last: int,
) -> RenderableType:
    """A whole thread, with the last of its messages."""
    shown = messages[-last:]
    parts: list[RenderableType] = [_record(record, window)]
    parts += _section("extra", _extra(extra) if extra else None)
    parts += _section("pending request", _pending(*pending) if pending else None)
    parts += _section("runs", _runs(runs) if runs else None)
    parts += _section("messages", _messages(shown) if shown else None)
    if len(shown) < len(messages):
        hidden = len(messages) - len(shown)
        parts.append(Text(f"the first {hidden:,} are not shown: add --last {len(messages)}", style="dim"))
    return Group(*parts)


def resume_view(report: ResumeReport) -> RenderableType:
    """What stands in the way of the next run, and what to do about it."""
    table = _pairs()
    table.add_row("thread", Text(printable(report.thread_id), style="bold"))
    table.add_row("status", printable(report.status))
    if report.deleted_at is not None:
        table.add_row("deleted", _deleted(report.deleted_at))
    table.add_row("checkpoint", _checkpoint(report.checkpoint) if report.checkpoint else Text("none", style="dim"))
    parts: list[RenderableType] = [table]
    if report.pending_request is not None:
        parts += _section("pending request", _pending(report.pending_request, report.pending_run_id))
    if report.open_runs:
        parts += _section("open runs", _open_runs(report.open_runs))
    if report.calls_in_doubt:
        parts += _section("tool calls in doubt", _calls_in_doubt(report.calls_in_doubt))
    if report.unanswered_calls:
        parts += _section("tool calls without a result", _unanswered_calls(report.unanswered_calls))
    if report.drafts:
        parts += _section("drafts", _drafts(report.drafts))
    steps = _steps(report)
    if steps:
        parts += _section("what to do", _numbered(steps))
    else:
        parts.append(Text("\nnothing is in the way: the next run can begin", style="green"))
    return Group(*parts)


def repaired_view(appended: Sequence[Any]) -> RenderableType:
    """The results that a repair has appended."""
    if not appended:
        return Text("nothing to repair: every tool call has a result\n")
    table = new_table()
    table.add_column("call", overflow="fold")
    table.add_column("result", overflow="fold")
    for message in appended:
        table.add_row(an_id(message["tool_call_id"]), Text(shortened(text_of(message), _TEXT_LIMIT)))
    count = "1 result" if len(appended) == 1 else f"{len(appended):,} results"
    return Group(Text(f"appended {count}", style="green"), Padding(table, (0, 0, 1, 2), expand=False))


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


def ago(age: timedelta) -> str:
    """How long ago that was, in one unit."""
    seconds = max(0, int(age.total_seconds()))  # another machine's clock may be ahead of ours
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit} ago"
    return "1 second ago" if seconds == 1 else f"{seconds} seconds ago"


def new_table() -> Table:
    """A table without lines: they would take the room of the ids."""
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def _record(record: ThreadRecord, window: Sequence[ContextItem]) -> Table:
    table = _pairs()
    table.add_row("thread", Text(printable(record.thread_id), style="bold"))
    if record.title:
        table.add_row("title", Text(shortened(record.title, _VALUE_LIMIT)))
    if record.parent_thread_id is not None:
        origin = an_id(record.parent_thread_id)
        if record.forked_at_seq is None:
            table.add_row("parent", origin)
        else:
            table.add_row("fork of", origin.append(f", copied up to its seq {record.forked_at_seq}"))
    if record.deleted_at is not None:
        table.add_row("deleted", _deleted(record.deleted_at))
    if record.status != _ACTIVE:
        table.add_row("status", printable(record.status))
    if record.metadata:
        table.add_row("metadata", _json(record.metadata))
    if model := " of ".join(filter(None, (record.model_id, record.provider_id))):
        table.add_row("model", Text(printable(model)))
    if record.agent != _DEFAULT_AGENT:
        table.add_row("agent", Text(printable(record.agent)))
    if record.system_prompt:
        table.add_row("system prompt", Text(shortened(record.system_prompt, _VALUE_LIMIT)))
    table.add_row("created", f"{_time(record.created_at)} UTC")
    table.add_row("updated", f"{_time(record.updated_at)} UTC")
    summaries = sum(item.is_summary for item in window)
    if summaries:
        some = "1 summary" if summaries == 1 else f"{summaries:,} summaries"
        table.add_row("context", f"{some} and {len(window) - summaries:,} of {record.last_seq:,} messages")
    return table


def _deleted(at: datetime) -> Text:
    return Text(f"{_time(at)} UTC: it takes no writes until it is restored", style="red")


def _checkpoint(checkpoint: Checkpoint) -> str:
    spent = f"{shortened(f'{checkpoint.budget_spent_usd:,}', 20)} USD spent"
    return f"version {checkpoint.version} at seq {checkpoint.seq}, {_time(checkpoint.created_at)} UTC, {spent}"


def _open_runs(runs: Sequence[OpenRun]) -> Table:
    table = _states("run", [run.run_id for run in runs])
    for run in runs:
        since = f"claimed {_time(run.claimed_at)} UTC, {ago(run.age)}"
        leased = "was leased to" if run.state is RunState.ABANDONED else "leased to"
        owner = "" if run.owner is None else f"\n{leased} {printable(run.owner)}"
        table.add_row(an_id(run.run_id), _state(run.state), Text(since + owner))
    return table


def _calls_in_doubt(calls: Sequence[LedgerEntry]) -> Table:
    now = datetime.now(UTC)
    table = _states("call", [call.call_id for call in calls])
    for call in calls:
        since = f"issued {_time(call.issued_at)} UTC, {ago(now - call.issued_at)}"
        lines = (shortened(call_text(call.tool_name, call.args), _TEXT_LIMIT), since, f"by {printable(call.owner)}")
        table.add_row(an_id(call.call_id), _state(call.state), Text("\n".join(lines)))
    return table


def _unanswered_calls(calls: Sequence[UnansweredCall]) -> Table:
    table = new_table()
    table.add_column("seq", justify="right", no_wrap=True)
    table.add_column("call", overflow="fold")
    table.add_column("tool", overflow="fold")
    table.add_column("run", overflow="fold")
    for call in calls:
        run_id = call.run_id if isinstance(call.run_id, str) else None
        table.add_row(str(call.seq), an_id(call.call_id), Text(shortened(call.tool_name, 40)), an_id(run_id))
    return table


def _drafts(drafts: Sequence[Draft]) -> Table:
    now = datetime.now(UTC)
    table = new_table()
    table.add_column("message", overflow="fold", width=_room_for([draft.message_id for draft in drafts], beside=40))
    table.add_column("parts", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for draft in drafts:
        last = draft.parts[-1].created_at
        lines = (shortened(draft_text(draft.parts), _TEXT_LIMIT), f"last {_time(last)} UTC, {ago(now - last)}")
        table.add_row(an_id(draft.message_id), str(len(draft.parts)), Text("\n".join(lines)))
    return table


def _steps(report: ResumeReport) -> list[str]:
    """In this order: an unknown call that is settled first gets its real result by the repair."""
    call_states = {call.state for call in report.calls_in_doubt}
    run_states = {run.state for run in report.open_runs}
    steps = []
    if report.deleted_at is not None:
        steps.append("Bring the thread back, or leave it: cp.threads.restore(thread_id).")
    if CallState.IN_FLIGHT in call_states or RunState.LEASED in run_states:
        steps.append(
            "Wait: a worker is at it, or has died a moment ago. Then its calls become unknown, and its leases end, by"
            " themselves."
        )
    if CallState.UNKNOWN in call_states:
        steps.append(
            "Find out whether each unknown call happened, and say so: cp.ledger.resolve(thread_id, call_id, outcome),"
            " where the outcome is Completed(result) or Failed(error). ledger.once(…, verify=…) asks by itself."
        )
    if report.unanswered_calls:
        steps.append(
            "Give each tool call a result, or a model's API refuses the thread: add --repair, or call"
            " cp.repair(thread_id)."
        )
    if report.drafts:
        steps.append(
            "Keep each draft, or forget it, unless it is still being streamed: append a message under its id, or call"
            " cp.parts.discard(thread_id, message_id)."
        )
    if report.pending_request is not None:
        steps.append(
            "Answer the question in a cp.transaction(): tx.clear_pending_request_if_matches(…), and if that was True,"
            " tx.save_hitl_answer(…)."
        )
    if RunState.ABANDONED in run_states:
        steps.append("Take over the abandoned run: cp.runs.lease(thread_id, run_id, ttl=…).")
    if RunState.CLAIMED in run_states:
        steps.append(
            "Go on with the claimed run, or leave it open and begin another: only its host knows whether anybody still"
            " works on it."
        )
    return steps


def _numbered(steps: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, step in enumerate(steps, start=1):
        table.add_row(f"{number}.", step)
    return table


def _states(what: str, ids: Sequence[str]) -> Table:
    table = new_table()
    table.add_column(what, overflow="fold", width=_room_for(ids, beside=40))
    table.add_column("state", no_wrap=True)
    table.add_column("", overflow="fold")
    return table


def _room_for(ids: Sequence[str], *, beside: int) -> int:
    """The width of a column of ids. A UUID, which people copy, is not folded on 80 columns.

    As a least width it would be cut off elsewhere: rich shares out what is missing first, and looks at it afterwards.
    """
    longest = max(_HEADER, min(_UUID, max(len(printable(id_)) for id_ in ids)))
    return max(_HEADER, min(longest, out().width - _INDENT - beside))


def _state(state: CallState | RunState) -> Text:
    return Text(state.replace("_", " "), style=_STATE_STYLES.get(state, ""))


def _extra(extra: dict[str, Any]) -> Table:
    table = _pairs()
    for key, value in extra.items():
        table.add_row(shortened(key, 30), _json(value))
    return table


def _json(value: Any) -> Text:
    return Text(shortened(json.dumps(value, ensure_ascii=False), _VALUE_LIMIT))


def _pending(request: Any, run_id: str | None) -> Table:
    table = _pairs()
    question_id = request.get("question_id") if isinstance(request, dict) else None
    table.add_row("question", an_id(question_id if isinstance(question_id, str) else None))
    table.add_row("of run", an_id(run_id))
    table.add_row("asks", Text(shortened(request_text(request), _VALUE_LIMIT)))
    return table


def _runs(runs: Sequence[RunRecord]) -> Table:
    # Where there is less room, the times go, and the ids stay.
    room = out().width - _INDENT - _room_for([run.run_id for run in runs], beside=0)
    listing = _Listing[RunRecord]()
    listing.show("run", lambda run: an_id(run.run_id), overflow="fold")
    number = "completion_seq" if room >= 16 else "seq"
    listing.show(
        number, lambda run: str(run.completion_seq) if run.completed_at else _OPEN, justify="right", no_wrap=True
    )
    if room >= 58:
        listing.show("claimed (UTC)", lambda run: _time(run.claimed_at), no_wrap=True)
    if room >= 37:
        listing.show("completed (UTC)", lambda run: _time(run.completed_at) if run.completed_at else "", no_wrap=True)
    return listing.of(runs)


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
    return [Text(f"\n{title}", style="bold"), Padding(content, (0, 0, 0, _INDENT), expand=False)]


def _pairs() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
