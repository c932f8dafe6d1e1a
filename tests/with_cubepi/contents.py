"""All that is in a database: every row of every table, and everything there is to see of the schema."""

from typing import Any

import sqlalchemy as sa

from migrations.databases import Place

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    # A partition's rows are its table's.
    "postgresql": (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace = current_schema()::regnamespace"
    ),
    "mysql": (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
    ),
}

ON_MYSQL = [
    "SELECT table_name, table_type, engine, table_collation, create_options FROM information_schema.tables",
    "SELECT table_name, ordinal_position, column_name, column_type, collation_name, is_nullable, column_default, extra,"
    " generation_expression FROM information_schema.columns",
    "SELECT table_name, index_name, seq_in_index, column_name, non_unique FROM information_schema.statistics",
    "SELECT table_name, partition_name, partition_method FROM information_schema.partitions",
    "SELECT table_name, view_definition FROM information_schema.views",
]
SCHEMA = {
    "sqlite": ["SELECT type, name, tbl_name, sql FROM sqlite_master", "PRAGMA user_version", "PRAGMA schema_version"],
    "postgresql": [
        "SELECT c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
        " pg_get_expr(d.adbin, d.adrelid) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        " WHERE c.relnamespace = current_schema()::regnamespace AND a.attnum > 0",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = current_schema()::regnamespace",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()",
        "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT viewname, definition FROM pg_views WHERE schemaname = current_schema()",
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace",
    ],
    "mysql": [
        *(f"{question} WHERE table_schema = DATABASE()" for question in ON_MYSQL),
        "SELECT trigger_name, event_object_table, action_statement FROM information_schema.triggers"
        " WHERE trigger_schema = DATABASE()",
        "SELECT constraint_name, table_name, constraint_type FROM information_schema.table_constraints"
        " WHERE table_schema = DATABASE()",
    ],
}


async def rows_of(place: Place) -> dict[str, list[str]]:
    """Every row of every table."""

    def rows(conn: sa.Connection) -> dict[str, list[str]]:
        quote = conn.dialect.identifier_preparer.quote
        names = [name for (name,) in conn.exec_driver_sql(_of(place, TABLES))]
        return {name: _sorted(conn.exec_driver_sql(f"SELECT * FROM {quote(name)}")) for name in sorted(names)}

    return await place.run(rows)


async def schema_of(place: Place) -> list[list[str]]:
    """Every table, column, index, key, view, trigger and function."""
    return await place.run(lambda conn: [_sorted(conn.exec_driver_sql(each)) for each in _of(place, SCHEMA)])


def _of(place: Place, statements: dict[str, Any]) -> Any:
    return statements["mysql" if place.kind == "mariadb" else place.kind]


def _sorted(rows: sa.CursorResult[Any]) -> list[str]:
    return sorted(repr(tuple(row)) for row in rows)
