"""Database URLs: which backend each one means."""

import pytest

from threadkeep import (
    MemoryCheckpointer,
    MySQLCheckpointer,
    PostgresCheckpointer,
    SQLiteCheckpointer,
    open_checkpointer,
)
from threadkeep.urls import _SCHEMES, Backend, split_url, sqlite_path

SCHEMES = {
    "memory": (Backend.MEMORY, MemoryCheckpointer),
    "sqlite": (Backend.SQLITE, SQLiteCheckpointer),
    "sqlite+aiosqlite": (Backend.SQLITE, SQLiteCheckpointer),
    "postgresql": (Backend.POSTGRESQL, PostgresCheckpointer),
    "postgres": (Backend.POSTGRESQL, PostgresCheckpointer),
    "postgresql+asyncpg": (Backend.POSTGRESQL, PostgresCheckpointer),
    "mysql": (Backend.MYSQL, MySQLCheckpointer),
    "mysql+asyncmy": (Backend.MYSQL, MySQLCheckpointer),
    "mariadb": (Backend.MYSQL, MySQLCheckpointer),
    "mariadb+asyncmy": (Backend.MYSQL, MySQLCheckpointer),
}


def test_every_scheme_is_tried_here() -> None:
    assert set(SCHEMES) == set(_SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_means_a_backend_and_its_class(scheme: str) -> None:
    backend, kind = SCHEMES[scheme]
    rest = "user:p%40ss@host:1/database?option=x" if kind in (PostgresCheckpointer, MySQLCheckpointer) else ""
    assert split_url(f"{scheme}://{rest}") == (backend, rest)
    assert type(open_checkpointer(f"{scheme}://{rest}")) is kind


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hidden",
        "user:hidden@host/database",
        "postgresql:user:hidden@host/database",
        "postgresql:/user:hidden@host/database",
        "user:hidden@host://database",
        "post gresql://hidden",
        "://hidden",
    ],
)
def test_what_is_no_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match="not a database URL") as caught:
        split_url(url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["oracle", "http", "postgresql+psycopg2", "mysql+pymysql", "SQLITE", "redis+x.y-z"])
def test_another_scheme_is_named_and_nothing_more_of_the_url(scheme: str) -> None:
    with pytest.raises(ValueError, match="not among the URLs") as caught:
        split_url(f"{scheme}://user:hidden@host/database")
    assert f"{scheme}://" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "path"),
    [
        ("/relative.db", "relative.db"),
        ("/folder/relative.db", "folder/relative.db"),
        ("//absolute/file.db", "/absolute/file.db"),
        ("/file.db?mode=ro", "file.db"),
        ("/:memory:", ":memory:"),
        ("/", ":memory:"),
        ("", ":memory:"),
    ],
)
def test_the_path_in_a_sqlite_url(rest: str, path: str) -> None:
    assert sqlite_path(rest) == path


@pytest.mark.parametrize("rest", ["file.db", "host/file.db", "user:hidden@host/file.db", ":memory:"])
def test_a_sqlite_url_with_a_host_is_refused(rest: str) -> None:
    with pytest.raises(ValueError, match="no host") as caught:
        sqlite_path(rest)
    assert "hidden" not in str(caught.value)
