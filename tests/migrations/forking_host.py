"""A program that has imported what a host's commands need, and forks for each: importing takes longer than they do.

It reads a job a line and answers with the exit code. The child runs one command: `alembic words…` or `python file`.
"""

import json
import os
import runpy
import sys
import traceback
from typing import Any

import alembic.config
from sqlalchemy.ext.asyncio import create_async_engine

import threadkeep.migrations  # noqa: F401 - imported once, for all commands

for driver in ("sqlite+aiosqlite", "postgresql+asyncpg", "mysql+asyncmy", "mariadb+asyncmy"):
    create_async_engine(f"{driver}:///")  # so that the dialects are there, too


def run(program: str, *words: str) -> None:
    if program == "alembic":
        alembic.config.main(argv=list(words), prog=program)
    else:
        runpy.run_path(words[0], run_name="__main__")


def child(job: dict[str, Any]) -> int:
    os.chdir(job["folder"])
    os.environ["DATABASE_URL"] = job["url"]
    for descriptor, name in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(name, os.O_RDWR), descriptor)
    try:
        run(*job["words"])
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


for line in sys.stdin:
    if os.fork() == 0:
        os._exit(child(json.loads(line)))  # at once: to free all that was imported takes longer than most commands
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
