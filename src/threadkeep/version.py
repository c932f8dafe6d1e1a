"""This library's version, and how versions compare."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("threadkeep")


def as_numbers(text: str) -> tuple[int, ...]:
    """`"1.2.3"` as `(1, 2, 3)`; what follows the numbers, as in `1.2.3rc1`, counts for nothing.

    Nor do zeros at the end: 1.0 is 1.0.0.
    """
    numbers = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            numbers.append(int(digits))
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
