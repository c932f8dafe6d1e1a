"""v3: what cubepi left. Nothing is changed here: this revision looks, and refuses what it does not know.

cubepi's own schemas 3, 4 and 5 are known. v4 takes any of them over, and makes the tables where there are none.
"""

import sqlalchemy as sa
from alembic import op

revision = "threadkeep_v3"
down_revision = None
branch_labels = ("threadkeep",)
depends_on = None

_THREADS = {
    "thread_id",
    "parent_thread_id",
    "forked_at_seq",
    "extra",
    "pending_request",
    "run_id",
    "created_at",
    "updated_at",
}
_MESSAGES = {"thread_id", "seq", "role", "metadata", "payload", "created_at"}
_RUNS = {"thread_id", "run_id", "claimed_at", "completed_at", "completion_seq"}
_ANSWERS = {"thread_id", "run_id", "question_id", "answer", "answered_at"}
_V3 = {"cubepi_threads": _THREADS, "cubepi_messages": _MESSAGES}
_V4 = {**_V3, "cubepi_messages": _MESSAGES | {"run_id"}, "cubepi_runs": _RUNS}
_V5 = {**_V4, "cubepi_hitl_answers": _ANSWERS}
_ON_SERVERS = {3: _V3, 4: _V4, 5: _V5}
"""By the number in cubepi_schema_version: the columns that each table must have."""

_OURS = ("cubepi_threads", "cubepi_messages", "cubepi_runs", "cubepi_pending", "cubepi_hitl_answers")

_IN_FILES = {
    "messages": ({"id", "thread_id", "message_json", "created_at"}, {"run_id"}),
    "thread_extra": ({"thread_id", "extra_json"}, {"parent_thread_id"}),
    "thread_pending_request": ({"thread_id", "request_json", "created_at"}, {"run_id"}),
}
"""cubepi's tables on SQLite, where it keeps no version: the columns of each, and those that came later."""


def upgrade() -> None:
    if not op.get_context().as_sql:
        preflight(op.get_bind())


def downgrade() -> None:
    raise NotImplementedError("there is nothing before v3")


def preflight(conn: sa.Connection, *, rename_ids: bool = False) -> dict[str, str]:
    """Raise ValueError unless there is nothing yet, or a whole schema that cubepi made. Changes and renames nothing."""
    seen = sa.inspect(conn)
    if seen.has_table("cubepi_schema_version"):
        _require_whole_schema(conn, seen)
    elif there := [name for name in _OURS if seen.has_table(name)]:
        raise ValueError(
            f"half a schema: {', '.join(there)} without cubepi_schema_version, so nothing says what they are."
            " Restore what is missing, or use another database"
        )
    elif conn.dialect.name == "sqlite":
        _require_whole_file(seen)
    return {}


def _require_whole_schema(conn: sa.Connection, seen: sa.Inspector) -> None:
    if "oldest_library" in _columns(seen, "cubepi_schema_version"):
        raise ValueError(
            "these tables are Threadkeep's, but its revisions are not recorded where this Alembic looks:"
            " run the one that made them, or tell this one where it stands, with 'alembic stamp'"
        )
    if conn.dialect.name == "sqlite":
        raise ValueError("half a schema: in a SQLite file cubepi never made a table cubepi_schema_version")
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer))
    versions = conn.execute(sa.select(row.c.version)).scalars().all()
    if len(versions) != 1 or versions[0] not in _ON_SERVERS:
        found = " and ".join(map(str, versions)) or "nothing"
        older = ": first upgrade it by cubepi's own revisions" if max(versions, default=9) < min(_ON_SERVERS) else ""
        raise ValueError(f"cubepi_schema_version says {found}, and what can be taken over is one of 3, 4 and 5{older}")
    if conn.dialect.name == "postgresql":
        _require_one_schema(conn)
    for table, needed in _ON_SERVERS[versions[0]].items():
        if not seen.has_table(table):
            raise ValueError(f"half a schema: cubepi_schema_version says {versions[0]}, but there is no {table}")
        if missing := needed - _columns(seen, table):
            raise ValueError(f"half a schema: {table} has no column {', '.join(sorted(missing))}")


def _require_one_schema(conn: sa.Connection) -> None:
    """New tables are made in the first schema of the search path. cubepi's must be there too."""
    its = (
        "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE pg_class.oid = to_regclass('cubepi_threads')"
    )
    here, there = conn.execute(sa.text(f"SELECT current_schema()::text, ({its})::text")).one()
    if here != there:
        raise ValueError(
            f"cubepi's tables are in the schema {there}, and new ones would be made in {here}:"
            f" connect with search_path={there}"
        )


def _require_whole_file(seen: sa.Inspector) -> None:
    there = {name: _columns(seen, name) for name in _IN_FILES if seen.has_table(name)}
    if "message_json" in there.get("messages", ()):
        for name, columns in there.items():
            needed, later = _IN_FILES[name]
            if not needed <= columns <= needed | later:
                raise ValueError(
                    f"cubepi's table {name} has other columns than any release that is known here:"
                    f" {', '.join(sorted(columns))}"
                )
    elif "extra_json" in there.get("thread_extra", ()):
        raise ValueError("half a schema: thread_extra as cubepi made it, but not its table messages")


def _columns(seen: sa.Inspector, table: str) -> set[str]:
    return {column["name"] for column in seen.get_columns(table)}
