"""What goes wrong, in one line on standard error. Never a traceback, never a password."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from sqlalchemy.exc import DBAPIError

from threadkeep.cli.terminal import printable
from threadkeep.errors import CheckpointerError, CubepiSchemaError, InvalidIdError, ThreadNotFoundError

# What all usage errors derive from. Old releases of typer have it from click, new ones from a copy of click.
_UsageError: Any = typer.BadParameter.__mro__[1]

FAILED, MISUSED = 1, 2
"""Exit codes."""


class Problem(Exception):
    """What the user is told, and nothing else."""

    def __init__(self, line: str, code: int = FAILED) -> None:
        super().__init__(line)
        self.code = code


def tell(error: Exception) -> int:
    """Say it in one line, with a line more for each thing that it lists; return the exit code."""
    text, code = _line(error)
    lists = isinstance(error, CubepiSchemaError)
    first, *listed = text.splitlines() if lists else [text]
    print("threadkeep:", printable(" ".join(first.split())), file=sys.stderr)
    for line in listed:
        print(printable(line), file=sys.stderr)
    return code


def driver_text(error: DBAPIError) -> str:
    """What the driver said, without what SQLAlchemy wraps around it."""
    # The asyncpg adapter's own text repeats the class; what it was raised from is asyncpg's.
    said = (error.orig and error.orig.__cause__) or error.orig or error
    match said.args:
        case (int(), str(text)):  # asyncmy: the code, then the text
            return text
    return str(said)


def _line(error: Exception) -> tuple[str, int]:
    match error:
        case Problem():
            return str(error), error.code
        case _UsageError():
            command = error.ctx.command_path if error.ctx else "threadkeep"
            return f"{_without_secrets(error.format_message())} (see '{command} --help')", MISUSED
        case InvalidIdError():
            return str(error), MISUSED
        case ThreadNotFoundError():
            where = "'threadkeep threads URL' lists those that are there"
            return f"there is no thread {error.thread_id!r}: {where}", FAILED
        case CheckpointerError() | CubepiSchemaError():
            return str(error), FAILED
        case DBAPIError():
            return f"the database says: {driver_text(error)}", FAILED
    return f"unexpected {type(error).__name__}: {_without_secrets(str(error))}", FAILED


def _without_secrets(line: str) -> str:
    """Hide user and password of any URL in it: an argument in the wrong place is quoted back to the user."""
    line = re.sub(r"://\S*@", "://***@", line)
    return re.sub(r"(?i)(pass\w*|pwd)=[^&\s'\")]*", r"\1=***", line)
