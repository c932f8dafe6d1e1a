"""Many rows in one statement of PostgreSQL: each column travels as a list.

The driver's own way, `executemany`, never ends if it is cancelled while it sends: asyncpg (0.32) swallows the
cancellation, and waits for the answer to what it has not sent to its end. The thread would stay locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from threadkeep.sql.batches import in_pieces
from threadkeep.sql.prepared import Insert, Prepared, Row

MOST_BYTES = 4 * 1024 * 1024
"""In one statement, but for a row that is longer."""


class ListOf(sa.types.TypeDecorator[Any]):
    """A list as the driver takes it: SQLAlchemy would look at every element."""

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> None:
        return None


def insert_rows(conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
    """Insert the rows."""
    bound = into.compiled(conn.dialect).bound_each(rows)
    for some in in_pieces(bound, _length_of, MOST_BYTES):
        lists = map(list, zip(*some, strict=True))
        _inserting(into.table).count(conn, dict(zip(into.columns, lists, strict=True)))


def _length_of(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))


@cache
def _inserting(table: sa.Table) -> Prepared:
    lists = (sa.bindparam(column.name, type_=ListOf(column.type)) for column in table.c)
    rows = sa.func.unnest(*lists).table_valued(*table.c.keys()).render_derived()
    return Prepared(insert(table).from_select(table.c.keys(), sa.select(*rows.c), include_defaults=False))
