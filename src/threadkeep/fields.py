"""Reading a host's own message classes, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_field(value: Any, name: str) -> Any:
    """What an object has as an attribute, or a mapping as a key; None where it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
