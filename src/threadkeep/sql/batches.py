"""Much, in pieces that every driver can carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 1_000


def in_batches(values: Iterable[T], size: int = _AT_ONCE) -> Iterator[list[T]]:
    """As many at once as every driver can bind in one statement."""
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some


def in_pieces(values: Iterable[T], length_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """As many at once as are not longer than this together. One that is longer goes alone."""
    piece: list[T] = []
    length = 0
    for value in values:
        its_length = length_of(value)
        if piece and length + its_length > most:
            yield piece
            piece, length = [], 0
        piece.append(value)
        length += its_length
    if piece:
        yield piece
