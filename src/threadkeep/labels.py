"""Labels: how threads are found by their metadata. A label is a hash of one key and its value.

It is the same on every server; no key and no value ever becomes a part of a statement, none is too long for an index,
and 1 is not 1.0 or True.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def label(key: str, value: Any) -> str:
    """The label of this value under this key. Of a dict, the order of its keys does not count."""
    return digest(json.dumps([key, value], sort_keys=True, separators=(",", ":")))


def labels_of(metadata: dict[str, Any]) -> tuple[str, ...]:
    """Those of all keys there are."""
    return tuple(sorted(label(key, value) for key, value in metadata.items()))


def digest(text: str) -> str:
    """A SHA-256 in hexadecimal: something long as a key of fixed length."""
    return hashlib.sha256(text.encode()).hexdigest()
