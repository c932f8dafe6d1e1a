"""v5: the ledger of human answers, for replay on resume."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "v5"
down_revision = "v4"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1005
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ID = sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), *_MYSQL)
_TIME = (
    sa.DateTime()
    .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
)


def upgrade() -> None:
    context = op.get_context()
    if context.as_sql or not sa.inspect(op.get_bind()).has_table("cubepi_hitl_answers"):
        belongs = (
            []
            if context.dialect.name in _MYSQL
            else [
                sa.ForeignKeyConstraint(
                    ["thread_id"],
                    ["cubepi_threads.thread_id"],
                    name="fk_cubepi_hitl_answers_thread",
                    ondelete="CASCADE",
                )
            ]
        )
        op.create_table(
            "cubepi_hitl_answers",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("run_id", _ID, primary_key=True),
            sa.Column("question_id", _ID, primary_key=True),
            sa.Column("answer", _TEXT, nullable=False),
            sa.Column("answered_at", _TIME, nullable=False),
            *belongs,
        )
    _write_version()


def downgrade() -> None:
    op.drop_table("cubepi_hitl_answers")
    _write_version(1004)


def _write_version(version: int = SCHEMA_VERSION) -> None:
    row = sa.table(
        "cubepi_schema_version",
        sa.column("version", sa.Integer),
        sa.column("oldest_library", sa.String),
    )
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))
