"""The three SQL classes. They open and close; what they do is in `frontdoor`, how it is done in `operations`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike, fsdecode
from typing import Any, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from threadkeep.codec import DEFAULT_MAX_VALUE_BYTES, Codec
from threadkeep.errors import CheckpointerError, CubepiSchemaError
from threadkeep.frontdoor import CheckpointerMethods
from threadkeep.heartbeats import Heartbeats
from threadkeep.messages import HitlRequest, Message
from threadkeep.migrations.upgrading import one_at_a_time, upgrade_connection
from threadkeep.searching import Searchable
from threadkeep.sql import dialects, engines
from threadkeep.sql.connections import Connections, EngineConnections, on
from threadkeep.sql.database import AtOnce, Database, HostConnection, Joined
from threadkeep.sql.gate import check_schema
from threadkeep.sql.sqlite_threads import SQLiteThreads
from threadkeep.sql.store import SQLStore
from threadkeep.sql.transactions import HostTransactions, OwnTransactions, Work

T = TypeVar("T")


class _Opened:
    """The runner of a checkpointer: its database while it is open."""

    def __init__(self) -> None:
        self._database: Database | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_open(self) -> bool:
        return self._database is not None

    def put(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()

    def get(self) -> Database:
        if self._database is None:
            raise CheckpointerError("the checkpointer is not open: use it inside 'async with'")
        if self._loop is not asyncio.get_running_loop():
            # Its connections would never answer, or worse: asyncpg takes the process down.
            raise CheckpointerError("the checkpointer was opened in another event loop: open one in each")
        return self._database

    def take(self) -> Database:
        """It is not open any more."""
        database = self.get()
        self._database = None
        return database

    async def read(self, work: Work[T]) -> T:
        return await self.get().read(work)

    async def write(self, work: Work[T], at_once: AtOnce | None = None) -> T:
        return await self.get().write(work, at_once)


class SQLCheckpointer(CheckpointerMethods):
    """What the three have in common. Make one of the three, or call `open_checkpointer`."""

    _hooks: dialects.Hooks

    def __init__(
        self,
        engine: AsyncEngine | None,
        *,
        message_type: Any,
        request_type: Any,
        max_value_bytes: int,
        lock_timeout: float,
        owner: str | None,
        searchable: Searchable,
    ) -> None:
        if lock_timeout <= 0:
            raise ValueError("lock_timeout must be positive")
        if engine is not None:
            self._require_own_dialect(engine)
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._opened = _Opened()
        codec = Codec(message_type, request_type, max_value_bytes, searchable)
        super().__init__(SQLStore(self._opened, self._hooks, max_value_bytes), codec, Heartbeats(owner))

    def _own_connections(self) -> Connections:
        raise NotImplementedError

    def _connections(self) -> Connections:
        if self._engine is None:
            return self._own_connections()
        return EngineConnections(self._engine, HostTransactions(self._hooks, self._lock_timeout), owned=False)

    async def __aenter__(self) -> Self:
        if self._opened.is_open:
            raise CheckpointerError("the checkpointer is open already")
        database = Database(self._connections())
        await database.connections.open()
        try:
            await self._check(database)
        except BaseException:
            await database.connections.close()
            raise
        self._opened.put(database)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._opened.is_open:
            return
        self._opened.get()  # before anything is closed: this may be the wrong loop
        await self._heartbeats.close()
        if self._opened.is_open:
            await self._opened.take().connections.close()

    async def _check(self, database: Database) -> None:
        await database.read(lambda conn: check_schema(conn, self._hooks))
        carried = await database.read(self._hooks.max_value_bytes)
        if carried < self._codec.max_value_bytes:
            raise CheckpointerError(
                f"values of {self._codec.max_value_bytes:,} bytes are allowed, but server and driver carry only"
                f" {carried:,}: pass a smaller max_value_bytes, or, on MySQL and MariaDB, raise the server's"
                " max_allowed_packet"
            )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[CheckpointerMethods]:
        """The same methods on one transaction: all of it happens when the block ends well, or nothing.

        Each operation is a savepoint: one that fails and is caught leaves no trace. Raises TransactionConflictError
        when the server has ended the transaction: run the whole block again.
        """
        async with self._opened.get().transaction() as joined:
            yield CheckpointerMethods(self._store_on(joined), self._codec, self._heartbeats, is_transaction=True)

    def using(self, connection: AsyncConnection) -> UsingConnection:
        """The same methods inside a transaction that the host owns and commits, with the host's own tables in it."""
        if not isinstance(connection, AsyncConnection):
            raise TypeError(f"using() takes an AsyncConnection, not a {type(connection).__name__}")
        conn = connection.sync_connection
        if conn is None:
            raise CheckpointerError("the connection is not open: await it, or use it inside 'async with'")
        self._require_own_dialect(connection)
        run = on(connection, interruptible=self._hooks.interruptible)
        joined = Joined(run, self._hooks, HostConnection.of(conn))
        return UsingConnection(self._store_on(joined), self._codec, self._heartbeats, is_transaction=True)

    def _require_own_dialect(self, host: AsyncEngine | AsyncConnection) -> None:
        if dialects.hooks_of(host.dialect) is not self._hooks:
            raise ValueError(
                f"{type(self).__name__} is not for this database: open_checkpointer picks the class by URL"
            )

    def _store_on(self, joined: Joined) -> SQLStore:
        return SQLStore(joined, self._hooks, self._codec.max_value_bytes)


