"""Side effects that can be counted: lines of a file."""

import os
from pathlib import Path


def append_line(path: str, line: str) -> None:
    """It has happened, whole, when this returns. Several processes may do it at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines_of(path: str) -> list[str]:
    """All that has happened so far."""
    return Path(path).read_text().splitlines() if os.path.exists(path) else []
