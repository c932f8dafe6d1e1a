"""A program that has imported what commands need and forks for each: importing takes longer than most of them.

It reads a job a line and answers with the exit code. The child runs `threadkeep`, `alembic` or a Python file, as
`python -m` or `python` would.
"""

import json
import os
import runpy
import sys

import alembic.config  # noqa: F401 - imported once, for all commands
from sqlalchemy.ext.asyncio import create_async_engine

import threadkeep.cli.commands  # noqa: F401 - likewise

MODULES = {"threadkeep": "threadkeep.cli", "alembic": "alembic"}

for driver in ("sqlite+aiosqlite", "postgresql+asyncpg", "mysql+asyncmy", "mariadb+asyncmy"):
    create_async_engine(f"{driver}:///")  # so that the dialects are there, too

for line in sys.stdin:  # noqa: B007 - the child reads it
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()

job = json.loads(line)
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["env"])
for descriptor, name in enumerate((os.devnull, job["out"], job["err"])):
    os.dup2(os.open(name, os.O_RDWR), descriptor)
program, *words = job["words"]
sys.argv = [program, *words]
# Nothing comes after it, so that its exit or its traceback is this process's own.
if program in MODULES:
    runpy.run_module(MODULES[program], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(words[0], run_name="__main__")
