"""Statements that are compiled once, for the operations that every turn of an agent makes.

On an engine of our own they go straight to the driver: what SQLAlchemy does around a statement costs several times what
SQLite does for it. On a host's connection they are executed as any other, so that the host's listeners see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, methodcaller
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, ResourceClosedError

OWN_ENGINE: dict[str, Any] = {"threadkeep_own": True}
"""Execution options that tell an engine of ours."""

T = TypeVar("T")
Values = Mapping[str, Any]
Row = list[Any]
"""Values in the order of a statement's columns."""

_FETCHALL, _ROWCOUNT, _LASTROWID = methodcaller("fetchall"), attrgetter("rowcount"), attrgetter("lastrowid")


class Prepared:
    """A statement whose parameters have names. What it brings back is in the driver's own types."""

    def __init__(self, statement: Any, columns: Iterable[str] | None = None) -> None:
        """`columns` are those that an INSERT fills, if its statement does not say."""
        self._statement = statement
        self._columns = None if columns is None else [*columns]
        # By the dialect of one engine, which knows its server: MariaDB does not take all that MySQL does.
        self._as_said: WeakKeyDictionary[sa.Dialect, _Compiled] = WeakKeyDictionary()

    def rows(self, conn: sa.Connection, values: Values) -> Sequence[Any]:
        """What it returns or selects."""
        if not is_own(conn):
            return conn.execute(self._statement, values).all()
        found: Sequence[Any] = self._execute(conn, values, _FETCHALL)
        return found

    def row(self, conn: sa.Connection, values: Values) -> Any | None:
        """The one row of it, or None."""
        rows = self.rows(conn, values)
        return rows[0] if rows else None

    def count(self, conn: sa.Connection, values: Values) -> int:
        """How many rows it has changed."""
        if not is_own(conn):
            return conn.execute(self._statement, values).rowcount
        changed: int = self._execute(conn, values, _ROWCOUNT)
        return changed

    def lastrowid(self, conn: sa.Connection, values: Values) -> int:
        """The number that comes back with its reply, on servers that have one."""
        if not is_own(conn):
            return conn.execute(self._statement, values).lastrowid
        number: int = self._execute(conn, values, _LASTROWID)
        return number

    def _execute(self, conn: sa.Connection, values: Values, result: Callable[[Any], Any]) -> Any:
        compiled = self.compiled(conn.dialect)
        sql, parameters = compiled.sql, compiled.bound(values)

        def execute(cursor: Any) -> Any:
            cursor.execute(sql, parameters)
            return result(cursor)

        return on_cursor(conn, sql, execute)

    def compiled(self, dialect: sa.Dialect) -> _Compiled:
        """The statement in this dialect's words."""
        compiled = self._as_said.get(dialect)
        if compiled is None:
            compiled = self._as_said[dialect] = _Compiled(self._statement, self._columns, dialect)
        return compiled


class Insert(Prepared):
    """Inserts rows into a table. Their values are in the order of its columns."""

    def __init__(self, table: sa.Table) -> None:
        self.table = table
        self.columns: list[str] = table.c.keys()
        super().__init__(sa.insert(table), self.columns)

    def each(self, conn: sa.Connection, rows: Sequence[Row]) -> None:
        """Execute it for each of these rows. Their values may be changed to what the driver takes."""
        if not is_own(conn):
            conn.execute(self._statement, [dict(zip(self.columns, row, strict=True)) for row in rows])
            return
        compiled = self.compiled(conn.dialect)
        bound = compiled.bound_each(rows)
        on_cursor(conn, compiled.sql, lambda cursor: cursor.executemany(compiled.sql, bound))


def execute_texts(conn: sa.Connection, statements: Sequence[str]) -> list[Sequence[Any]]:
    """Execute statements that have no parameters in one message, on an engine of our own. What each has found."""

    def execute(cursor: Any) -> list[Sequence[Any]]:
        cursor.execute(sql)
        found: list[Sequence[Any]] = [cursor.fetchall()]
        for _ in statements[1:]:
            cursor.nextset()  # raises what its statement raised
            found.append(cursor.fetchall())
        return found

    sql = "; ".join(statements)
    return on_cursor(conn, sql, execute)


