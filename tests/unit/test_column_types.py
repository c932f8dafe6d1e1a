"""The column types, on each database as it really stores them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncConnection

from backends import host_engine, host_url
from servers import SERVERS, fresh_database
from threadkeep.sql.column_types import id_type, json_mirror, json_text, payload_type, role_type, utc_time

samples = sa.Table(
    "samples",
    sa.MetaData(),
    sa.Column("id", id_type(), primary_key=True),
    sa.Column("at", utc_time()),
    sa.Column("text", json_text()),
    sa.Column("payload", payload_type()),
    sa.Column("role", role_type()),
    sa.Column("mirror", json_mirror()),
)

TIME = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
TIMES = [
    TIME,
    TIME.replace(microsecond=0),
    TIME.replace(microsecond=1),
    TIME.replace(microsecond=999_999),
    TIME.astimezone(timezone(timedelta(hours=5, minutes=45))),
    TIME.astimezone(timezone(timedelta(hours=-11))),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),  # where MySQL's TIMESTAMP ends
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


@pytest.fixture(params=["sqlite", *SERVERS])
async def connection(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncConnection]:
    """A host's connection, whose session is in a zone far from UTC where the server has such a thing."""
    if request.param == "sqlite":
        engine = host_engine(f"sqlite+aiosqlite:///{tmp_path}/types.db")
        async with engine.begin() as conn:
            await conn.run_sync(samples.create)
            yield conn
        await engine.dispose()
        return
    with fresh_database(request.param) as url:
        engine = host_engine(host_url(request.param, url))
        zone = "TIME ZONE 'Asia/Kathmandu'" if request.param == "postgresql" else "time_zone = '+05:45'"
        async with engine.begin() as conn:
            await conn.exec_driver_sql(f"SET {zone}")
            await conn.run_sync(samples.create)
            yield conn
        await engine.dispose()


async def stored(connection: AsyncConnection, column: str, value: Any) -> Any:
    await connection.execute(sa.delete(samples))
    await connection.execute(sa.insert(samples).values({"id": "a", column: value}))
    return (await connection.execute(sa.select(samples.c[column]))).scalar_one()


async def test_times_come_back_in_utc_to_the_microsecond(connection: AsyncConnection) -> None:
    for time in TIMES:
        again = await stored(connection, "at", time)
        assert again == time
        assert again.tzinfo is UTC
    assert await stored(connection, "at", None) is None


async def test_times_compare_as_instants(connection: AsyncConnection) -> None:
    await stored(connection, "at", TIME.astimezone(timezone(timedelta(hours=9))))
    earlier = sa.select(samples.c.id).where(samples.c.at < TIME + timedelta(microseconds=1))
    later = sa.select(samples.c.id).where(samples.c.at > TIME - timedelta(microseconds=1))
    equal = sa.select(samples.c.id).where(samples.c.at == TIME)
    for question in (earlier, later, equal):
        assert (await connection.execute(question)).scalar_one() == "a"


async def test_a_naive_time_is_refused(connection: AsyncConnection) -> None:
    naive = TIME.replace(tzinfo=None)
    with pytest.raises(StatementError, match="naive time"):
        await connection.execute(sa.insert(samples).values(id="a", at=naive))
    with pytest.raises(StatementError, match="naive time"):
        await connection.execute(sa.select(samples).where(samples.c.at < naive))


def test_sqlite_files_have_times_as_sqlalchemy_writes_them() -> None:
    """SQLite alone has no times of its own: rows from before must go on sorting beside new ones."""
    dialect = sqlite.dialect()
    ours, theirs = (type_.dialect_impl(dialect).bind_processor(dialect) for type_ in (utc_time(), sa.DateTime()))
    assert ours is not None
    assert theirs is not None
    for time in [*TIMES, datetime(33, 4, 3, tzinfo=UTC)]:
        assert ours(time) == theirs(time.astimezone(UTC))
    assert ours(None) is None


async def test_text_and_bytes_of_any_length_come_back(connection: AsyncConnection) -> None:
    """MySQL's plain TEXT and BLOB end at 64 KiB."""
    text = '{"é": "🙂 \\u0000 quote\'s %s :x"}' * 10_000
    assert await stored(connection, "text", text) == text
    payload = bytes(range(256)) * 1_000
    assert await stored(connection, "payload", payload) == payload


async def test_ids_compare_byte_for_byte(connection: AsyncConnection) -> None:
    ids = ["Run-A", "run-a", "cafe", "café", "cafe\u0301", "ß", "ss", "🙂", "🙃", "a" * 255, "é" * 127]
    await connection.execute(sa.insert(samples), [{"id": text} for text in ids])
    for text in ids:
        found = (await connection.execute(sa.select(samples.c.id).where(samples.c.id == text))).scalars().all()
        assert found == [text]
    inside = sa.select(samples.c.id).order_by(samples.c.id)
    assert sorted((await connection.execute(inside)).scalars()) == sorted(ids)


async def test_roles_and_the_mirror_take_any_language(connection: AsyncConnection) -> None:
    assert await stored(connection, "role", "助手" * 16) == "助手" * 16
    mirrored = {"größe": [1, "🙂", None]}
    assert await stored(connection, "mirror", json.dumps(mirrored, ensure_ascii=False)) == mirrored
