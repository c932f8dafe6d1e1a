"""The program in installations that lack an extra, and in terminals of all kinds."""

import asyncio
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

import threadkeep
from cli.program import PROGRAM, run_well, well
from migrations.databases import Place
from migrations.golden import put_v3
from programs import environment, start
from servers import SERVERS, fresh_database


def installation_without(missing: set[str], folder: Path) -> dict[str, str]:
    """The environment of an installation that has all packages of this one but these."""
    for installed in {Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}:
        for package in installed.iterdir():
            if package.name not in missing and not (folder / package.name).exists():
                (folder / package.name).symlink_to(package)
    source = Path(threadkeep.__file__).parents[1]
    return {"PYTHONPATH": f"{source}{os.pathsep}{folder}"}


def run_without(missing: set[str], folder: Path, *words: str) -> tuple[int, str, str]:
    # -S: no site-packages but those of the folder.
    command = [sys.executable, "-S", "-m", "threadkeep.cli", *words]
    outcome = start(command, env=installation_without(missing, folder))
    return outcome.code, outcome.out, outcome.err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_cli_one_line_says_what_to_install(missing: str, tmp_path: Path) -> None:
    code, out, err = run_without({missing}, tmp_path, "demo")

    assert (code, out) == (1, "")
    assert err == 'threadkeep: the command line needs typer and rich: pip install "threadkeep[cli]"\n'


@pytest.mark.parametrize(("driver", "extra"), [("asyncpg", "postgresql"), ("asyncmy", "mysql")])
def test_without_a_driver_one_line_says_what_to_install(driver: str, extra: str, tmp_path: Path) -> None:
    code, out, err = run_without({driver}, tmp_path, "check", f"{extra}://user:sesame@127.0.0.1/x")

    assert (code, out) == (1, "")
    assert err.endswith(f'needs the driver {driver}: pip install "threadkeep[{extra}]"\n')
    assert err.count("\n") == 1


def test_the_demo_needs_no_driver(tmp_path: Path) -> None:
    code, _, err = run_without({"asyncpg", "asyncmy", "aiosqlite"}, tmp_path, "demo")
    assert (code, err) == (0, "")


def test_version_and_help() -> None:
    assert run_well("--version").out == f"threadkeep {threadkeep.__version__}\n"
    described = run_well().out
    for name in ("demo", "upgrade", "check", "threads", "show", "resume", "fork"):
        assert f" {name} " in described


def test_the_installed_script_is_this_program() -> None:
    script = Path(sys.executable).with_name("threadkeep")
    if not script.exists():
        pytest.skip("threadkeep is not installed with this Python: its source is on the path")
    assert start([str(script), "--version"]).out == f"threadkeep {threadkeep.__version__}\n"


def test_a_terminal_without_the_letters_gets_others() -> None:
    assert well(start([*PROGRAM, "demo"], env={"PYTHONIOENCODING": "ascii"})).out.isascii()


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    program = subprocess.Popen([*PROGRAM, "demo"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.close()
    _, err = program.communicate(timeout=60)
    assert err == b""


def _heed_interrupts() -> None:
    """As a terminal's program does, also where the tests themselves run in a shell's background, which ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._descriptor, theirs = pty.openpty()
        self.program = subprocess.Popen(
            [*PROGRAM, *words],
            env=environment({"TERM": "xterm"}),
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_heed_interrupts,
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, words: str) -> None:
        while words not in self.shown:
            self.shown += os.read(self._descriptor, 1000).decode()

    def read_to_the_end(self) -> int:
        # Linux ends a terminal that nobody writes to any more with an error.
        with suppress(OSError):
            while more := os.read(self._descriptor, 1000):
                self.shown += more.decode()
        os.close(self._descriptor)
        return self.program.wait(timeout=30)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_keeps_silent_gets_a_spinner_until_it_is_interrupted(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        terminal = Terminal("check", f"{scheme}://user:sesame@127.0.0.1:{silent.getsockname()[1]}/x")
        terminal.read_until("connecting …")
        terminal.program.send_signal(signal.SIGINT)
        assert terminal.read_to_the_end() == 130

    assert "Traceback" not in terminal.shown
    assert "sesame" not in terminal.shown


def test_what_takes_long_is_told_after_the_spinner(tmp_path: Path) -> None:
    asyncio.run(threadkeep.upgrade(f"sqlite:///{tmp_path}/slow.db"))
    with closing(sqlite3.connect(tmp_path / "slow.db", isolation_level=None)) as other:
        other.execute(
            "INSERT INTO cubepi_threads (thread_id, extra, last_completion_seq, created_at, updated_at)"
            " VALUES ('a', '{}', 1, '2026-01-01', '2026-01-01')"
        )
        other.execute("INSERT INTO cubepi_runs VALUES ('a', 'run', '2026-01-01', '2026-01-01', 1)")
        other.execute("BEGIN IMMEDIATE")
        terminal = Terminal("fork", f"sqlite:///{tmp_path}/slow.db", "a", "b", "--after=run")
        terminal.read_until("forking …")
        other.execute("COMMIT")
        assert terminal.read_to_the_end() == 0

    assert terminal.shown.rindex("forked 'a'") > terminal.shown.rindex("forking …")


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_upgrade_that_takes_long_shows_how_far_it_is(kind: str) -> None:
    """Held up by somebody who reads a table and does not end. A SQLite file would be locked before the first step."""
    with fresh_database(kind) as url:
        place = Place(kind, url)
        await put_v3(place, partitioned=False)
        async with place.engine() as engine, engine.connect() as conn:
            await conn.exec_driver_sql("SELECT 1 FROM cubepi_threads")
            terminal = Terminal("upgrade", url)
            await asyncio.to_thread(terminal.read_until, "keeping old workers out")
            await conn.rollback()
            assert await asyncio.to_thread(terminal.read_to_the_end) == 0
    assert "took over cubepi's schema 3" in " ".join(terminal.shown.split())
