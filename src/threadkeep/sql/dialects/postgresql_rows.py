"""Many rows, or many ids, in one statement of PostgreSQL: each column travels as a list.

The driver's own way, `executemany`, never ends if it is cancelled while it sends: asyncpg (0.32) swallows the
cancellation, and waits for the answer to what it has not sent to its end. The thread would stay locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.compiler import compiles

from threadkeep.sql.batches import in_pieces
from threadkeep.sql.parameters import Among
from threadkeep.sql.prepared import Insert, Prepared, Row

MOST_BYTES = 4 * 1024 * 1024
"""In one statement, but for a row that is longer."""


class ListOf(sa.types.TypeDecorator[Any]):
    """A list as the driver takes it: SQLAlchemy would look at every element."""

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> None:
        return None


@compiles(Among, "postgresql")
def _among(element: Any, compiler: Any, **options: Any) -> str:
    # As a subquery, which can be joined. A plan that is kept for any values would compare each row of a long thread
    # with each of a thousand ids, if it was made while the table was new and its rows had not been counted.
    column, values = element.clauses
    array = sa.bindparam(values.key, type_=ListOf(column.type))
    return str(compiler.process(column.in_(sa.select(sa.func.unnest(array))), **options))


class Lists:
    """Columns of rows that travel as lists.

    Those of bytes travel as one value, from which each row cuts its own: as a list of many long ones they would take
    the driver and the server a quarter of the statement's time. A list of nothing but nulls stays empty: the server
    fills it up.
    """

    def __init__(self, **types: Any) -> None:
        self._of_bytes = [name for name, type_ in types.items() if isinstance(type_, sa.LargeBinary)]
        lists = {name: type_ for name, type_ in types.items() if name not in self._of_bytes}
        for name in self._of_bytes:
            lists |= {_first(name): sa.Integer(), _length(name): sa.Integer()}
        unnested = sa.func.unnest(*(sa.bindparam(name, type_=ListOf(type_)) for name, type_ in lists.items()))
        self.rows = unnested.table_valued(*lists, with_ordinality="place").render_derived()
        self.place = self.rows.c.place
        self.columns: dict[str, Any] = {
            name: self._cut(name) if name in self._of_bytes else self.rows.c[name] for name in types
        }

    def _cut(self, name: str) -> Any:
        whole = sa.bindparam(name, type_=sa.LargeBinary)
        return sa.func.substr(whole, self.rows.c[_first(name)], self.rows.c[_length(name)])

    def bound(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The parameters for rows with these values."""
        values: dict[str, Any] = {}
        for name, column in columns.items():
            if name in self._of_bytes:
                lengths = [*map(len, column)]
                firsts = [*accumulate(lengths[:-1], initial=1)]
                values |= {name: b"".join(column), _first(name): firsts, _length(name): lengths}
            else:
                values[name] = [] if column.count(None) == len(column) else column
        return values


def _first(name: str) -> str:
    return f"{name}_first"


def _length(name: str) -> str:
    return f"{name}_length"


def insert_rows(conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
    """Insert the rows."""
    bound = into.compiled(conn.dialect).bound_each(rows)
    lists, inserting = _inserting(into.table)
    for some in in_pieces(bound, _length_of, MOST_BYTES):
        columns = map(list, zip(*some, strict=True))
        inserting.count(conn, lists.bound(dict(zip(into.columns, columns, strict=True))))


def _length_of(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))


@cache
def _inserting(table: sa.Table) -> tuple[Lists, Prepared]:
    lists = Lists(**{column.name: column.type for column in table.c})
    rows = sa.select(*lists.columns.values()).select_from(lists.rows)
    return lists, Prepared(insert(table).from_select(table.c.keys(), rows, include_defaults=False))
