"""The commands: what each takes, does and says."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep.cli import databases, demo, failures, views
from threadkeep.cli.failures import MISUSED, Problem
from threadkeep.cli.terminal import never_fail_to_encode, out, patiently, printable
from threadkeep.errors import (
    CheckpointCorruptionError,
    CubepiSchemaError,
    CubepiSchemaMismatch,
    CubepiSchemaUninitialized,
    ThreadNotFoundError,
)
from threadkeep.migrations.progress import UpgradeBar
from threadkeep.records import CallState, ResumeReport, RunState
from threadkeep.sql.tables import SCHEMA_VERSION
from threadkeep.threads import MAX_LIMIT, STATUSES

app = typer.Typer(
    help="Look after the database that keeps the threads of your agents.",
    epilog="URL is sqlite:///file.db, postgresql://user@host/database or mysql://user@host/database.",
    add_completion=False,
)

T = TypeVar("T")
Lines = list[RenderableType]
Url = Annotated[str, typer.Argument(metavar="URL", help="The database.", show_default=False)]
_INTERRUPTED = 130


def run() -> None:
    """Run the command of this process, and exit."""
    never_fail_to_encode()
    # asyncmy logs what a server remarks; without a handler that would end up among our own lines.
    logging.getLogger("asyncmy").addHandler(logging.NullHandler())
    command = typer.main.get_command(app)
    try:
        code = command(prog_name="threadkeep", standalone_mode=False)
    except Exception as error:
        code = failures.tell(error)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _threadkeep(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        out().print(f"threadkeep {threadkeep.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    else:
        return
    raise typer.Exit


@app.command("demo")
def _demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Keep the SQLite file here.", show_default=False)
    ] = None,
) -> None:
    """Play a short agent conversation, and show what the database then holds."""
    _run(demo.play(keep))


@app.command("upgrade")
def _upgrade(
    url: Url,
    rename_ids: Annotated[
        bool, typer.Option("--rename-ids", help="Rename ids of a cubepi database that are not allowed here.")
    ] = False,
) -> None:
    """Bring the database to the newest schema. A SQLite file is made if there is none; cubepi's are taken over."""
    _tell(_upgraded(url, rename_ids), None)


async def _upgraded(url: str, rename_ids: bool) -> Lines:
    databases.backend_of(url)
    if missing := databases.missing_file(url):
        databases.require_folder_of(missing)
    before = None if missing else await databases.look_at(url)
    with databases.connecting_to(url), UpgradeBar() as bar:
        renamed = await threadkeep.upgrade(url, rename_ids=rename_ids, progress=bar)
    found = await databases.look_at(url)
    if isinstance(found.schema, CubepiSchemaError):
        raise found.schema
    lines: Lines = [f"renamed {old!r} to {new!r}" for old, new in renamed.items()]
    return [*lines, _what_was_done(before, found, await databases.row_counts(url))]


def _what_was_done(before: databases.Found | None, now: databases.Found, rows: dict[str, int]) -> str:
    if before is None or (isinstance(before.schema, CubepiSchemaUninitialized) and before.cubepi is None):
        return f"made the schema, version {now.schema}: there was none ({now.server})"
    if before.cubepi is not None:
        kept = f"{rows['cubepi_threads']:,} threads, {rows['cubepi_messages']:,} messages"
        return f"took over cubepi's schema {before.cubepi}: it is now version {now.schema}, with {kept} ({now.server})"
    if before.schema == now.schema:
        newest = now.schema == SCHEMA_VERSION
        which = "the newest" if newest else f"newer than {SCHEMA_VERSION}, but open to this library"
        return f"nothing to do: the schema is version {now.schema}, {which} ({now.server})"
    assert isinstance(before.schema, CubepiSchemaMismatch)
    return f"upgraded the schema from version {before.schema.actual} to {now.schema} ({now.server})"


@app.command("check")
def _check(url: Url) -> None:
    """Say whether this library may work with the database."""
    _tell(_checked(url), "connecting")


async def _checked(url: str) -> Lines:
    found = await databases.look_at(url)
    # Opening it is the proof: it also compares what server and driver carry with what a message may take.
    async with databases.opened(url):
        pass
    newer = "" if found.schema == SCHEMA_VERSION else f" (newer than its own {SCHEMA_VERSION}, but open to it)"
    version = f"threadkeep {threadkeep.__version__}"
    return [f"ok: {version} may work with this database: schema {found.schema}{newer}, {found.server}"]


@app.command("threads")
def _threads(
    url: Url,
    parent: Annotated[
        str | None, typer.Option(metavar="ID", help="Only forks and sub-threads of this one.", show_default=False)
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help=f"Only those that are {' / '.join(STATUSES)}.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.", min=1, max=MAX_LIMIT)] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on after this thread, the last one shown.", show_default=False),
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those too that were deleted softly.")] = False,
) -> None:
    """List the threads, newest first."""
    _tell(_listed(url, parent, status, limit, after, deleted), "reading")