def execute_in_turn(conn: sa.Connection, statements: Iterator[str]) -> None:
    """Execute statements that have no parameters, on an engine of our own: each is made while the one before is run."""

    async def execute(driver: Any) -> None:
        async with driver.cursor() as cursor:
            statement = next(statements, None)
            while statement is not None:
                # The first of the two has sent its statement, and waits, when the second begins.
                _, statement = await asyncio.gather(cursor.execute(statement), following())

    async def following() -> str | None:
        return next(statements, None)

    connection: Any = conn.connection.dbapi_connection
    on_cursor(conn, "several statements", lambda _: connection.run_async(execute))


class Script:
    """Several statements in one message to the server, which stops at the first that fails. For engines of our own."""

    def __init__(self, *statements: Prepared) -> None:
        self._statements = statements

    def replies(self, conn: sa.Connection, values: Values) -> list[tuple[int, int]]:
        """Execute all of it. How many rows each has found, and the number that comes back with its reply."""
        compiled = [statement.compiled(conn.dialect) for statement in self._statements]
        sql = "; ".join(each.sql for each in compiled)
        parameters = [value for each in compiled for value in each.bound(values)]

        def execute(cursor: Any) -> list[tuple[int, int]]:
            cursor.execute(sql, parameters)
            replies: list[tuple[int, int]] = [(cursor.rowcount, cursor.lastrowid)]
            for _ in compiled[1:]:
                cursor.nextset()  # raises what its statement raised
                replies.append((cursor.rowcount, cursor.lastrowid))
            return replies

        return on_cursor(conn, sql, execute)


class _Compiled:
    """A statement as one dialect says it."""

    def __init__(self, statement: Any, columns: list[str] | None, dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=columns)
        self.sql = str(compiled)
        self._names: list[str] = compiled.positiontup
        self._columns = columns
        self._constants = {
            name: value
            for name, value in compiled.params.items()
            if value is not None and not compiled.binds[name].required
        }
        self._processes: list[tuple[str, Callable[[Any], Any]]] = [
            (name, process)
            for name, parameter in compiled.binds.items()
            if (process := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        ]

    def bound(self, values: Values) -> list[Any]:
        """The values as the driver takes them, and in its order."""
        row = {**self._constants, **values}
        for name, process in self._processes:
            row[name] = process(row[name])
        return [row[name] for name in self._names]

    def bound_each(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The same for several rows, whose values are in its order already. They are changed in place."""
        assert self._names == self._columns
        for name, process in self._processes:
            place = self._names.index(name)
            for row, value in zip(rows, each_once(process, (row[place] for row in rows)), strict=True):
                row[place] = value
        return rows


def each_once(process: Callable[[Any], T], values: Iterable[Any]) -> Iterator[T]:
    """What becomes of each value. One that is the same object in row after row, as their time is, is processed once."""
    before: Any = _NOTHING
    for value in values:
        if value is not before:
            before, after = value, process(value)
        yield after


_NOTHING = object()


def is_own(conn: sa.Connection) -> bool:
    """Whether this connection is of an engine of ours."""
    return "threadkeep_own" in conn.get_execution_options()


def on_cursor(conn: sa.Connection, sql: str, work: Callable[[Any], T]) -> T:
    """Work with a cursor of the driver, on an engine of our own. Its errors are SQLAlchemy's, as everywhere."""
    if conn.connection.dbapi_connection is None:
        # A cancellation came while SQLAlchemy threw the connection away.
        raise ResourceClosedError("the connection is gone")
    cursor: Any = conn.connection.cursor()
    dbapi: Any = conn.dialect.dbapi
    try:
        result = work(cursor)
        cursor.close()
    except dbapi.Error as error:
        is_lost = conn.dialect.is_disconnect(error, conn.connection.dbapi_connection, cursor)
        if is_lost:
            # It fails once more, before SQLAlchemy's eyes: now no other old connection of the pool is trusted either.
            with suppress(DBAPIError):
                conn.exec_driver_sql("SELECT 1")
            conn.invalidate(error)
        raise DBAPIError(sql, None, error, hide_parameters=True, connection_invalidated=is_lost) from error
    return result
