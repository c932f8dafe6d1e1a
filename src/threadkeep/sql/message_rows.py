"""The rows of messages as they are inserted: their values in the order of the table's columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from threadkeep.message_ids import made_id
from threadkeep.records import MessageRow
from threadkeep.sql.prepared import Insert, Row
from threadkeep.sql.tables import messages

INSERT = Insert(messages)


def placed(thread_id: str, rows: Iterable[MessageRow], stem: str, first_seq: int, now: datetime | str) -> Iterator[Row]:
    """The rows of a thread, from this seq on. Ids that are made begin with `stem`. `now` may be as it is stored."""
    return (
        [thread_id, seq, role, run_id, format_, payload, metadata, now, message_id or made_id(stem, seq)]
        for seq, (payload, format_, run_id, role, metadata, message_id, _) in enumerate(rows, first_seq)
    )
