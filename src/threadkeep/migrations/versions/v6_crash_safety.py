"""v6: what a crash must not lose. The ledger of tool calls, versioned checkpoints, leases, and the status of a thread.

New tables, and three columns of the threads with constant defaults, which no server rewrites a table for. One index
over the threads is built.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "threadkeep_v6"
down_revision = "threadkeep_v5"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1006
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_EXACT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ID = sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)
_NAME = sa.Text().with_variant(mysql.VARCHAR(32, **_EXACT), *_MYSQL)
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), *_MYSQL)
_TIME = (
    sa.DateTime()
    .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
)

_NEW_TABLES = ("cubepi_tool_calls", "cubepi_checkpoints", "cubepi_leases")


def upgrade() -> None:
    # MySQL commits each DDL statement by itself: an interrupted upgrade is run again, and looks what is there.
    _add_column("status", _NAME, "active")
    _add_column("last_version", sa.BigInteger(), "0")
    _add_column("last_token", sa.BigInteger(), "0")
    _add_index("ix_cubepi_threads_status", "cubepi_threads", "status", "created_at", "thread_id")
    _create_tool_calls()
    _create_checkpoints()
    _create_leases()
    _write_version(SCHEMA_VERSION)


def downgrade() -> None:
    if op.get_context().as_sql or any(map(_has_rows, _NEW_TABLES)) or _has_another_status():
        raise NotImplementedError("v5 has no place for the tool calls, checkpoints, leases and statuses there are")
    for table in _NEW_TABLES:
        op.drop_table(table)
    op.drop_index("ix_cubepi_threads_status", "cubepi_threads")
    for column in ("status", "last_version", "last_token"):
        op.drop_column("cubepi_threads", column)
    _write_version(1005)


def _create_tool_calls() -> None:
    if not _columns("cubepi_tool_calls"):
        op.create_table(
            "cubepi_tool_calls",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("call_id", _ID, primary_key=True),
            sa.Column("tool_name", _ID, nullable=False),
            sa.Column("args", _TEXT, nullable=False),
            sa.Column("idempotency_key", _ID, nullable=False),
            sa.Column("run_id", _ID),
            sa.Column("status", _NAME, nullable=False),
            sa.Column("result", _TEXT),
            sa.Column("error", _TEXT),
            sa.Column("owner", _ID, nullable=False),
            sa.Column("process", _ID, nullable=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("issued_at", _TIME, nullable=False),
            sa.Column("expires_at", _TIME, nullable=False),
            sa.Column("ended_at", _TIME),
            *_of_thread("fk_cubepi_tool_calls_thread"),
        )
    _add_index("ix_cubepi_tool_calls_thread_key", "cubepi_tool_calls", "thread_id", "idempotency_key")
    _add_index("ix_cubepi_tool_calls_thread_status", "cubepi_tool_calls", "thread_id", "status")
    _add_index("ix_cubepi_tool_calls_key", "cubepi_tool_calls", "idempotency_key")


def _create_checkpoints() -> None:
    if not _columns("cubepi_checkpoints"):
        op.create_table(
            "cubepi_checkpoints",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("seq", sa.BigInteger, nullable=False),
            sa.Column("plan", _TEXT, nullable=False),
            sa.Column("budget_spent_usd", _TEXT, nullable=False),
            sa.Column("state", _TEXT, nullable=False),
            sa.Column("created_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_checkpoints_thread"),
        )


def _create_leases() -> None:
    if not _columns("cubepi_leases"):
        op.create_table(
            "cubepi_leases",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("run_id", _ID, primary_key=True),
            sa.Column("token", sa.BigInteger, nullable=False),
            sa.Column("owner", _ID, nullable=False),
            sa.Column("is_exclusive", sa.Boolean, nullable=False),
            sa.Column("expires_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_leases_thread"),
        )


def _of_thread(name: str) -> list[sa.ForeignKeyConstraint]:
    if op.get_context().dialect.name in _MYSQL:
        return []
    return [sa.ForeignKeyConstraint(["thread_id"], ["cubepi_threads.thread_id"], name=name, ondelete="CASCADE")]


def _add_column(name: str, type_: Any, default: str) -> None:
    if name not in _columns("cubepi_threads"):
        op.add_column("cubepi_threads", sa.Column(name, type_, nullable=False, server_default=default))


def _add_index(index: str, table: str, *columns: str) -> None:
    if op.get_context().as_sql or index not in _indexes(table):
        op.create_index(index, table, list(columns))


def _columns(table: str) -> set[str]:
    """The columns of a table; none where there is none, and in a script (`--sql`), which cannot look."""
    if op.get_context().as_sql:
        return set()
    seen = sa.inspect(op.get_bind())
    return {column["name"] for column in seen.get_columns(table)} if seen.has_table(table) else set()


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _has_rows(table: str) -> bool:
    return op.get_bind().execute(sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)).first() is not None


def _has_another_status() -> bool:
    threads = sa.table("cubepi_threads", sa.column("status"))
    other = sa.select(sa.literal(1)).select_from(threads).where(threads.c.status != "active").limit(1)
    return op.get_bind().execute(other).first() is not None


def _write_version(version: int) -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))
