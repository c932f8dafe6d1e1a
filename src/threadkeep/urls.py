"""Database URLs: which backend one means, and what may be shown of it."""

from __future__ import annotations

import re
from enum import Enum


class Backend(Enum):
    """The databases a URL can mean."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


_SCHEMES = {
    "memory": Backend.MEMORY,
    "sqlite": Backend.SQLITE,
    "sqlite+aiosqlite": Backend.SQLITE,
    "postgresql": Backend.POSTGRESQL,
    "postgres": Backend.POSTGRESQL,
    "postgresql+asyncpg": Backend.POSTGRESQL,
    "mysql": Backend.MYSQL,
    "mysql+asyncmy": Backend.MYSQL,
    "mariadb": Backend.MYSQL,
    "mariadb+asyncmy": Backend.MYSQL,
}


def split_url(url: str) -> tuple[Backend, str]:
    """The backend, and what follows `://`. Raises ValueError without showing the URL: it may hold a password."""
    scheme, separator, rest = url.partition("://")
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme, re.IGNORECASE) or not separator:
        raise ValueError("this is not a database URL: write sqlite:///file.db, postgresql://… or mysql://…")
    try:
        return _SCHEMES[scheme], rest
    except KeyError:
        raise ValueError(
            f"{scheme}:// is not among the URLs Threadkeep takes: write sqlite://, postgresql://, mysql:// or mariadb://,"
            " without a driver"
        ) from None


def sqlite_path(rest: str) -> str:
    """The path in a SQLite URL: three slashes for a relative one, four for an absolute one, none for memory."""
    host, slash, path = rest.partition("/")
    if host or (rest and not slash):
        raise ValueError("write sqlite:///relative.db or sqlite:////absolute.db: a SQLite URL has no host")
    return path.partition("?")[0] or ":memory:"
