"""Statements with their values in them, for MySQL and MariaDB: many rows in few of them.

Their driver escapes every value character by character, which takes as long as the server takes to store it. Here a
value is a literal that few fast calls make: texts of harmless characters and payloads in quotes, all else in
hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from threadkeep.sql.batches import in_pieces
from threadkeep.sql.prepared import Insert, Prepared, Row, Values, each_once, execute_in_turn

_STATEMENT_LENGTH = 300_000
"""In bytes. So little goes out at once, and the server is at work on it while the next is made. A row that is longer
goes alone."""


_HARMLESS = re.compile(r"[\w.:{} -]*", re.ASCII)
"""What ids and times are mostly made of. Nothing of it is more than itself in quotes, in any mode or character set."""


def insert_rows(conn: sa.Connection, into: Insert, rows: Sequence[Row]) -> None:
    """Insert the rows, on an engine of our own."""
    execute_in_turn(conn, inserting(into, conn.dialect, rows))


def inserting(into: Insert, dialect: sa.Dialect, rows: Sequence[Row]) -> Iterator[str]:
    """Statements that insert the rows."""
    compiled = into.compiled(dialect)
    head, found, _ = compiled.sql.partition("VALUES")
    assert found
    columns = zip(*compiled.bound_each(rows), strict=True)
    literals = map(",".join, zip(*(each_once(_literal, column) for column in columns), strict=True))
    for some in in_pieces(literals, _length_of, _STATEMENT_LENGTH):
        yield f"{head} VALUES ({'),('.join(some)})"


def said(statement: Prepared, dialect: sa.Dialect, values: Values) -> str:
    """The statement with these values in it."""
    compiled = statement.compiled(dialect)
    return compiled.sql % tuple(map(_literal, compiled.bound(values)))  # the driver, too, fills in its text like this


def _length_of(row: str) -> int:
    return len(row) if row.isascii() else 4 * len(row)  # in UTF-8, at most


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if type(value) is bytes:
        return _payload(value)
    text = str(value)  # a time, too: without a zone, as it is stored
    return f"'{text}'" if _HARMLESS.fullmatch(text) else f"_utf8mb4 0x{text.encode().hex()}"


def _payload(value: bytes) -> str:
    """In quotes, which is half as long as digits. JSON in UTF-8 has no NUL.

    Backslashes escape, in the mode that every connection of ours is set to. In the other, two of them would be stored
    for one; in neither can a value end its literal.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    if "\0" in text:
        return f"0x{value.hex()}"
    return "_binary'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
