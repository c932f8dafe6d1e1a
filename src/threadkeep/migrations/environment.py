"""What `alembic` does with our revisions: the one place where an Alembic context is configured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from logging.config import fileConfig
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic import command, context
from sqlalchemy.exc import DBAPIError

from threadkeep.errors import CheckpointerError
from threadkeep.sql.dialects import hooks_of
from threadkeep.sql.tables import metadata
from threadkeep.urls import Backend, split_url

if TYPE_CHECKING:
    from threadkeep.migrations.upgrading import Progress

VERSION_TABLE = "cubepi_alembic_version"
"""Our own, so that a host's Alembic history in the same database is left alone."""

LEFT_BY_CUBEPI = {"v3_created_at", "ix_cubepi_messages_metadata_gin"}
"""What an adopted messages table has beside ours: removing it would rewrite the table, or slow a host's own queries."""

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

            with _progress_bar() as context.config.attributes["progress"]:
                asyncio.run(on_connection(url, _migrate))


def include_name(name: str | None, kind: str, parents: Any) -> bool:
    """For autogenerate: whether this part of the database is ours to compare, not the host's and not cubepi's."""
    if kind == "table":
        return name in metadata.tables
    return name not in LEFT_BY_CUBEPI


def include_object(item: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """For autogenerate: whether a thing of the model exists on this server at all."""
    only_on = getattr(item, "info", {}).get("only_on")
    return reflected or only_on is None or context.get_context().dialect.name in only_on


def hosts_own(name: str | None, kind: str, parents: Any) -> bool:
    """For a host's autogenerate, as its `include_name`: False for our tables, which it would propose to drop."""
    return kind != "table" or not (name or "").startswith("cubepi_")


def _configure(**target: Any) -> None:
    context.configure(
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=include_name,
        include_object=include_object,
        compare_type=True,
        # For the revisions, which find them among the context's options.
        rename_ids=_rename_ids(),
        is_checked=context.config.attributes.get("is_checked", False),
        script_for_v3=_script_for_v3(),
        progress=context.config.attributes.get("progress"),
        **target,
    )


def _migrate(connection: sa.Connection) -> None:
    hooks = hooks_of(connection.dialect)
    with hooks.migrating(connection):
        if _is_upgrade():
            from threadkeep.migrations.upgrading import preflight

            preflight(connection, context.script, rename_ids=_rename_ids())
            context.config.attributes["is_checked"] = True
        _configure(connection=connection, on_version_apply=lambda **_: hooks.end_revision(connection))
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


def _is_upgrade() -> bool:
    called: Any = getattr(context.config.cmd_opts, "cmd", None)  # as the program `alembic` was called
    return bool(called) and called[0] is command.upgrade


def _rename_ids() -> bool:
    given = context.get_x_argument(as_dictionary=True).get("rename_ids", "no")
    return bool(context.config.attributes.get("rename_ids")) or given in ("yes", "true", "1")


def _script_for_v3() -> bool:
    """Whether a script is for a database that cubepi 0.7.0 made: nobody can look what is there."""
    given = context.get_x_argument(as_dictionary=True).get("cubepi", "none")
    if given not in ("none", "3"):
        raise ValueError(
            f"-x cubepi={given}: a script can take over schema 3 alone; for others, run the upgrade itself"
        )
    return given == "3"


def _url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get(URL_VARIABLE)
    if not url:
        raise SystemExit(
            f"which database? Set {URL_VARIABLE}, or call: alembic -x url=postgresql://user@host/database ..."
        )
    return url


def _progress_bar() -> AbstractContextManager[Progress | None]:
    try:
        from threadkeep.migrations.progress import UpgradeBar
    except ModuleNotFoundError:  # rich, which is for those who use the command line
        return nullcontext()
    return UpgradeBar()


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
