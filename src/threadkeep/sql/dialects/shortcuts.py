"""What the shortcuts of all servers have in common. See `Hooks.shortcuts`."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.errors import CheckpointerError
from threadkeep.records import MessageRow
from threadkeep.sql.dialects.base import NoShortcutError
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import threads

COLUMNS = ("role", "run_id", "format", "payload", "metadata")
"""Of a message's row, those that its `MessageRow` has; but for an id, which a shortcut makes."""

AppendCall = tuple[str, Sequence[MessageRow], str]
"""The thread, its messages, and what their ids begin with."""

_EXTRA = Prepared(sa.select(threads.c.extra).where(threads.c.thread_id == THREAD))


def require_plain(rows: Sequence[MessageRow], most_rows: int, most_bytes: int) -> None:
    """Raise NoShortcutError if there is much to write, or if the host gave ids or wants to search."""
    if len(rows) > most_rows or sum(len(row.payload) for row in rows) > most_bytes or not is_plain(rows):
        raise NoShortcutError


def is_plain(rows: Sequence[MessageRow]) -> bool:
    """Whether the host has neither given ids nor wants to search."""
    # On a server an id may be that of a summary, which came while the statement waited and is not seen by it.
    return not any(row.message_id is not None or row.search_text is not None for row in rows)


def that_fit(calls: Sequence[AppendCall], most_rows: int, most_bytes: int) -> list[int]:
    """The numbers of those appends that are plain, and that are not too much together."""
    chosen, count, size = [], 0, 0
    for number, (_, rows, _) in enumerate(calls):
        its_size = sum(len(row.payload) for row in rows)
        if is_plain(rows) and count + len(rows) <= most_rows and size + its_size <= most_bytes:
            chosen.append(number)
            count += len(rows)
            size += its_size
    return chosen


def run_ids_of(rows: Sequence[MessageRow]) -> list[str]:
    """The runs that the messages are of, each once."""
    return [*{row.run_id for row in rows if row.run_id is not None}]


def merged_or_none(thread_id: str, before: str, changes: str, max_bytes: int) -> str | None:
    """The thread's extra with the changes, or None where the operation will say what is wrong with it."""
    try:
        return rules.merged_extra(thread_id, before, changes, max_bytes)
    except CheckpointerError:
        return None


class SavingExtra:
    """`extras.save_extra`: read, merge, and write if nobody has written meanwhile.

    `create` inserts a thread with the extra `merged`. `replace` puts it in the place of `before`, unless the thread was
    deleted softly. Both change one row, or none.
    """

    def __init__(self, create: Prepared, replace: Prepared, most_bytes: int) -> None:
        self._create = create
        self._replace = replace
        self._most_bytes = most_bytes

    def __call__(self, conn: sa.Connection, limit: str, thread_id: str, changes: str, max_bytes: int) -> None:
        row = _EXTRA.row(conn, {"thread": thread_id})
        before = row[0] if row else "{}"
        merged = merged_or_none(thread_id, before, changes, max_bytes)
        if merged is None:
            raise NoShortcutError
        if len(before) + len(merged) > self._most_bytes:
            raise NoShortcutError  # both travel in one message
        values = {"limit": limit, "thread": thread_id, "merged": merged, "now": rules.utc_now()}
        # One that is gone by now must not come back with what it had.
        saved = self._replace.count(conn, {**values, "before": before}) if row else self._create.count(conn, values)
        if saved == 0:
            raise NoShortcutError