class UsingConnection(CheckpointerMethods):
    """What `using()` gives: call its methods, in an `async with` or without. The host begins, commits and closes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """The host's connection stays the host's."""


class SQLiteCheckpointer(SQLCheckpointer):
    """On a SQLite file (made, and brought to the newest schema, on entry), on ":memory:", or on a host's engine."""

    _hooks = dialects.SQLITE

    def __init__(
        self,
        db_path: str | PathLike[str] | AsyncEngine,
        *,
        message_type: Any = Message,
        request_type: Any = HitlRequest,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        lock_timeout: float = 5.0,
        owner: str | None = None,
        searchable: Searchable = False,
    ) -> None:
        if not isinstance(db_path, AsyncEngine):
            _check_path(fsdecode(db_path))
        super().__init__(
            db_path if isinstance(db_path, AsyncEngine) else None,
            message_type=message_type,
            request_type=request_type,
            max_value_bytes=max_value_bytes,
            lock_timeout=lock_timeout,
            owner=owner,
            searchable=searchable,
        )
        self._path = db_path

    def _own_connections(self) -> Connections:
        assert not isinstance(self._path, AsyncEngine)
        return SQLiteThreads(self._path, OwnTransactions(self._hooks, self._lock_timeout), self._lock_timeout)

    async def _check(self, database: Database) -> None:
        try:
            await super()._check(database)
        except CubepiSchemaError:
            if self._engine is not None:
                raise
            async with one_at_a_time():
                await database.write(upgrade_connection)
            await super()._check(database)


def _check_path(path: str) -> None:
    # An empty one is a database for SQLite, too: one that nobody else sees, and that is gone when it is closed.
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is no path: give that of a file, or ':memory:'")


class _ServerCheckpointer(SQLCheckpointer):
    """On a server: with a pool of its own, or on a host's engine. The schema must be there: run the upgrade first."""

    def __init__(
        self,
        dsn: str | AsyncEngine,
        *,
        min_pool_size: int = 1,
        max_pool_size: int = 10,
        message_type: Any = Message,
        request_type: Any = HitlRequest,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        lock_timeout: float = 5.0,
        owner: str | None = None,
        searchable: Searchable = False,
    ) -> None:
        super().__init__(
            dsn if isinstance(dsn, AsyncEngine) else None,
            message_type=message_type,
            request_type=request_type,
            max_value_bytes=max_value_bytes,
            lock_timeout=lock_timeout,
            owner=owner,
            searchable=searchable,
        )
        if not isinstance(dsn, str | AsyncEngine):
            raise TypeError(f"{type(self).__name__} takes a URL or an AsyncEngine, not a {type(dsn).__name__}")
        if not 0 <= min_pool_size <= max_pool_size or max_pool_size < 1:
            raise ValueError("pool sizes must be 0 <= min_pool_size <= max_pool_size, and max_pool_size at least 1")
        self._dsn = dsn
        self._min_pool_size = min_pool_size
        self._max_pool_size = max_pool_size

    def _own_connections(self) -> Connections:
        assert isinstance(self._dsn, str)
        engine = self._make_engine(self._dsn, **engines.OPERATING, **engines.pool_of(self._max_pool_size))
        transactions = OwnTransactions(self._hooks, self._lock_timeout)
        return EngineConnections(engine, transactions, owned=True, open_first=self._min_pool_size)

    def _make_engine(self, dsn: str, **options: Any) -> AsyncEngine:
        raise NotImplementedError


class PostgresCheckpointer(_ServerCheckpointer):
    """On PostgreSQL, by asyncpg: `PostgresCheckpointer("postgresql://user:password@host/database")`."""

    _hooks = dialects.POSTGRESQL

    def _make_engine(self, dsn: str, **options: Any) -> AsyncEngine:
        return engines.postgresql_engine(dsn, **options)


class MySQLCheckpointer(_ServerCheckpointer):
    """On MySQL 8.0.13+ or MariaDB 10.6+, by asyncmy: `MySQLCheckpointer("mysql://user:password@host/database")`."""

    _hooks = dialects.MYSQL

    def _make_engine(self, dsn: str, **options: Any) -> AsyncEngine:
        return engines.mysql_engine(dsn, lock_timeout=self._lock_timeout, **options)
