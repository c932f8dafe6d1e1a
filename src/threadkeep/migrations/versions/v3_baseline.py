"""v3: the tables as cubepi 0.7.0 made them. SQLite had others in v3, so there the tables begin with v4.

A database in which cubepi has written conversations is refused: its payloads cannot be read yet.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "v3"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.Text().with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_TIME = sa.TIMESTAMP(timezone=True)
_ROLE = sa.Text().with_variant(mysql.VARCHAR(32, charset="utf8mb4"), "mysql", "mariadb")
_PAYLOAD = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    # Table by table: MySQL commits each, and an interrupted upgrade is run again from its start.
    dialect = op.get_context().dialect.name
    if not op.get_context().as_sql:
        _refuse_conversations_of_cubepi()
    if dialect == "sqlite":
        return
    on_mysql = dialect in ("mysql", "mariadb")
    if not _has_table("cubepi_threads"):
        op.create_table(
            "cubepi_threads",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("parent_thread_id", _ID),
            sa.Column("forked_at_seq", sa.BigInteger),
            sa.Column("extra", _JSON, nullable=False),
            sa.Column("pending_request", _JSON),
            sa.Column("run_id", sa.Text().with_variant(mysql.VARCHAR(64), "mysql", "mariadb")),
            sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
            sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
            # The name that each server gave it by itself. A script must know it, and newer servers have others.
            sa.ForeignKeyConstraint(
                ["parent_thread_id"],
                ["cubepi_threads.thread_id"],
                name="cubepi_threads_ibfk_1" if on_mysql else "cubepi_threads_parent_thread_id_fkey",
            ),
        )
    if not _has_table("cubepi_messages"):
        belongs = [] if on_mysql else [sa.ForeignKey("cubepi_threads.thread_id", ondelete="CASCADE")]
        op.create_table(
            "cubepi_messages",
            sa.Column("thread_id", _ID, *belongs, primary_key=True),
            sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("role", _ROLE, nullable=False),
            sa.Column("metadata", _JSON, nullable=False),
            sa.Column("payload", _PAYLOAD, nullable=False),
            sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
        )
    if not _has_table("cubepi_schema_version"):
        op.create_table(
            "cubepi_schema_version",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        )


def downgrade() -> None:
    raise NotImplementedError("there is nothing before v3")


def _refuse_conversations_of_cubepi() -> None:
    inspector = sa.inspect(op.get_bind())
    on_sqlite = inspector.has_table("messages") and "message_json" in {
        column["name"] for column in inspector.get_columns("messages")
    }
    any_thread: sa.Select[Any] = sa.select(sa.column("thread_id")).select_from(sa.table("cubepi_threads")).limit(1)
    on_server = inspector.has_table("cubepi_threads") and op.get_bind().execute(any_thread).first() is not None
    if on_sqlite or on_server:
        raise NotImplementedError(
            "cubepi has written conversations here, which this release cannot take over yet: nothing was changed"
        )


def _has_table(name: str) -> bool:
    return not op.get_context().as_sql and sa.inspect(op.get_bind()).has_table(name)
