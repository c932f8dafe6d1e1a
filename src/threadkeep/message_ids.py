"""The ids of messages: given by the host, or made here. A message without an id of its own is called by its seq."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from threadkeep.errors import InvalidIdError
from threadkeep.fields import read_field
from threadkeep.ids import check_id, shown

_BY_SEQ = re.compile(r"#([1-9][0-9]{0,17})")
_lock = threading.Lock()
_last = 0

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_message_id() -> str:
    """An id that is new, and greater than all that this process has made before: a UUID of version 7."""
    (message_id,) = new_message_ids(1)
    return message_id


def new_message_ids(count: int) -> Iterator[str]:
    """So many of them, each greater than the one before."""
    global _last
    # 48 bits of milliseconds and 12 of their fractions; several within one tick count on.
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    with _lock:
        first = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last + 1)
        _last = first + count - 1
    chance = secrets.token_hex(8 * count)
    for number in range(count):
        ticks = f"{first + number:015x}"
        rest_ = chance[16 * number : 16 * number + 16]
        yield f"{ticks[:8]}-{ticks[8:12]}-7{ticks[12:]}-{_VARIANT[rest_[0]]}{rest_[1:4]}-{rest_[4:]}"


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
