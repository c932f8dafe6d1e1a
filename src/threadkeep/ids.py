"""What an id may be: one rule for every backend, so that no server can be more or less strict than another."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

from threadkeep.errors import InvalidIdError

MAX_ID_BYTES = 255


def check_id(name: str, value: Any) -> str:
    """Return the id as a plain `str`, or raise InvalidIdError naming the argument."""
    if not isinstance(value, str):
        # Its text and not the thing itself, which may neither print nor pickle.
        raise InvalidIdError(name, shown(value), f"it is a {type(value).__name__}, not a str")
    # A driver may look at the exact type, so a subclass (an enum, say) is stored as the text it holds.
    text = value if type(value) is str else str.__str__(value)
    reason = _objection(text)
    if reason:
        raise InvalidIdError(name, text, reason)
    return text


def check_optional_id(name: str, value: Any) -> str | None:
    """Like `check_id`, but None stays None."""
    return None if value is None else check_id(name, value)


def is_id(value: Any) -> bool:
    """Whether `check_id` would take it."""
    return isinstance(value, str) and _objection(value) is None


def shown(value: Any) -> str:
    """A value as text, for an error: never long, and never an error itself."""
    try:
        return repr(value)[:100]
    except Exception:
        return f"<{type(value).__name__}>"


@lru_cache(maxsize=4_096)  # the same few come with every write
def _objection(text: str) -> str | None:
    if not text:
        return "it is empty"
    if text != text.strip():
        return "it begins or ends with white space"
    if text.isascii():
        size, clean = len(text), text.isprintable()
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return "it holds a lone surrogate"
        clean = not any(unicodedata.category(character) == "Cc" for character in text)
    if not clean:
        return "it holds a control character"
    if size > MAX_ID_BYTES:
        return f"it takes {size} bytes in UTF-8, more than {MAX_ID_BYTES}"
    return None
