"""The context window: which messages a model is shown, and what stands in the place of the others.

The log is never touched. A window is a number, up to which the log has been compacted, and a few rows before it: the
messages that stayed and the summaries. What comes after that number is in the window by itself. Every item has a
position, the seq of a message: its own, or of a summary that of the first message it stands for.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from threadkeep.errors import CheckpointCorruptionError, StaleContextError
from threadkeep.records import PlacedItem

Replaced = list[list[int] | int]
"""What a summary stands for: [first, last] for messages in a row, a number for another summary."""


def decode(thread_id: str, number: int, stored: str) -> Replaced:
    """What is stored of it."""
    try:
        replaces: Replaced = json.loads(stored)
    except ValueError as error:
        key = {"thread_id": thread_id, "number": number}
        raise CheckpointCorruptionError("cubepi_summaries", key, f"replaces: {error}") from error
    return replaces


class Compaction(NamedTuple):
    """What changes when a summary takes the place of some items."""

    position: int
    """Where the summary stands."""
    replaces: Replaced
    removed: list[int]
    """The positions of rows that go."""
    stayed: list[int]
    """Messages that were in the window by themselves, and need a row from now on."""
    compacted_seq: int


def compact(thread_id: str, compacted_seq: int, items: Sequence[PlacedItem], remove: Sequence[str]) -> Compaction:
    """Put a summary in the place of these ids, which must all be among the items. Raises StaleContextError."""
    present = {item.message_id for item in items}
    missing = [message_id for message_id in remove if message_id not in present]
    if missing:
        raise StaleContextError(thread_id, missing)
    going = set(remove)
    gone = [item for item in items if item.message_id in going]
    last = max((item.position for item in gone if item.number is None), default=0)
    own = (item.position for item in items if item.position > compacted_seq and item.message_id not in going)
    return Compaction(
        position=gone[0].position,
        replaces=_in_rows(compacted_seq, gone, items),
        removed=[item.position for item in gone if item.position <= compacted_seq],
        stayed=[position for position in own if position <= last],
        compacted_seq=max(compacted_seq, last),
    )


def _in_rows(compacted_seq: int, gone: Sequence[PlacedItem], items: Sequence[PlacedItem]) -> Replaced:
    """Messages one after the other make one entry, as long as nothing of the log lies between them."""
    places = {item.position: place for place, item in enumerate(items)}
    replaces: Replaced = []
    before: PlacedItem | None = None
    for item in gone:
        if item.number is not None:
            replaces.append(item.number)
        elif (
            before is not None
            and before.number is None
            and places[item.position] == places[before.position] + 1
            # Before that seq, neighbours in the window may have a compacted message between them.
            and (before.position > compacted_seq or before.position + 1 == item.position)
        ):
            replaces[-1] = [_first(replaces[-1]), item.position]
        else:
            replaces.append([item.position, item.position])
        before = item
    return replaces


def _first(entry: list[int] | int) -> int:
    assert isinstance(entry, list)
    return entry[0]


class ForkedWindow(NamedTuple):
    """The window of a copy."""

    compacted_seq: int
    rows: dict[int, int | None]
    """Position to the number of the summary that stands there, or None for a message."""
    summaries: dict[int, tuple[int, Replaced]]
    """The summaries that come along: their position in the copy, and what they stand for there."""


class Summarized(NamedTuple):
    """What a fork has to know of a summary."""

    position: int
    replaces: Replaced


def fork(
    rows: Mapping[int, int | None], summaries: Mapping[int, Summarized], copied: Sequence[int], left: Sequence[int]
) -> ForkedWindow:
    """The window over the copied messages; these and those that were left are given by their seqs, in order.

    A summary comes along if all its messages do. In the place of any other stand those of its messages that do.
    """

    def place(seq: int) -> int:
        return bisect_right(copied, seq)

    kept: dict[int, tuple[int, Replaced]] = {}
    last: dict[int, int] = {}
    # A summary has a greater number than those it stands for, and a chain of them may be long: no recursion here.
    for number in sorted(summaries):
        position, replaces = summaries[number]
        if all(_comes_along(entry, kept, left) for entry in replaces):
            mapped = [entry if isinstance(entry, int) else [place(entry[0]), place(entry[1])] for entry in replaces]
            kept[number] = place(position), mapped
            last[number] = max(last[entry] if isinstance(entry, int) else entry[1] for entry in mapped)

    window: dict[int, int | None] = {}
    entries: Replaced = [[position, position] if number is None else number for position, number in rows.items()]
    while entries:
        entry = entries.pop()
        if isinstance(entry, list):
            for seq in copied[bisect_left(copied, entry[0]) : bisect_right(copied, entry[1])]:
                window[place(seq)] = None
        elif entry in kept:
            window[kept[entry][0]] = entry
        else:
            entries += summaries[entry].replaces
    compacted_seq = max((last[number] for number in window.values() if number is not None), default=0)
    return ForkedWindow(
        compacted_seq=compacted_seq,
        # What comes after the last summary is in the window by itself.
        rows={position: number for position, number in window.items() if position <= compacted_seq},
        summaries=kept,
    )


def _comes_along(entry: list[int] | int, kept: Mapping[int, object], left: Sequence[int]) -> bool:
    if isinstance(entry, int):
        return entry in kept
    return bisect_left(left, entry[0]) == bisect_right(left, entry[1])


def messages_under(number: int, summaries: Mapping[int, Replaced]) -> list[list[int]]:
    """The messages that a summary stands for in the end, as [first, last], in order."""
    found: list[list[int]] = []
    entries: Replaced = [number]
    while entries:
        entry = entries.pop()
        if isinstance(entry, list):
            found.append(entry)
        else:
            entries += summaries[entry]
    return sorted(found)
