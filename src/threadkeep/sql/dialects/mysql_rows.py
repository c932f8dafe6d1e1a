"""Statements with their values in them, for MySQL and MariaDB: many rows in few of them.

Their driver escapes every value character by character, which takes as long as the server takes to store it. Here a
value is a literal that few fast calls make: texts and odd bytes in hexadecimal digits, payloads in quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from threadkeep.sql.prepared import Prepared, Row, Values, execute_texts

_STATEMENT_LENGTH = 1_000_000
"""In bytes. Far below the smallest packet a server takes by default. A row that is longer goes alone."""


def insert_rows(conn: sa.Connection, insert: Prepared, rows: Sequence[Row]) -> None:
    """Insert the rows, on an engine of our own."""
    for statement in inserting(insert, conn.dialect, rows):
        execute_texts(conn, [statement])


def inserting(insert: Prepared, dialect: sa.Dialect, rows: Sequence[Row]) -> Iterator[str]:
    """Statements that insert the rows."""
    compiled = insert.compiled(dialect)
    head, found, _ = compiled.sql.partition("VALUES")
    assert found
    for some in _joined(f"({','.join(map(_literal, row))})" for row in compiled.bound_each(rows)):
        yield f"{head} VALUES {some}"


def said(statement: Prepared, dialect: sa.Dialect, values: Values) -> str:
    """The statement with these values in it."""
    compiled = statement.compiled(dialect)
    return compiled.sql % tuple(map(_literal, compiled.bound(values)))  # the driver, too, fills in its text like this


def _joined(rows: Iterable[str]) -> Iterator[str]:
    gathered: list[str] = []
    length = 0
    for row in rows:
        its_length = len(row) if row.isascii() else 4 * len(row)  # in UTF-8, at most
        if gathered and length + its_length > _STATEMENT_LENGTH:
            yield ",".join(gathered)
            gathered, length = [], 0
        gathered.append(row)
        length += its_length
    if gathered:
        yield ",".join(gathered)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if type(value) is bytes:
        return _payload(value)
    text = str(value)  # a time, too: without a zone, as it is stored
    return f"_utf8mb4 0x{text.encode().hex()}" if text else "''"


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
