"""What free-form JSON may be: exactly what comes back as it went in, on every backend.

`check_json` walks a value before anything is encoded. The walk is strict about types, because a tuple would come
back as a list and an int key as a str, and about limits, because what dumps must also load.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, from_json, to_json

from threadkeep.errors import UnstorableValueError

MAX_DEPTH = 100
MAX_DIGITS = 1_000
_FIRST_TOO_LONG = 10**MAX_DIGITS


class Unstorable(Exception):
    """What is wrong, with the way to it; the path grows while the walk unwinds, so that good values pay nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str | int] = []

    def under(self, step: str | int) -> Unstorable:
        """The same trouble, seen from one level further out."""
        self.steps.append(step)
        return self

    def located(self, root: str) -> UnstorableValueError:
        """The public error, with the path written out from `root`."""
        path = root
        for step in reversed(self.steps):
            if isinstance(step, str) and step.isidentifier():
                path += f".{step}"
            else:
                path += f"[{step!r}]"
        return UnstorableValueError(path, self.reason)


def canonical(value: Any) -> str:
    """The text of a value that has been checked: the same only for equal JSON. The order of keys does not count.

    1 is not 1.0 or True.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """A SHA-256 in hexadecimal: something long as a key of fixed length."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_json(value: Any, depth: int = 1, *, otherwise: Callable[[Any, int], None] | None = None) -> None:
    """Raise Unstorable unless the value is JSON that every backend gives back unchanged.

    `otherwise` may take what is no JSON, and refuse it in its turn.
    """
    kind = type(value)
    if kind is str:
        check_text(value)
    elif kind is int:
        check_int(value)
    elif kind is float:
        check_float(value)
    elif kind is dict:
        if depth > MAX_DEPTH:
            _refuse(f"nested more than {MAX_DEPTH} levels deep")
        for key, item in value.items():
            if type(key) is not str:
                _refuse(f"has a key that is a {type(key).__name__}: JSON keys are str")
            try:
                check_text(key)
                check_json(item, depth + 1, otherwise=otherwise)
            except Unstorable as trouble:
                raise trouble.under(key) from None
    elif kind is list:
        if depth > MAX_DEPTH:
            _refuse(f"nested more than {MAX_DEPTH} levels deep")
        for index, item in enumerate(value):
            try:
                check_json(item, depth + 1, otherwise=otherwise)
            except Unstorable as trouble:
                raise trouble.under(index) from None
    elif value is not None and kind is not bool:
        (otherwise or refuse_kind)(value, depth)


def refuse_kind(value: Any, depth: int = 1) -> NoReturn:
    """Refuse a type that JSON does not have."""
    _refuse(
        f"is a {type(value).__name__}, which would not come back as one: use str, int, float, bool, None, list or dict"
    )


def check_text(value: str) -> None:
    """Refuse lone surrogates: no UTF-8 has them."""
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        _refuse("holds a lone surrogate")


def check_int(value: int) -> None:
    """Refuse integers longer than parsers read back."""
    if not -_FIRST_TOO_LONG < value < _FIRST_TOO_LONG:
        _refuse(f"is an integer of more than {MAX_DIGITS:,} digits")


def check_float(value: float) -> None:
    """Refuse NaN and the infinities: JSON has none."""
    if not isfinite(value):
        _refuse(f"is {value}, which JSON cannot say")


def _refuse(reason: str) -> NoReturn:
    raise Unstorable(reason)


def encode(value: Any) -> str:
    """The JSON text of a value that was checked."""
    return to_json(value).decode()


def decode(text: str) -> Any:
    """The value that `encode` was given, or that Python's own json module wrote, as in cubepi's SQLite files."""
    try:
        return from_json(text)
    except ValueError:
        with suppress(ValueError, RecursionError):
            return json.loads(text)  # lone surrogates, and nesting as deep as Python goes
        raise


def encode_again(value: Any) -> str:
    """The JSON text of a value that was decoded, lone surrogates included."""
    try:
        return encode(value)
    except (PydanticSerializationError, UnicodeError):
        return json.dumps(value)


def checked(value: Any, root: str, *, otherwise: Callable[[Any, int], None] | None = None) -> Any:
    """The value itself, or UnstorableValueError with the path from `root`."""
    try:
        check_json(value, otherwise=otherwise)
    except Unstorable as trouble:
        raise trouble.located(root) from None
    return value
