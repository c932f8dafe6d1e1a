"""`threadkeep demo`: a newcomer's first minute. Every line of it that shows a call has made that call."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import threadkeep
from threadkeep import (
    ApproveRequest,
    AssistantMessage,
    HitlRequest,
    SQLiteCheckpointer,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from threadkeep.cli import views
from threadkeep.cli.databases import require_folder_of, row_counts
from threadkeep.cli.failures import MISUSED, Problem
from threadkeep.cli.summaries import request_text, text_of
from threadkeep.cli.terminal import out, printable, shortened
from threadkeep.frontdoor import CheckpointerMethods

P = ParamSpec("P")
T = TypeVar("T")

THREAD, FORK = "refund", "voucher"
RUN, SECOND_RUN, RUN_OF_FORK = "run-1", "run-2", "run-3"
QUESTION = "q-1"

# ---- the cast: a user, a model and two tools, all of them scripted -------------------------------------

BROKEN = "The lamp of order 1042 arrived broken. May I have my money back?"
WHEN = "Thank you! When will it arrive?"
VOUCHER = "On second thought: can I have a voucher instead?"

TOOLS = {
    "look_up_order": '{"order": 1042, "item": "lamp", "paid": 49}',
    "refund": '{"refunded": 49}',
}
SCRIPT: dict[str, TextContent | ToolCall] = {
    BROKEN: ToolCall(id="call-1", name="look_up_order", arguments={"order": 1042}),
    TOOLS["look_up_order"]: ToolCall(id="call-2", name="refund", arguments={"order": 1042, "amount": 49}),
    TOOLS["refund"]: TextContent(text="Done: 49 euros are on their way back to you. Keep the lamp."),
    WHEN: TextContent(text="Within three working days, on the card you paid with."),
    VOUCHER: TextContent(text="Of course: it is now a voucher, and worth 55 euros."),
}


def said(text: str, run_id: str) -> UserMessage:
    """What the user says."""
    return UserMessage(content=[TextContent(text=text)], run_id=run_id, timestamp=time.time())


def model(history: Sequence[Any], run_id: str) -> AssistantMessage:
    """Stands in for a language model: knows an answer to each line of this play."""
    answer = SCRIPT[history[-1].content[0].text]
    stop_reason = "tool_use" if isinstance(answer, ToolCall) else "stop"
    return AssistantMessage(content=[answer], stop_reason=stop_reason, run_id=run_id, timestamp=time.time())


def use_tool(call: ToolCall, run_id: str) -> ToolResultMessage:
    """Stands in for the host's tools."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextContent(text=TOOLS[call.name])],
        run_id=run_id,
        timestamp=time.time(),
    )


# ---- the play ------------------------------------------------------------------------------------------


async def play(keep: Path | None) -> None:
    """Play it on a temporary file, or on a new one at `keep`, and show what is in it then."""
    with ExitStack() as stack:
        if keep is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadkeep-"))) / "demo.db"
        else:
            path = _new_file(keep)
        story = Story(out(max_width=100))
        story.opening(path, kept=keep is not None)
        story.chapter("A user writes, and the agent claims a run for the answer")
        async with story.open(path) as cp:
            await ask(cp, story)
        interrupt(story)
        story.chapter("Later, a second connection takes it up")
        async with story.open(path) as cp:
            await resume(cp, story)
            await go_on(cp, story)
            await branch(cp, story)
        await story.holdings(path)
    story.what_next(keep)


async def ask(cp: SQLiteCheckpointer, story: Story) -> None:
    """Up to the question that only a human can answer."""
    await story.call(cp.claim_run, THREAD, RUN)
    history: list[Any] = [said(BROKEN, RUN)]
    await story.append(cp.append, THREAD, history)

    story.chapter("The model calls a tool, and the agent runs it")
    wants = model(history, RUN)
    result = use_tool(_call_in(wants), RUN)
    await story.append(cp.append, THREAD, [wants, result])

    story.chapter("The next tool pays out money: a human must agree first")
    wants = model([*history, wants, result], RUN)
    await story.append(cp.append, THREAD, [wants])
    call = _call_in(wants)
    approval = ApproveRequest(tool_name=call.name, tool_call_id=call.id, args=call.arguments)
    request = HitlRequest(question_id=QUESTION, payload=approval, created_at=time.time())
    await story.call(cp.save_pending_request, THREAD, request, run_id=RUN)
    story.speak("question", request_text(request.model_dump()), "red")


def interrupt(story: Story) -> None:
    """Between the two connections nothing is left but the file."""
    story.chapter("Interrupted!")
    story.say(
        f"The checkpointer is closed and {RUN} is still open, as in a crash or a deploy."
        " What the program knew is gone: the file is all there is."
    )


