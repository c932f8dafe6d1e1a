"""The schema gate: on entry, one query tells whether this library may work with this database."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from threadkeep.errors import CubepiSchemaMismatch, CubepiSchemaUninitialized
from threadkeep.sql.dialects import Failure, Hooks
from threadkeep.sql.tables import SCHEMA_VERSION, schema_version
from threadkeep.version import __version__, as_numbers

_UPGRADE = "run 'threadkeep upgrade URL' (or 'alembic upgrade head') first"
WRITTEN_BY_CUBEPI = f"cubepi wrote this database: {_UPGRADE}"


def is_ours(conn: sa.Connection) -> bool:
    """Whether the version table is ours: cubepi's of the same name has one column less."""
    seen = sa.inspect(conn)
    if not seen.has_table(schema_version.name):
        return False
    return {column["name"] for column in seen.get_columns(schema_version.name)} >= set(schema_version.c.keys())


def check_schema(conn: sa.Connection, hooks: Hooks) -> int:
    """Return the schema's version, or raise CubepiSchemaError: it says what closes the gap."""
    try:
        # Every column there is: cubepi's table of the same name has one less, and that tells them apart.
        rows = conn.execute(sa.text(f"SELECT * FROM {schema_version.name}")).mappings().all()  # noqa: S608 - our own name
    except DBAPIError as error:
        if hooks.classify(error) is Failure.MISSING_TABLE:
            raise CubepiSchemaUninitialized from None
        raise
    if not rows:
        raise CubepiSchemaUninitialized(f"{schema_version.name} is empty: {_UPGRADE}")
    row = max(rows, key=lambda row: int(row["version"]))
    actual = int(row["version"])
    if "oldest_library" not in row:
        raise CubepiSchemaMismatch(SCHEMA_VERSION, actual, WRITTEN_BY_CUBEPI)
    if actual < SCHEMA_VERSION:
        raise CubepiSchemaMismatch(SCHEMA_VERSION, actual, _UPGRADE)
    oldest = as_numbers(row["oldest_library"])
    if actual > SCHEMA_VERSION and (not oldest or oldest > as_numbers(__version__)):
        raise CubepiSchemaMismatch(
            SCHEMA_VERSION,
            actual,
            f"it is open to threadkeep {row['oldest_library']} and later, and this is {__version__}:"
            " upgrade the library, with 'pip install --upgrade threadkeep'",
        )
    return actual
