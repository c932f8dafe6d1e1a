"""Messages: appending them, and loading a whole thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from threadkeep import json_values, rules
from threadkeep.errors import CheckpointCorruptionError, DuplicateIdError
from threadkeep.message_ids import told_seq
from threadkeep.records import FORMAT_MSGPACK, Believed, MessageRow, Mirror, StoredMessage, StoredThread
from threadkeep.sql.batches import in_batches
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.message_rows import INSERT, placed
from threadkeep.sql.operations import ledger, runs
from threadkeep.sql.parameters import IDS, SEQS, THREAD, Among
from threadkeep.sql.prepared import Insert, Prepared
from threadkeep.sql.tables import message_places, messages, search_texts, summaries, threads

_INSERT_PLACES = Insert(message_places)
_INSERT_TEXTS = Insert(search_texts)

_CUBEPI_WROTE_IT = messages.c.format == sa.literal_column(f"{FORMAT_MSGPACK}")


def _where_cubepi_wrote(value: Any) -> sa.ColumnElement[Any]:
    return sa.case((_CUBEPI_WROTE_IT, value))


STORED = (
    messages.c.seq,
    messages.c.format,
    messages.c.payload,
    _where_cubepi_wrote(messages.c.metadata).label("metadata"),
    _where_cubepi_wrote(messages.c.run_id).label("run_id"),
)
"""What `stored_message` reads."""

NOT_STORED = tuple(sa.type_coerce(sa.null(), column.type).label(column.name) for column in STORED[2:])
"""For the row that comes with them and is none, in a union with them."""

# One statement, so one snapshot on every server: the thread itself comes as a row of seq 0, with its extra in the place
# of a message's metadata and its parent in the place of a run. Every column more is one more for each message.
_LOAD = Prepared(
    sa.union_all(
        sa.select(
            sa.literal_column("0").label("seq"),
            sa.literal_column("0").label("format"),
            NOT_STORED[0],
            threads.c.extra,
            threads.c.parent_thread_id,
        ).where(threads.c.thread_id == THREAD),
        sa.select(
            messages.c.seq,
            messages.c.format,
            messages.c.payload,
            _where_cubepi_wrote(sa.cast(messages.c.metadata, sa.Text)),
            _where_cubepi_wrote(messages.c.run_id),
        ).where(messages.c.thread_id == THREAD),
    )
)


def _taken_in(table: sa.Table) -> sa.Select[Any]:
    its_ids = sa.select(table.c.message_id).where(table.c.thread_id == THREAD, Among(table.c.message_id, IDS))
    return its_ids.with_for_update(read=True)


_TAKEN = (_taken_in(message_places), _taken_in(summaries))
_TAKEN_WHERE_TOLD = _taken_in(messages).where(Among(messages.c.seq, SEQS))


def append(conn: sa.Connection, hooks: Hooks, thread_id: str, rows: Sequence[MessageRow], stem: str) -> int:
    """Add the rows at the next seqs; return the last of them."""
    added = hooks.append_in_one_go(conn, thread_id, rows, stem)
    if added is not None:
        return added
    now = rules.utc_now()
    last_seq = hooks.allocate(conn, thread_id, len(rows), now)
    if named := {row.run_id for row in rows if row.run_id is not None}:
        completed = {*runs.completed_among(conn, thread_id, sorted(named))}
        rules.refuse_completed(thread_id, (row.run_id for row in rows if row.run_id in completed))
    if given := [row.message_id for row in rows if row.message_id is not None]:
        found = taken(conn, thread_id, given)
        for message_id in given:
            if message_id in found:
                raise DuplicateIdError(thread_id, message_id)
    first_seq = last_seq - len(rows) + 1
    hooks.insert_rows(conn, INSERT, placed(thread_id, rows, stem, first_seq, now))
    numbered = [*enumerate(rows, first_seq)]
    if given:
        places = [[thread_id, row.message_id, seq] for seq, row in numbered if row.message_id is not None]
        hooks.insert_rows(conn, _INSERT_PLACES, places)
    if texts := [[thread_id, seq, row.search_text] for seq, row in numbered if row.search_text is not None]:
        hooks.insert_rows(conn, _INSERT_TEXTS, texts)
    return last_seq


def taken(conn: sa.Connection, thread_id: str, message_ids: Iterable[str]) -> set[str]:
    """Those of the ids that a message or a summary of the thread has."""
    found: set[str] = set()
    for some in in_batches(message_ids):
        for statement in _TAKEN:
            found.update(conn.execute(statement, {"thread": thread_id, "ids": some}).scalars())
        if told := {id_: seq for id_ in some if (seq := told_seq(id_))}:
            asked = {"thread": thread_id, "ids": [*told], "seqs": [*told.values()]}
            found.update(conn.execute(_TAKEN_WHERE_TOLD, asked).scalars())
    return found


def append_after(
    conn: sa.Connection, hooks: Hooks, thread_id: str, rows: Sequence[MessageRow], stem: str, believed: Believed
) -> bool:
    """Add the rows if nothing has come meanwhile, neither messages nor what the ledger says of these calls."""
    thread = hooks.lock(conn, thread_id, rules.utc_now(), threads.c.last_seq)
    if thread is None or thread.last_seq != believed.last_seq:
        return False
    if not believed.still_holds(ledger.about(conn, hooks, thread_id, believed.call_ids, believed.keys)):
        return False
    append(conn, hooks, thread_id, rows, stem)
    return True


def load(conn: sa.Connection, hooks: Hooks, thread_id: str) -> StoredThread | None:
    """The whole thread, or None."""
    rows = _LOAD.rows(conn, {"thread": thread_id})
    hooks.forget_rows(conn)
    if not rows:
        return None
    # Sorting here costs nothing on rows that come in order, and a server that sorts would carry the payloads along.
    (first, *_, extra, parent_thread_id), *stored = sorted(rows, key=itemgetter(0))
    if first:
        reason = "there are messages of a thread that is not there"
        raise CheckpointCorruptionError("cubepi_threads", {"thread_id": thread_id}, reason)
    return StoredThread(
        parent_thread_id=parent_thread_id,
        extra=extra,
        messages=[
            StoredMessage(seq, format_, payload)
            if format_ != FORMAT_MSGPACK
            else StoredMessage(seq, format_, payload, Mirror(json_values.decode(metadata), run_id))
            for seq, format_, payload, metadata, run_id in stored
        ],
    )


def stored_message(row: Any) -> StoredMessage:
    """A row of the columns STORED."""
    mirror = Mirror(row.metadata, row.run_id) if row.format == FORMAT_MSGPACK else None
    return StoredMessage(row.seq, row.format, bytes(row.payload), mirror)