async def resume(cp: SQLiteCheckpointer, story: Story) -> None:
    """Knows the thread's id, and asks the database for the rest."""
    pending = await story.call(cp.load_pending, THREAD)
    data = await story.call(cp.load, THREAD)
    if pending is None or data is None:
        raise AssertionError("the first connection left a request and messages")
    request, run_id = pending
    if run_id is None:
        raise AssertionError("it left the run's id with the request")
    story.say(f"{request.question_id} of {run_id} is waiting, after {len(data.messages)} messages")
    story.speak("human", "yes", "green")
    async with story.transaction(cp) as tx:
        cleared = await story.call(
            tx.clear_pending_request_if_matches, THREAD, question_id=request.question_id, run_id=run_id
        )
        story.say(f"{cleared}: of several who answer at once one gets True, and its answer is stored")
        answer = {"approved": True}
        await story.call(tx.save_hitl_answer, THREAD, request.question_id, answer, run_id=run_id)

    story.chapter("The tool runs, the model answers, the run is complete")
    result = use_tool(_call_in(data.messages[-1]), run_id)
    await story.append(cp.append, THREAD, [result, model([result], run_id)])
    await story.call(cp.mark_run_complete, THREAD, run_id)


async def go_on(cp: SQLiteCheckpointer, story: Story) -> None:
    """A second run in the same thread."""
    story.chapter("The user writes again: a second run")
    await story.call(cp.claim_run, THREAD, SECOND_RUN)
    question = said(WHEN, SECOND_RUN)
    await story.append(cp.append, THREAD, [question, model([question], SECOND_RUN)])
    await story.call(cp.mark_run_complete, THREAD, SECOND_RUN)


async def branch(cp: SQLiteCheckpointer, story: Story) -> None:
    """A fork after the first run, which goes another way."""
    story.chapter(f"What if? A fork after {RUN} goes another way, and {THREAD} stays as it is")
    await story.call(cp.fork, THREAD, FORK, after_run_id=RUN, metadata={"why": "a voucher"})
    await story.call(cp.claim_run, FORK, RUN_OF_FORK)
    question = said(VOUCHER, RUN_OF_FORK)
    await story.append(cp.append, FORK, [question, model([question], RUN_OF_FORK)])
    await story.call(cp.mark_run_complete, FORK, RUN_OF_FORK)


def _call_in(message: AssistantMessage) -> ToolCall:
    return next(part for part in message.content if isinstance(part, ToolCall))


def _new_file(keep: Path) -> Path:
    if "?" in str(keep):
        raise Problem("a path with '?' in it cannot be written as a URL: choose another", MISUSED)
    if os.path.lexists(keep):
        raise Problem(f"{keep} is there already: choose a path where there is no file yet")
    require_folder_of(keep)
    return keep


# ---- how it is told ------------------------------------------------------------------------------------

ROWS = {
    "cubepi_threads": "one a thread: extra, parent, counters",
    "cubepi_messages": "one a message, at its seq",
    "cubepi_message_places": "where messages are whose ids do not tell",
    "cubepi_runs": "one a run: claimed, completed",
    "cubepi_pending": "the question a thread waits on",
    "cubepi_hitl_answers": "the humans' answers, for replay",
    "cubepi_tool_calls": "one a tool call: issued, how it ended",
    "cubepi_checkpoints": "moments of a thread: plan, budget, state",
    "cubepi_leases": "who works on a run, until when",
    "cubepi_thread_labels": "what threads are found by: their metadata",
    "cubepi_search_texts": "what a search looks at",
    "cubepi_parts": "pieces of answers that were streamed",
    "cubepi_usage": "what answers took: tokens, dollars",
    "cubepi_summaries": "what stands for older messages",
    "cubepi_context": "where, in the window of a thread",
    "cubepi_files": "files that agents have met",
    "cubepi_schema_version": "the version of these tables",
}


