"""A program that starts upgrades and kills them: `python killed_upgrade.py URL STATEMENT [URL STATEMENT …]`.

Each upgrade runs in a process of its own, which SIGKILL ends right before its STATEMENT-th statement that changes
something, or right before the commit if there are fewer. Nothing is cleaned up, as in a power cut. In the place of a
URL, a path is a SQLite file that is opened instead.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import sqlalchemy as sa

import threadkeep

CHANGES = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def upgrade_until(url: str, last: int) -> None:
    seen = 0

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def count(conn: object, cursor: object, statement: str, *_: Any) -> None:
        nonlocal seen
        asks_for_a_right = "cubepi_no_such_table" in statement
        seen += statement.lstrip().upper().startswith(CHANGES) and not asks_for_a_right
        if seen == last:
            die()

    @sa.event.listens_for(sa.Engine, "commit")
    def at_the_end(conn: object) -> None:
        die()

    if "://" not in url:  # a file that is opened commits by itself, past SQLAlchemy

        @sa.event.listens_for(sa.Engine, "connect")
        def trace(connection: Any, _: object) -> None:
            connection.set_trace_callback(lambda statement: die() if statement == "COMMIT" else None)

    asyncio.run(threadkeep.upgrade(url) if "://" in url else open_file(url))


async def open_file(path: str) -> None:
    async with threadkeep.SQLiteCheckpointer(path):
        pass


def main(urls: list[str], statements: list[int]) -> None:
    for url, statement in zip(urls, statements, strict=True):
        child = os.fork()
        if child == 0:
            upgrade_until(url, statement)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"the upgrade was not killed: {status}")


if __name__ == "__main__":
    main(sys.argv[1::2], [int(number) for number in sys.argv[2::2]])
