"""Whether an account may do what an upgrade does, on servers that could not take back the half of it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from threadkeep.sql.dialects import Failure, hooks_of

_NEEDS = {
    "SELECT": "SELECT 1 FROM cubepi_no_such_table",
    "INSERT": "INSERT INTO cubepi_no_such_table VALUES (1)",
    "UPDATE": "UPDATE cubepi_no_such_table SET a = 1",
    "DELETE": "DELETE FROM cubepi_no_such_table",
    "CREATE": "CREATE TABLE cubepi_no_such_table (a INT, a INT)",
    "ALTER": "ALTER TABLE cubepi_no_such_table ADD COLUMN a INT",
    "INDEX": "CREATE INDEX a ON cubepi_no_such_table (a)",
    "DROP": "DROP TABLE cubepi_no_such_table",
}
"""A statement for each right. None of them can do anything, and MySQL looks at the rights first."""


def missing_rights(conn: sa.Connection) -> list[str]:
    """The rights that this account would need and does not have. None where a refused upgrade is rolled back."""
    if conn.dialect.name not in ("mysql", "mariadb"):
        return []
    return [right for right, statement in _NEEDS.items() if _is_denied(conn, statement)]


def _is_denied(conn: sa.Connection, statement: str) -> bool:
    try:
        conn.exec_driver_sql(statement)
    except DBAPIError as error:
        return hooks_of(conn.dialect).classify(error) is Failure.DENIED
    return False
