"""What `alembic` does with our revisions: the one place where an Alembic context is configured."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import sqlalchemy as sa
from alembic import context

from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.tables import metadata

VERSION_TABLE = "cubepi_alembic_version"
"""Our own, so that a host's Alembic history in the same database is left alone."""

URL_VARIABLE = "THREADKEEP_URL"


def run() -> None:
    """Run the command Alembic was called with: on a given connection, on a URL, or as a script."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _migrate(connection)
    elif context.is_offline_mode():
        _configure(url=_url(), literal_binds=True, dialect_opts={"paramstyle": "named"})
        with context.begin_transaction():
            context.run_migrations()
    else:
        from threadkeep.migrations.upgrading import on_connection

        asyncio.run(on_connection(_url(), _migrate))


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


def _url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get(URL_VARIABLE)
    if not url:
        raise SystemExit(
            f"which database? Set {URL_VARIABLE}, or call: alembic -x url=postgresql://user@host/database ..."
        )
    return url
