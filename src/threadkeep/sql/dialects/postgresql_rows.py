"""Many rows at once on PostgreSQL: by its COPY, which takes half the time of any INSERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from threadkeep.sql.prepared import Prepared, Values


def copy_rows(conn: sa.Connection, insert: Prepared, rows: Sequence[Values]) -> None:
    """Do what the insert would do for each of these rows, on an engine of our own."""
    compiled = insert.compiled(conn.dialect)
    records = compiled.bound_each(rows)
    connection: Any = conn.connection.dbapi_connection
    try:
        connection.run_async(
            lambda driver: driver.copy_records_to_table(insert.table, columns=compiled.names, records=records)
        )
    except Exception as error:
        # The driver's own, past SQLAlchemy, which is to see it like any other.
        is_lost = connection.driver_connection.is_closed()
        if is_lost:
            conn.invalidate(error)
        raise DBAPIError(f"COPY {insert.table}", None, error, True, is_lost) from error
