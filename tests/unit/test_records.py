"""The records that users get cannot be changed under anybody's feet."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep import RunRecord, ThreadRecord
from threadkeep.records import MessageRow, StoredMessage, StoredPending, StoredThread

NOW = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
RECORDS: list[Any] = [
    ThreadRecord("thread", None, None, 0, 0, NOW, NOW),
    RunRecord("run", NOW, None, None),
    MessageRow(b"{}", 1, None, "user", "{}", "message"),
    StoredMessage(1, 1, b"{}"),
    StoredThread(None, "{}", []),
    StoredPending("{}", None),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_frozen(record: Any) -> None:
    names = getattr(record, "_fields", None) or [field.name for field in dataclasses.fields(record)]
    for name in names:
        with pytest.raises(AttributeError):
            setattr(record, name, "changed")
    with pytest.raises((AttributeError, TypeError)):
        record.surplus = 1
