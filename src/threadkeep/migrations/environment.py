"""What `alembic` does with our revisions: the one place where an Alembic context is configured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from logging.config import fileConfig
from typing import Any

import sqlalchemy as sa
from alembic import context
from sqlalchemy.exc import DBAPIError

from threadkeep.errors import CheckpointerError
from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.tables import metadata
from threadkeep.urls import Backend, split_url

VERSION_TABLE = "cubepi_alembic_version"
"""Our own, so that a host's Alembic history in the same database is left alone."""

URL_VARIABLE = "THREADKEEP_URL"


def run() -> None:
    """Run the command Alembic was called with: on a given connection, on a URL, or as a script."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _migrate(connection)
        return
    if context.config.config_file_name is not None:
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    with _failing_in_one_line():
        url = _url()
        backend, _ = split_url(url)
        if context.is_offline_mode():
            _print_script(backend)
        else:
            from threadkeep.migrations.upgrading import on_connection

            asyncio.run(on_connection(url, _migrate))


def include_name(name: str | None, kind: str, parents: Any) -> bool:
    """For autogenerate: whether a table of the database is ours to compare. Anything else is the host's."""
    return kind != "table" or name in metadata.tables


def include_object(item: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """For autogenerate: whether a thing of the model exists on this server at all."""
    only_on = getattr(item, "info", {}).get("only_on")
    return reflected or only_on is None or context.get_context().dialect.name in only_on


def _configure(**target: Any) -> None:
    context.configure(
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=include_name,
        include_object=include_object,
        compare_type=True,
        **target,
    )


def _migrate(connection: sa.Connection) -> None:
    with hooks_of(connection.dialect).migrating(connection):
        _configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()


def _print_script(backend: Backend) -> None:
    _configure(
        dialect_name=backend.value,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        # Alembic would leave BEGIN and COMMIT out of a script for SQLite, whose DDL has long been transactional.
        transactional_ddl=backend is not Backend.MYSQL,
    )
    with context.begin_transaction():
        context.run_migrations()


def _url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get(URL_VARIABLE)
    if not url:
        raise SystemExit(
            f"which database? Set {URL_VARIABLE}, or call: alembic -x url=postgresql://user@host/database ..."
        )
    return url


@contextmanager
def _failing_in_one_line() -> Iterator[None]:
    """End the program with one line for what its user can mend: the URL, the server, the rights on it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SystemExit(f"the driver {error.name} is not installed: see the extras of threadkeep") from None
    except DBAPIError as error:
        raise SystemExit(f"the database refuses: {error.orig}") from None
    except (CheckpointerError, NotImplementedError, ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
