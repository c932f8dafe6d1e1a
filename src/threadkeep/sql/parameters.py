"""The bound parameters of our statements, by one name each. (A column's own name is SQLAlchemy's to bind.)"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

THREAD: sa.BindParameter[str] = sa.bindparam("thread")
RUN: sa.BindParameter[str] = sa.bindparam("run")
QUESTION: sa.BindParameter[str] = sa.bindparam("question")
CUTOFF: sa.BindParameter[int] = sa.bindparam("cutoff")
CALL: sa.BindParameter[str] = sa.bindparam("call")
KEY: sa.BindParameter[str] = sa.bindparam("key")
VERSION: sa.BindParameter[int] = sa.bindparam("version_number")
MESSAGE: sa.BindParameter[str] = sa.bindparam("message")
IDS: sa.BindParameter[list[str]] = sa.bindparam("ids", expanding=True)
SEQS: sa.BindParameter[list[int]] = sa.bindparam("seqs", expanding=True)
COUNT: sa.BindParameter[int] = sa.bindparam("count")
NOW: sa.BindParameter[datetime] = sa.bindparam("now")


class Among(FunctionElement[bool]):
    """Whether a column has one of several values, given as a list. A dialect may have a way of its own to say it."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(Among)
def _in_a_list(element: Any, compiler: Any, **options: Any) -> str:
    column, values = element.clauses
    return str(compiler.process(column.in_(values), **options))
