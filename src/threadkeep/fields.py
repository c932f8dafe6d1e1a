"""Reading a host's own message classes, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any


def read_field(value: Any, name: str) -> Any:
    """What an object has as an attribute, or a mapping as a key; None where it has none."""
    kind: Any = type(value)
    return value.get(name) if _is_mapping(kind) else getattr(value, name, None)


@cache
def _is_mapping(kind: Any) -> bool:
    return issubclass(kind, Mapping)  # asked once of a class: an abstract one takes its time