async def _listed(
    url: str, parent: str | None, status: str | None, limit: int, after: str | None, deleted: bool
) -> Lines:
    if status is not None and status not in STATUSES:
        raise Problem(f"--status is {status!r}: it must be one of {', '.join(STATUSES)}", MISUSED)
    async with databases.opened(url) as cp:
        if parent is not None and await cp.threads.get(parent) is None:
            raise ThreadNotFoundError(parent)
        listed = partial(cp.threads.list, parent_thread_id=parent, status=status, include_deleted=deleted)
        records = await listed(limit=limit, after=after)
        more = records and await listed(limit=1, after=records[-1])
    if not records:
        return ["no threads" if after is None else "no more threads"]
    lines: Lines = [views.thread_table(records)]
    if more:
        lines.append(f"there are more: add --after {shlex.quote(records[-1].thread_id)}")
    return lines


@app.command("show")
def _show(
    url: Url,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.", show_default=False)],
    last: Annotated[int, typer.Option(metavar="N", help="Only so many messages, the last ones.", min=1)] = 100,
) -> None:
    """Show a thread: its record, extra, pending request, runs and messages."""
    _tell(_shown(url, thread, last), "reading")


async def _shown(url: str, thread_id: str, last: int) -> Lines:
    async with databases.opened(url) as cp:
        record, data = await cp.threads.get(thread_id), await cp.load(thread_id)
        if record is None or data is None:
            raise ThreadNotFoundError(thread_id)
        runs, pending = await cp.runs.list(thread_id), await cp.load_pending(thread_id)
        window = await cp.context.items(thread_id)
    seqs = await databases.seqs(url, thread_id, len(data.messages))
    numbered = list(zip(seqs, data.messages, strict=False))  # fewer seqs if it is being deleted
    return [views.thread_view(record, window, data.extra, pending, runs, numbered, last)]


@app.command("resume")
def _resume(
    url: Url,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.", show_default=False)],
    repair: Annotated[bool, typer.Option("--repair", help="Append a result for each tool call that has none.")] = False,
) -> None:
    """Say what stands in the way of a thread's next run, after a crash or at any time."""
    _tell(_resumed(url, thread, repair), "reading")


async def _resumed(url: str, thread_id: str, repair: bool) -> Lines:
    report = await _report(url, thread_id)
    if not repair:
        return [views.resume_view(report)]
    appended = await _repaired(url, report)
    return [views.repaired_view(appended), views.resume_view(await _report(url, thread_id))]


async def _report(url: str, thread_id: str) -> ResumeReport:
    async with databases.opened(url) as cp:
        report = await cp.resume(thread_id)
    if report is None:
        raise ThreadNotFoundError(thread_id)
    return report


async def _repaired(url: str, report: ResumeReport) -> list[dict[str, Any]]:
    in_flight = [call.call_id for call in report.calls_in_doubt if call.state is CallState.IN_FLIGHT]
    leased = [run.run_id for run in report.open_runs if run.state is RunState.LEASED]
    for call in report.unanswered_calls:
        if call.call_id in in_flight or call.run_id in leased:
            raise Problem(f"a worker is at call {call.call_id!r}, and will give its result: nothing was appended")
    # As messages of ours: a host whose classes are others could not load what is appended here.
    try:
        async with databases.opened(url, message_type=threadkeep.Message) as cp:
            return [message.model_dump() for message in await cp.repair(report.thread_id)]
    except CheckpointCorruptionError as error:
        if error.table != "cubepi_messages":
            raise
        raise Problem(
            f"the messages of thread {report.thread_id!r} are not of threadkeep's own classes: call"
            " cp.repair(thread_id) in the program that has theirs. Nothing was appended"
        ) from None


@app.command("fork")
def _fork(
    url: Url,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The thread to copy from.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new thread's id.", show_default=False)],
    after: Annotated[
        str, typer.Option(metavar="RUN", help="The last run to copy, a completed one.", show_default=False)
    ],
) -> None:
    """Copy a thread, up to and including one run, into a new one."""
    _tell(_forked(url, source, new, after), "forking")


async def _forked(url: str, source: str, new: str, after: str) -> Lines:
    async with databases.opened(url) as cp:
        await cp.fork(source, new, after_run_id=after)
        record = await cp.threads.get(new)
    count = 0 if record is None else record.last_seq
    messages = "1 message" if count == 1 else f"{count:,} messages"
    return [f"forked {source!r} after run {after!r}: {new!r} has {messages}"]


def _tell(work: Coroutine[Any, Any, Lines], doing: str | None) -> None:
    """Print what the work has to tell; a str is one line, however long. What shows its own progress says None."""
    # After the work, not during it: the spinner has the line then.
    for line in _run(work if doing is None else patiently(work, doing)):
        if isinstance(line, str):
            out().print(printable(line), soft_wrap=True)
        else:
            out().print(line)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:  # which typer treats as an exit or as an error, depending on its release
        raise typer.Exit(_INTERRUPTED) from None
