"""The command line: `threadkeep`, or `python -m threadkeep.cli`. It needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the program was started with, and exit."""
    try:
        from threadkeep.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit('threadkeep: the command line needs typer and rich: pip install "threadkeep[cli]"')
    run()
