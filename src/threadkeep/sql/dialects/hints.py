"""What a server's planner must be told. Others do not hear of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def along_key(statement: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
    """The statement, reading this table along its primary key, which is where its rows are.

    MySQL prefers an index that begins with the same column, and then fetches the rows one by one.
    """
    return statement.with_hint(table, "FORCE INDEX (PRIMARY)", "mysql")
