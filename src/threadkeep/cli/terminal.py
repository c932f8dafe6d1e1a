"""What the terminal gets: consoles as wide as it is, and text in which nothing is left for it to obey."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Awaitable
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")

_WIDTH_OF_A_PIPE = 240
"""Programs read what goes into a pipe: ids are not to be cut for them."""
_ZERO_WIDTH_JOINER = "\u200d"
_READ_AT_MOST = 10_000
"""Of a text that is to be shortened: it may have megabytes."""


def out(*, max_width: int | None = None) -> Console:
    """A console on standard output."""
    # No markup, no emoji codes: what is shown was written by others.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_PIPE
    if max_width is not None:
        console.width = min(console.width, max_width)
    return console


def never_fail_to_encode() -> None:
    """Let a terminal that lacks a character show a stand-in for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


async def patiently(work: Awaitable[T], doing: str) -> T:
    """Await it; if it takes a while, turn a spinner on standard error meanwhile."""
    task = asyncio.ensure_future(work)
    if not (await asyncio.wait([task], timeout=1))[0]:
        with Console(stderr=True, highlight=False, markup=False, emoji=False).status(f"{doing} …"):
            await asyncio.wait([task])
    return task.result()


def printable(text: str) -> str:
    """The same text, with an escape for every character that moves, colours, hides or reverses others."""
    return "".join(
        character
        if character.isprintable() or character == _ZERO_WIDTH_JOINER
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def shortened(text: str, limit: int) -> str:
    """The text on one printable line of about `limit` characters; one that is cut says how long it was."""
    line = printable(" ".join(text[:_READ_AT_MOST].split()))
    if len(line) <= limit and len(text) <= _READ_AT_MOST:
        return line
    return f"{line[:limit]}… ({len(text):,} characters)"
