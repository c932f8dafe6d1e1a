"""v5: the ledger of human answers, for replay on resume. cubepi's own, from its schema 5, moves into it."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "threadkeep_v5"
down_revision = "threadkeep_v4"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1005
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_EXACT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ID = sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), *_MYSQL)
_TIME = (
    sa.DateTime()
    .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
)

_answers = sa.table(
    "cubepi_hitl_answers", *map(sa.column, ("thread_id", "run_key", "question_id", "answer", "answered_at"))
)


def upgrade() -> None:
    if "run_id" in _columns("cubepi_hitl_answers"):
        op.rename_table("cubepi_hitl_answers", "cubepi_old_answers")  # and cubepi finds it no more
    if not _columns("cubepi_hitl_answers"):
        _create()
    if _columns("cubepi_old_answers"):
        _move("cubepi_old_answers", "answer")
    if "answer_json" in _columns("thread_hitl_answers"):
        _move("thread_hitl_answers", "answer_json")
    if "moved" in _columns("messages") and not _columns("thread_hitl_answers"):
        # A file that was cubepi's: this name too is one at which its releases fail.
        op.execute("CREATE VIEW thread_hitl_answers AS SELECT 'Threadkeep keeps these threads now' AS moved")
    _write_version()


def downgrade() -> None:
    if op.get_context().as_sql or op.get_bind().execute(sa.select(_answers.c.thread_id).limit(1)).first():
        raise NotImplementedError("v4 has no place for the answers that are stored")
    op.drop_table("cubepi_hitl_answers")
    _write_version(1004)


def _create() -> None:
    belongs = [
        sa.ForeignKeyConstraint(
            ["thread_id"], ["cubepi_threads.thread_id"], name="fk_cubepi_hitl_answers_thread", ondelete="CASCADE"
        )
    ]
    op.create_table(
        "cubepi_hitl_answers",
        sa.Column("thread_id", _ID, primary_key=True),
        sa.Column("run_key", _ID, primary_key=True),
        sa.Column("question_id", _ID, primary_key=True),
        sa.Column("answer", _TEXT, nullable=False),
        sa.Column("answered_at", _TIME, nullable=False),
        *([] if _dialect() in _MYSQL else belongs),
    )


def _move(table: str, answer: str) -> None:
    old = sa.table(table, *map(sa.column, ("thread_id", "run_id", "question_id", answer, "answered_at")))
    text: sa.ColumnElement[Any] = old.c[answer]
    time: sa.ColumnElement[Any] = old.c.answered_at
    if _dialect() == "postgresql":
        text = sa.cast(text, sa.Text)
    elif _dialect() == "sqlite":
        time = sa.func.strftime("%Y-%m-%d %H:%M:%f", time).concat("000")
    else:
        # The only function that reads a TIMESTAMP in UTC whatever the session's zone is.
        time = sa.func.timestampadd(sa.text("SECOND"), sa.func.unix_timestamp(time), "1970-01-01 00:00:00")
    # MySQL may have kept these rows of an interrupted upgrade, and nobody can have written others.
    op.execute(sa.delete(_answers))
    columns = [column.name for column in _answers.c]
    op.execute(
        sa.insert(_answers).from_select(
            columns, sa.select(old.c.thread_id, old.c.run_id, old.c.question_id, text, time)
        )
    )
    op.drop_table(table)


def _write_version(version: int = SCHEMA_VERSION) -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))


def _dialect() -> str:
    return op.get_context().dialect.name


def _columns(table: str) -> set[str]:
    """The columns of a table or view; none where there is none. A script (`--sql`) is for databases without answers."""
    context = op.get_context()
    if context.as_sql:
        adopting = context.dialect.name == "sqlite" and context.opts.get("script_for_v3")
        return {"moved"} if adopting and table == "messages" else set()
    seen = sa.inspect(op.get_bind())
    return {column["name"] for column in seen.get_columns(table)} if seen.has_table(table) else set()
