"""Reading a host's own message classes, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

_OF_MESSAGES = ("message_id", "run_id", "role", "metadata")


def read_fields(message: Any) -> tuple[Any, Any, Any, Any]:
    """A message's message_id, run_id, role and metadata, each as `read_field` has it."""
    kind: Any = type(message)
    if _is_mapping(kind):
        message_id, run_id, role, metadata = map(message.get, _OF_MESSAGES)
        return message_id, run_id, role, metadata
    return (
        getattr(message, "message_id", None),
        getattr(message, "run_id", None),
        getattr(message, "role", None),
        getattr(message, "metadata", None),
    )


def read_field(value: Any, name: str) -> Any:
    """What an object has as an attribute, or a mapping as a key; None where it has none."""
    kind: Any = type(value)
    return value.get(name) if _is_mapping(kind) else getattr(value, name, None)


@cache
def _is_mapping(kind: Any) -> bool:
    return issubclass(kind, Mapping)  # asked once of a class: an abstract one takes its time
