"""What a search looks at: text that is folded in one way here, so that every server finds the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from threadkeep.fields import read_field

Searchable = bool | Callable[[Any], str | None]
"""Which messages can be found: all that have text, none, or those for which a function gives a text."""

MAX_TEXT = 65_536
"""Characters of a message that are looked at."""


def fold(text: str) -> str:
    """The text without what a reader would not look for: case, width, and characters that are not one."""
    # Twice: the lower case of some Greek letters is three characters, which are one again afterwards.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.replace("\0", "").encode("utf-8", "ignore").decode()


def text_in(message: Any) -> str | None:
    """What was said in a message, in any class that has the shape of ours."""
    content = read_field(message, "content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    texts = [read_field(part, "text") for part in parts if read_field(part, "type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def search_text(searchable: Searchable, message: Any) -> str | None:
    """The folded text by which the message is to be found, or None."""
    if searchable is False:
        return None
    text = text_in(message) if searchable is True else searchable(message)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"searchable gave a {type(text).__name__}: it must give a message's text, or None")
    return fold(text[:MAX_TEXT]) or None if text else None
