"""The column types of the model: values look the same everywhere, and here it is said how a server stores them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

_MYSQL = ("mysql", "mariadb")
_EXACT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
"""Byte for byte: any other collation takes `Run-A` for `run-a`."""


class _TimeAsText(sqlite.DATETIME):
    """SQLite has no times. They are written as SQLAlchemy writes them, in a fraction of the time."""

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[datetime | None], str | None]:
        return lambda value: None if value is None else value.isoformat(" ", "microseconds")


_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_TIME_AS_TEXT = _TimeAsText()  # type: ignore[no-untyped-call] # SQLAlchemy's constructor has no types
_ZONELESS = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL).with_variant(_TIME_AS_TEXT, "sqlite")


def id_type() -> sa.types.TypeEngine[str]:
    """An id, compared byte for byte. `ids.check_id` keeps it within 255 bytes."""
    return sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)


def role_type() -> sa.types.TypeEngine[str]:
    """A message's role, for queries."""
    # Named, because a MariaDB database is in latin1 if nobody said otherwise.
    return sa.Text().with_variant(mysql.VARCHAR(32, charset="utf8mb4"), *_MYSQL)


def short_name() -> sa.types.TypeEngine[str]:
    """A word of ours, such as a status."""
    return sa.Text().with_variant(mysql.VARCHAR(32, **_EXACT), *_MYSQL)


def short_hash() -> sa.types.TypeEngine[str]:
    """A SHA-256 in hexadecimal."""
    return sa.Text().with_variant(mysql.CHAR(64, charset="ascii", collation="ascii_bin"), *_MYSQL)


def json_text() -> sa.types.TypeEngine[str]:
    """JSON that must come back as it went in: text, because servers rewrite, round or refuse their own JSON types."""
    return sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), *_MYSQL)


def json_mirror() -> sa.types.TypeEngine[Any]:
    """JSON for queries, in the server's own type: text goes in. Nothing of ours is ever read back from it."""
    return _EncodedJSON()


def payload_type() -> sa.types.TypeEngine[bytes]:
    """Encoded bytes of any length: MySQL's plain BLOB ends at 64 KiB."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)


def utc_time() -> sa.types.TypeEngine[datetime]:
    """An aware UTC time, to the microsecond."""
    return _WithoutZone().with_variant(_WithZone(timezone=True), "postgresql")


class _EncodedJSON(sa.types.TypeDecorator[Any]):
    """JSON that is encoded already."""

    impl = sa.JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(_JSON)

    def bind_processor(self, dialect: sa.Dialect) -> None:
        return None


class _WithZone(sa.types.TypeDecorator[datetime]):
    """For servers that store an instant. A naive time is refused before it can be misread."""

    impl = sa.TIMESTAMP
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else _in_utc(value)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        # asyncpg takes the last of all times for infinity, and gives that back without a zone.
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class _WithoutZone(sa.types.TypeDecorator[datetime]):
    """For servers whose times have no zone: UTC goes in, UTC comes out."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(_ZONELESS)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else _in_utc(value).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a naive time cannot be stored: use an aware one")
    return value.astimezone(UTC)