class Story:
    """Tells what happens, and which call did it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._chapter = 0

    def opening(self, path: Path, *, kept: bool) -> None:
        """What this is about."""
        self._section(f"threadkeep {threadkeep.__version__}")
        self._console.print(
            "An agent is asked for a refund, has to ask a human, and is interrupted while it waits."
            " Its model is scripted; the database is real:"
        )
        self._console.print(f"{printable(str(path))}{'' if kept else ' (temporary)'}", style="dim", soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Something new begins."""
        self._chapter += 1
        self._console.print()
        self._console.print(Text(f"{self._chapter}. {title}", style="bold"))

    def say(self, text: str) -> None:
        """A remark."""
        self._line("", Text(text, style="dim"), "")

    def speak(self, who: str, text: str, style: str) -> None:
        """A line of the play."""
        self._line(who, Text(printable(text)), style)

    def open(self, path: Path) -> SQLiteCheckpointer:
        """A checkpointer, to be used with `async with`."""
        self._code(f'async with SQLiteCheckpointer("{printable(path.name)}") as cp:')
        return SQLiteCheckpointer(path)

    def transaction(self, cp: SQLiteCheckpointer) -> AbstractAsyncContextManager[CheckpointerMethods]:
        """Several calls that happen together, to be used with `async with`."""
        self._code("async with cp.transaction() as tx:")
        return cp.transaction()

    async def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Show the call, and make it."""
        words = [_as_code(value) for value in args]
        words += [f"{name}={_as_code(value)}" for name, value in kwargs.items()]
        whose = "cp" if isinstance(getattr(method, "__self__", None), SQLiteCheckpointer) else "tx"
        self._code(f"await {whose}.{getattr(method, '__name__', method)}({', '.join(words)})")
        return await method(*args, **kwargs)

    async def append(
        self, append: Callable[[str, Sequence[Any]], Awaitable[None]], thread_id: str, messages: Sequence[Any]
    ) -> None:
        """Append the messages, and show them."""
        await self.call(append, thread_id, messages)
        for message in messages:
            plain = message.model_dump()
            name = views.role(plain)
            self._line(
                name.plain.replace("tool_result", "tool"),
                Text(shortened(text_of(plain), 200)),
                str(name.style),
            )

    async def holdings(self, path: Path) -> None:
        """What the file now holds, read back from it."""
        self._section("What the database holds now")
        self._console.print(await _tree(path))
        self._console.print()
        table = views.new_table()
        table.add_column("table", no_wrap=True)
        table.add_column("rows", justify="right")
        table.add_column("")
        for name, count in (await row_counts(_url(path))).items():
            table.add_row(name, str(count), Text(ROWS.get(name, ""), style="dim"))
        self._console.print(table)

    def what_next(self, keep: Path | None) -> None:
        """Commands that work on a kept file."""
        program = _program()
        self._section("What to try next")
        if keep is None:
            self._console.print("This file was temporary and is gone. Keep one, and look around in it:")
            keep = Path("demo.db")
            self._command(program, "demo", "--keep", str(keep))
        url = _url(keep)
        self._command(program, "threads", url)
        self._command(program, "show", url, THREAD)
        self._command(program, "fork", url, THREAD, "what-if", "--after", SECOND_RUN)
        self._command(program, "check", url)

    def _section(self, title: str) -> None:
        if self._chapter:
            self._console.print()
        self._console.rule(Text(title, style="bold"), align="left", style="dim")

    def _command(self, program: list[str], *words: str) -> None:
        # One line each, however long: it is there to be copied.
        command = printable(shlex.join([*program, *words]))
        self._console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)

    def _code(self, text: str) -> None:
        self._line(">>>", Text(text, style="cyan"), "dim")

    def _line(self, marker: str, text: Text, style: str) -> None:
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=9, no_wrap=True, justify="right")
        line.add_column()
        line.add_row(Text(marker, style=style), text)
        self._console.print(line)


async def _tree(path: Path) -> Tree:
    tree = Tree(Text(printable(path.name), style="bold"), guide_style="dim")
    async with threadkeep.open_checkpointer(_url(path), message_type=Any) as cp:
        records = await cp.threads.list()
        nodes: dict[str, Tree] = {}
        for record in reversed(records):  # oldest first: a parent before its forks
            data = await cp.load(record.thread_id)
            runs = await cp.runs.list(record.thread_id)
            if data is None:
                raise AssertionError("it was listed")
            label = Text(record.thread_id, style="bold")
            if record.parent_thread_id is not None:
                label.append(f"  a fork: copied up to seq {record.forked_at_seq}", style="dim not bold")
            node = nodes[record.thread_id] = nodes.get(record.parent_thread_id or "", tree).add(label)
            numbered = list(enumerate(data.messages, start=1))
            for run in runs:
                of_run = node.add(Text.assemble(run.run_id, "  ", views.run_state(run)))
                for seq, message in numbered:
                    if message.get("run_id") == run.run_id:
                        of_run.add(_leaf(seq, message))
    return tree


def _leaf(seq: int, message: Any) -> Text:
    role = views.role(message)
    role.pad_right(len("tool_result") - len(role))
    text = shortened(text_of(message), 200)
    return Text.assemble((f"{seq} ", "dim"), role, " ", text, no_wrap=True, overflow="ellipsis")


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def _as_code(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}(…)"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_code, value))}]"
    return repr(value).replace("'", '"')


def _program() -> list[str]:
    """This program, as whoever started it can start it again."""
    started_as = sys.argv[0]
    if Path(started_as).name == "__main__.py":
        return [sys.orig_argv[0], "-m", "threadkeep.cli"]
    on_path = shutil.which("threadkeep")
    if on_path is not None and Path(on_path).absolute() == Path(started_as).absolute():
        return ["threadkeep"]
    return [started_as]
