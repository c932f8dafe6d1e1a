"""Labels: how threads are found by their metadata. A label is a hash of one key and its value.

It is the same on every server; no key or value ever becomes a part of a statement, and none is too long for an index.
"""

from __future__ import annotations

from typing import Any

from threadkeep.json_values import canonical, digest


def label(key: str, value: Any) -> str:
    """The label of this value under this key."""
    return digest(canonical([key, value]))


def labels_of(metadata: dict[str, Any]) -> tuple[str, ...]:
    """Those of all keys there are."""
    return tuple(sorted(label(key, value) for key, value in metadata.items()))
