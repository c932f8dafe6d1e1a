"""The ids of messages: given by the host, or made here.

One that is made ends with the seq of its message, so that the message is found by it without an index. A message from
before there were ids is called by its seq alone.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from threadkeep.errors import InvalidIdError, MessageNotFoundError
from threadkeep.fields import read_field
from threadkeep.ids import check_id, shown
from threadkeep.records import ContextItem, MessageRecord

_BY_SEQ = re.compile(r"#([1-9][0-9]{0,17})")
_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{2}([0-9a-f]{10})")
_lock = threading.Lock()
_last = 0

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
SEQ_DIGITS = 10
"""Hexadecimal ones, at the end of an id that is made: enough for a million million messages in a thread."""


def new_message_id() -> str:
    """An id that is new, and greater than all that this process has made before: a UUID of version 7."""
    return f"{new_stem()}{secrets.token_hex(SEQ_DIGITS // 2)}"


def new_stem() -> str:
    """What the ids of messages that are appended together begin with: new, and greater than all before."""
    global _last
    # 48 bits of milliseconds and 12 of their fractions; several within one tick count on.
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    with _lock:
        _last = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last + 1)
        ticks = f"{_last:015x}"
    chance = secrets.token_hex(3)
    return f"{ticks[:8]}-{ticks[8:12]}-7{ticks[12:]}-{_VARIANT[chance[0]]}{chance[1:4]}-{chance[4:]}"


def made_id(stem: str, seq: int) -> str:
    """The id of the message that is appended there: a UUID of version 7, too."""
    return f"{stem}{seq:0{SEQ_DIGITS}x}"


def told_seq(message_id: str) -> int:
    """The seq that an id ends with, if it was made for a message; else of no message."""
    match = _MADE.fullmatch(message_id)
    return int(match[1], 16) if match else 0


def of_seq(seq: int) -> str:
    """How a message is called that was written without an id, before messages had them."""
    return f"#{seq}"


def seq_in(message_id: str) -> int | None:
    """The seq that such a name tells, or None for an id."""
    match = _BY_SEQ.fullmatch(message_id)
    return int(match[1]) if match else None


def check_given_id(name: str, value: Any) -> str:
    """`check_id`, for an id that a host gives to a message."""
    message_id = check_id(name, value)
    if seq_in(message_id) is not None:
        raise InvalidIdError(name, message_id, "# and a number is how messages are called that have no id of their own")
    return message_id


def is_foreign(thread_id: str, value: Any) -> bool:
    """Whether it is a record or an item of another thread: two threads may call different messages alike."""
    return isinstance(value, ContextItem | MessageRecord) and value.thread_id != thread_id


def refuse_foreign(thread_id: str, *values: Any) -> None:
    """Raise MessageNotFoundError if one of them is."""
    for value in values:
        if is_foreign(thread_id, value):
            raise MessageNotFoundError(thread_id, value.message_id)


def message_id_in(name: str, value: Any) -> str:
    """The id of a message that is given by it, or as a message, record or item that has it."""
    if isinstance(value, str):
        return check_id(name, value)
    message_id = read_field(value, "message_id")
    if message_id is None:
        reason = "it has no message_id: give what messages.append() or context.records() returned"
        raise InvalidIdError(name, shown(value), reason)
    return check_id(f"{name}.message_id", message_id)


def message_ids_in(name: str, values: Any) -> list[str]:
    """Those of several, each once."""
    return list(dict.fromkeys(message_id_in(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values))))


def listed(name: str, values: Any) -> list[Any]:
    """The values, which must be several: one message alone would be taken apart."""
    if isinstance(values, str | Mapping) or hasattr(values, "message_id") or not isinstance(values, Iterable):
        raise InvalidIdError(name, shown(values), "it is one thing where a list of ids, items or records belongs")
    return list(values)
