"""Runs the real `alembic`, as a developer would, and Python programs of ours."""

import subprocess
import sys
from pathlib import Path

from programs import Outcome, run

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent


def alembic(*words: str, url: str | None = None) -> Outcome:
    """The outcome of `alembic words…` in the repository's folder, with THREADKEEP_URL set to the URL, or unset."""
    return run("alembic", *words, cwd=REPOSITORY, env={} if url is None else {"THREADKEEP_URL": url})


def alembic_well(*words: str, url: str | None = None) -> str:
    """What it prints, for what must succeed."""
    outcome = alembic(*words, url=url)
    assert outcome.code == 0, outcome
    return outcome.out


def at_once(verb: str, url: str, count: int) -> None:
    """Do it in this many processes, which start when all of them are ready. All must succeed."""
    words = [sys.executable, "-W", "error", str(HERE / "at_once.py"), verb, url]
    processes = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, errors


def killed_upgrades(*targets: tuple[str, int]) -> None:
    """Start an upgrade of each URL, and kill it right before its n-th statement that changes something."""
    words = [word for url, statement in targets for word in (url, str(statement))]
    patience = 60 + 5 * len(targets)
    subprocess.run([sys.executable, HERE / "killed_upgrade.py", *words], check=True, timeout=patience)
