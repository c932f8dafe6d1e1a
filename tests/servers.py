"""Where the tests get real servers from, and fresh databases on them.

For each kind of server the first of these that is there:

1. the URL in `THREADKEEP_TEST_POSTGRESQL_URL`, `…_MYSQL_URL` or `…_MARIADB_URL`;
2. a container, if a Docker engine answers;
3. the server's own programs on this machine, started in a temporary folder;
4. nothing: the test is skipped and says why, or fails if `THREADKEEP_REQUIRE` names the kind.

A server is looked for when a test first asks for it, once per process, and stopped by `stop()`.
"""

import asyncio
import gc
import glob
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Row, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

import threadkeep
from threadkeep.sql.tables import metadata, schema_version

SERVERS: tuple[str, ...] = ("postgresql", "mysql", "mariadb")

# Where packages put server programs that they leave off the PATH; the newest version is taken.
PROGRAM_FOLDERS: tuple[str, ...] = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/*/bin",
    "/usr/local/mysql/bin",
    "/usr/local/sbin",
    "/usr/sbin",
)

T = TypeVar("T")

# What stop() undoes, last thing first.
_running = ExitStack()


class NotAvailable(Exception):
    """This way gives no server; the text says why."""


def server_url(kind: str) -> str:
    """A URL whose user may create databases. Skips the test, or fails it, if there is no such server."""
    url, reasons = _find(kind)
    if url is not None:
        return url
    message = (
        f"no {kind} server: {'; '.join(reasons)}. "
        f"Set {_variable(kind)}, start Docker, or install the server's programs."
    )
    if kind in os.environ.get("THREADKEEP_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"{message} (THREADKEEP_REQUIRE names {kind})", pytrace=False)
    pytest.skip(message)


def stop() -> None:
    """Drop the templates and stop what was started here. A second call does nothing."""
    _running.close()


# ---- databases ----------------------------------------------------------------------------------------


@contextmanager
def fresh_database(kind: str) -> Iterator[str]:
    """The URL of a new, empty database, dropped at the end with whatever is still connected to it."""
    name = _new_name()
    _create(kind, name)
    try:
        yield _database_url(kind, name)
    finally:
        _drop(kind, name)


@contextmanager
def migrated_database(kind: str) -> Iterator[str]:
    """The URL of a database with the newest schema and nothing in it: a copy of one that was upgraded once.

    Making one takes longer than most tests, so it is emptied afterwards and used again, unless its tables changed.
    """
    name = _idle[kind].pop() if _idle[kind] else _new_copy(kind)
    yield _database_url(kind, name)
    if _emptied(kind, name):
        _idle[kind].append(name)


_idle: dict[str, list[str]] = defaultdict(list)


def _new_copy(kind: str) -> str:
    name = _new_name()
    _copy_template(kind, name)
    _running.callback(_drop, kind, name)
    return name


def _emptied(kind: str, name: str) -> bool:
    """Whether it is as good as new: nobody is connected any more, and all that a test has left is gone."""
    _disconnect_all(kind, name)
    try:
        return bool(_picture(kind, name, *_EMPTYING) == _picture_of_template(kind))
    except DBAPIError:
        return False  # a table is missing


_EMPTYING = (
    "BEGIN",
    *(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables) if table is not schema_version),
    "COMMIT",
)


def _picture(kind: str, name: str, *and_then: str) -> Any:
    """All columns there are, and which version they are of; what is to be done besides takes no connection more."""
    schema = "current_schema()" if kind == "postgresql" else "database()"
    columns = (
        f"SELECT table_name, column_name, is_nullable FROM information_schema.columns WHERE table_schema = {schema}"
    )
    version = f"SELECT * FROM {schema_version.name}"
    seen = _execute_all(kind, columns, version, *and_then, database=name)
    return [sorted(map(tuple, rows)) for rows in seen[:2]]


@cache
def _picture_of_template(kind: str) -> Any:
    return _picture(kind, _template(kind))


def _new_name() -> str:
    return f"threadkeep_{secrets.token_hex(6)}"


def _database_url(kind: str, name: str) -> str:
    url = make_url(server_url(kind))
    # Without a driver's name, as users write it; the server may have been given as postgresql+asyncpg://.
    url = url.set(drivername=url.get_backend_name(), database=name)
    return url.render_as_string(hide_password=False)


def _create(kind: str, name: str) -> None:
    if kind == "postgresql":
        # template0 is in nobody's use: a session in template1 would make this fail.
        _execute(kind, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    else:
        _execute(kind, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")


def _drop(kind: str, name: str) -> None:
    if kind == "postgresql":
        _execute(kind, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        return
    # MySQL cannot drop by force: a transaction left open by a failed test would block it for good.
    _disconnect_all(kind, name)
    _execute(kind, f"DROP DATABASE IF EXISTS {name}")


def _disconnect_all(kind: str, name: str) -> None:
    if kind == "postgresql":
        _execute(kind, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        return
    for (process,) in _execute(kind, f"SELECT id FROM {PROCESSES[kind]} WHERE db = '{name}'"):
        try:
            _execute(kind, f"KILL {process}")
        except DBAPIError as error:
            if error.orig is None or error.orig.args[0] != _NO_SUCH_PROCESS:
                raise


# Neither server has both: MySQL is about to lose the one, MariaDB never had the other. SHOW PROCESSLIST has the
# statements of all, cut off and with bytes that no driver can read as text.
PROCESSES = {"mysql": "performance_schema.processlist", "mariadb": "information_schema.processlist"}
_NO_SUCH_PROCESS = 1094  # it went by itself in the meantime


@cache
def _template(kind: str) -> str:
    name = _new_name()
    _create(kind, name)
    _running.callback(_drop, kind, name)
    in_a_thread(lambda: threadkeep.upgrade(_database_url(kind, name)))
    return name


def _copy_template(kind: str, name: str) -> None:
    template = _template(kind)
    if kind == "postgresql":
        _execute(kind, f"CREATE DATABASE {name} TEMPLATE {template}")
        return
    _create(kind, name)
    tables = [table for (table,) in _execute(kind, f"SHOW TABLES FROM {template}")]
    _execute(
        kind,
        *(f"CREATE TABLE {name}.{table} LIKE {template}.{table}" for table in tables),
        # The two that have rows after an upgrade.
        *(
            f"INSERT INTO {name}.{table} SELECT * FROM {template}.{table}"
            for table in ("cubepi_schema_version", "cubepi_alembic_version")
        ),
    )


def _execute(kind: str, *statements: str, database: str | None = None) -> list[Row[Any]]:
    """Run the statements on a connection of the server's own user; the rows of the last one."""
    return _execute_all(kind, *statements, database=database)[-1]


def _execute_all(kind: str, *statements: str, database: str | None = None) -> list[list[Row[Any]]]:
    """The same; the rows of each."""
    engine = _engine(server_url(kind) if database is None else _database_url(kind, database))

    async def execute() -> list[list[Row[Any]]]:
        rows: list[list[Row[Any]]] = []
        async with engine.connect() as connection:
            for statement in statements:
                result = await connection.exec_driver_sql(statement)
                rows.append(list(result) if result.returns_rows else [])
        return rows

    return in_a_thread(execute)


@cache
def _engine(url: str) -> AsyncEngine:
    parsed = make_url(url)
    driver = "postgresql+asyncpg" if parsed.get_backend_name() == "postgresql" else "mysql+asyncmy"
    # Without a pool nothing is left open, and it does not matter that every call has a loop of its own.
    return create_async_engine(parsed.set(drivername=driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")


def in_a_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a loop in another thread: the caller may be a test that runs on a loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


# ---- finding a server ---------------------------------------------------------------------------------


@cache
def _find(kind: str) -> tuple[str | None, list[str]]:
    """The server's URL, or the reasons why there is none: a second test does not try it all again."""
    # A URL that does not answer is an error, never a reason to look elsewhere: somebody meant this server.
    if url := os.environ.get(_variable(kind)):
        return url, []
    reasons = [f"{_variable(kind)} is not set"]
    for start in (_start_container, _start_programs):
        try:
            return start(kind), reasons
        except NotAvailable as reason:
            reasons.append(str(reason))
    return None, reasons


def _variable(kind: str) -> str:
    return f"THREADKEEP_TEST_{kind.upper()}_URL"


def _wait_until_it_answers(url: str, is_alive: Callable[[], bool] = lambda: True) -> None:
    async def ask() -> None:
        async with _engine(url).connect():
            pass

    deadline = time.monotonic() + 90
    while True:
        try:
            return in_a_thread(ask)
        except Exception as error:  # refused, reset, "starting up": each driver has errors of its own for it
            if not is_alive() or time.monotonic() > deadline:
                raise NotAvailable(f"it did not answer: {error}") from error
        time.sleep(0.1)


# ---- Docker -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    name: str
    port: int
    url: str
    environment: dict[str, str]


IMAGES = {
    "postgresql": Image(
        "postgres:17",
        5432,
        "postgresql://postgres@{address}/postgres",
        {"POSTGRES_HOST_AUTH_METHOD": "trust"},
    ),
    "mysql": Image(
        "mysql:8.4",
        3306,
        # With a password: MySQL 8 logs such users in by another way, which needs `cryptography`.
        "mysql://root:test@{address}/mysql",
        {"MYSQL_ROOT_PASSWORD": "test"},
    ),
    "mariadb": Image(
        "mariadb:11",
        3306,
        "mysql://root:test@{address}/mysql",
        {"MARIADB_ROOT_PASSWORD": "test"},
    ),
}


def _start_container(kind: str) -> str:
    if (silence := _why_docker_is_silent()) is not None:
        raise NotAvailable(f"no Docker engine answers ({silence})")
    from testcontainers.core.container import DockerContainer

    image = IMAGES[kind]
    container = DockerContainer(image.name).with_envs(**image.environment).with_exposed_ports(image.port)
    with ExitStack() as undo:
        undo.callback(container.stop)
        try:
            container.start()
            address = f"{container.get_container_host_ip()}:{container.get_exposed_port(image.port)}"
        except Exception as error:  # whatever Docker, its network or the image registry had to object
            raise NotAvailable(f"Docker did not start {image.name} ({error})") from error
        url = image.url.format(address=address)
        _wait_until_it_answers(url)
        _running.push(undo.pop_all())
    return url


@cache
def _why_docker_is_silent() -> str | None:
    with warnings.catch_warnings():
        # Docker's client forgets to close the socket that nobody answered on.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            # Imported here, as it takes a quarter of a second that few runs need.
            from testcontainers.core.docker_client import DockerClient

            docker = DockerClient(timeout=3).client
            docker.ping()
            docker.close()
            return None
        except Exception as error:  # not installed, no socket, no rights, no answer: all mean the same here
            return str(error)
        finally:
            gc.collect()


# ---- programs on this machine -------------------------------------------------------------------------


@dataclass(frozen=True)
class Programs:
    initialise: list[str]
    serve: list[str]
    url: str
    stop_signal: signal.Signals = signal.SIGTERM


def _start_programs(kind: str) -> str:
    with ExitStack() as undo:
        home = Path(tempfile.mkdtemp(prefix=f"threadkeep-{kind}-"))
        undo.callback(shutil.rmtree, home)
        port = _free_port()
        programs = {"postgresql": _postgresql, "mysql": _mysql, "mariadb": _mariadb}[kind](home, port)
        user = _servers_user(home)
        log = undo.enter_context((home / "log").open("w+b"))
        if subprocess.run(programs.initialise, cwd=home, stdout=log, stderr=log, **user).returncode != 0:
            raise NotAvailable(f"{programs.initialise[0]} failed: {_end_of(home / 'log')}")
        # In a process group of its own, so that Ctrl-C ends the tests first and the server after them.
        server = subprocess.Popen(programs.serve, cwd=home, stdout=log, stderr=log, process_group=0, **user)
        undo.callback(_end, server, programs.stop_signal)
        try:
            _wait_until_it_answers(programs.url, is_alive=lambda: server.poll() is None)
        except NotAvailable as error:
            raise NotAvailable(f"{programs.serve[0]}: {error}: {_end_of(home / 'log')}") from error
        _running.push(undo.pop_all())
    return programs.url


def _postgresql(home: Path, port: int) -> Programs:
    # The PATH may hold a link to initdb alone; the server lies beside the program itself.
    initdb = _program("initdb").resolve()
    return Programs(
        initialise=[
            str(initdb),
            f"--pgdata={home}/data",
            "--username=postgres",
            "--auth=trust",
            # Named, because LANG=C would give databases in SQL_ASCII.
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ],
        serve=[
            str(initdb.with_name("postgres")),
            f"-D{home}/data",
            "--listen_addresses=127.0.0.1",
            f"--port={port}",
            # TCP alone: the socket's usual folder is another user's.
            "--unix_socket_directories=",
            # Nothing here has to outlive a power cut.
            "--fsync=off",
        ],
        url=f"postgresql://postgres@127.0.0.1:{port}/postgres",
        # "Fast": on SIGTERM it would wait for its last client.
        stop_signal=signal.SIGINT,
    )


def _mysql(home: Path, port: int) -> Programs:
    mysqld = str(_program("mysqld"))
    version = subprocess.run([mysqld, "--version"], capture_output=True, text=True).stdout
    if "MariaDB" in version:
        raise NotAvailable(f"{mysqld} is MariaDB's")
    return Programs(
        initialise=[mysqld, "--no-defaults", f"--datadir={home}/data", "--initialize-insecure"],
        serve=[
            mysqld,
            *_mysql_options(home, port),
            # Otherwise it would also take port 33060, and want a folder that only its package makes.
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
        ],
        url=f"mysql://root@127.0.0.1:{port}/mysql",
    )


def _mariadb(home: Path, port: int) -> Programs:
    return Programs(
        initialise=[
            str(_program("mariadb-install-db")),
            "--no-defaults",
            f"--datadir={home}/data",
            "--skip-test-db",
            # Without it root could only come in through the socket, and only as the system's root.
            "--auth-root-authentication-method=normal",
        ],
        serve=[str(_program("mariadbd")), *_mysql_options(home, port)],
        url=f"mysql://root@127.0.0.1:{port}/mysql",
    )


def _mysql_options(home: Path, port: int) -> list[str]:
    return [
        "--no-defaults",
        f"--datadir={home}/data",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--socket={home}/socket",
        f"--pid-file={home}/pid",
        # Nothing here has to outlive a power cut.
        "--innodb-flush-log-at-trx-commit=0",
    ]


def _program(name: str) -> Path:
    if found := shutil.which(name):
        return Path(found)
    versions = [path for folder in PROGRAM_FOLDERS for path in glob.glob(f"{folder}/{name}")]
    if not versions:
        raise NotAvailable(f"{name} is not on this machine")
    return Path(max(versions, key=lambda path: [int(number) for number in re.findall(r"\d+", path)]))


def _servers_user(home: Path) -> dict[str, Any]:
    """How to run a server as somebody else than root, which these servers refuse; home becomes theirs."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(server: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    server.send_signal(stop_signal)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _end_of(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:])
