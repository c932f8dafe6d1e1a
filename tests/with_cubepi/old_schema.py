"""The release's tables, made as its documentation tells a host: its models, its helpers, then its version row.

SQLite is not here: there each release makes and changes its tables when it opens the file.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from with_cubepi.old_library import HOMES, NAME, Sql, module

DIALECTS: dict[str, Any] = {"postgres": postgresql.dialect, "mysql": mysql.dialect}
PARTITIONED = ("cubepi_messages", "cubepi_runs")


async def make_schema(kind: str, url: str, *, partitioned: bool) -> None:
    """Bring the server to this release's schema: from nothing, or from that of an older release."""
    home = HOMES[kind]
    helpers = module(f"checkpointer.{home}.alembic_helpers")
    models = module(f"checkpointer.{home}.models")
    async with Sql(kind, url) as sql:
        if "cubepi_schema_version" in await sql.tables():
            ((version,),) = await sql.rows("SELECT version FROM cubepi_schema_version")
            for number in range(version, models.EXPECTED_SCHEMA_VERSION):
                await sql.run(getattr(helpers, f"upgrade_v{number}_to_v{number + 1}_op")())
        else:
            for table in getattr(models, f"{NAME}_metadata").sorted_tables:
                for statement in _creating(table, home, helpers, partitioned=partitioned):
                    await sql.run(statement)
        await sql.run(helpers.write_schema_version_op())


def _creating(table: sa.Table, home: str, helpers: Any, *, partitioned: bool) -> list[str]:
    dialect = DIALECTS[home]()
    create = str(CreateTable(table).compile(dialect=dialect))
    indexes = [str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes]
    if table.name not in PARTITIONED:
        return [create, *indexes]
    noun = table.name.removeprefix("cubepi_")
    if home == "mysql":
        clause = getattr(helpers, f"{noun}_partition_clause")()
        return [f"{create} {clause}" if partitioned else create, *indexes]
    if partitioned:
        name = {"messages": "create_message_partitions_op", "runs": "create_runs_partitions_op"}[noun]
        return [create, *indexes, getattr(helpers, name)()]
    return [create.replace("PARTITION BY HASH (thread_id)", ""), *indexes]
