"""v4: runs, the pending table, counters on the threads row, and a format on every message.

Each step looks first whether it is done, or may be done twice, because MySQL commits every DDL statement and an
interrupted upgrade is run again from its start.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "v4"
down_revision = "v3"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1004
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
_MIRROR = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_PAYLOAD = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)


def upgrade() -> None:
    if _dialect() == "sqlite":
        _create_threads_and_messages()
    else:
        _convert_threads()
        _convert_messages()
    _create_runs()
    _create_pending()
    if _dialect() != "sqlite":
        _move_pending()
    _write_version()


def downgrade() -> None:
    raise NotImplementedError("v4 keeps what v3 cannot hold: runs, their order and JSON payloads")


# ---- SQLite: the tables are new -----------------------------------------------------------------------


def _create_threads_and_messages() -> None:
    if not _has_table("cubepi_threads"):
        op.create_table(
            "cubepi_threads",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("parent_thread_id", _ID),
            sa.Column("forked_at_seq", sa.BigInteger),
            sa.Column("extra", _TEXT, nullable=False),
            sa.Column("last_seq", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("last_completion_seq", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("created_at", _TIME, nullable=False),
            sa.Column("updated_at", _TIME, nullable=False),
        )
    _index_threads()
    if not _has_table("cubepi_messages"):
        op.create_table(
            "cubepi_messages",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("role", sa.Text, nullable=False),
            sa.Column("run_id", _ID),
            sa.Column("format", sa.SmallInteger, nullable=False),
            sa.Column("payload", _PAYLOAD, nullable=False),
            sa.Column("metadata", _MIRROR, nullable=False),
            sa.Column("created_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_messages_thread"),
        )
    _index_messages()
    if not _has_table("cubepi_schema_version"):
        op.create_table(
            "cubepi_schema_version",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("oldest_library", sa.String(32), nullable=False),
        )


# ---- servers: the tables of v3 are converted ----------------------------------------------------------


def _convert_threads() -> None:
    _drop_parent_key()
    _change_type("extra", _TEXT, postgresql_using="extra::text")
    for column in ("created_at", "updated_at"):
        _change_type(column, _TIME)
    for column in ("last_seq", "last_completion_seq"):
        _add_column("cubepi_threads", sa.Column(column, sa.BigInteger, nullable=False, server_default="0"))
    _index_threads()
    messages = sa.table("cubepi_messages", sa.column("thread_id"), sa.column("seq"))
    threads = sa.table("cubepi_threads", sa.column("thread_id"), sa.column("last_seq"))
    last_seq = (
        sa.select(sa.func.coalesce(sa.func.max(messages.c.seq), sa.literal_column("0")))
        .where(messages.c.thread_id == threads.c.thread_id)
        .scalar_subquery()
    )
    op.execute(sa.update(threads).values(last_seq=last_seq))


def _convert_messages() -> None:
    _add_column("cubepi_messages", sa.Column("run_id", _ID))
    # The rows that are there are msgpack, format 0. Without the default, old workers can add no more of them.
    _add_column("cubepi_messages", sa.Column("format", sa.SmallInteger, nullable=False, server_default="0"))
    op.alter_column(
        "cubepi_messages",
        "format",
        server_default=None,
        existing_type=sa.SmallInteger(),
        existing_nullable=False,
    )
    op.alter_column("cubepi_messages", "created_at", type_=_TIME, existing_nullable=False, server_default=None)
    _index_messages()


def _drop_parent_key() -> None:
    if op.get_context().as_sql:
        name = "cubepi_threads_ibfk_1" if _dialect() in _MYSQL else "cubepi_threads_parent_thread_id_fkey"
        op.drop_constraint(name, "cubepi_threads", type_="foreignkey")
        return
    for key in sa.inspect(op.get_bind()).get_foreign_keys("cubepi_threads"):
        op.drop_constraint(str(key["name"]), "cubepi_threads", type_="foreignkey")


def _change_type(column: str, new_type: sa.types.TypeEngine[Any], **options: Any) -> None:
    op.alter_column("cubepi_threads", column, server_default=None, existing_nullable=False, type_=new_type, **options)


# ---- all: new tables ----------------------------------------------------------------------------------


def _index_threads() -> None:
    _add_index("ix_cubepi_threads_parent", "cubepi_threads", "parent_thread_id", "created_at", "thread_id")
    _add_index("ix_cubepi_threads_created", "cubepi_threads", "created_at", "thread_id")


def _index_messages() -> None:
    _add_index("ix_cubepi_messages_thread_run", "cubepi_messages", "thread_id", "run_id")


def _create_runs() -> None:
    if not _has_table("cubepi_runs"):
        op.create_table(
            "cubepi_runs",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("run_id", _ID, primary_key=True),
            sa.Column("claimed_at", _TIME, nullable=False),
            sa.Column("completed_at", _TIME),
            sa.Column("completion_seq", sa.BigInteger),
            *_of_thread("fk_cubepi_runs_thread"),
        )
    _add_index("ix_cubepi_runs_thread_seq", "cubepi_runs", "thread_id", "completion_seq")


def _create_pending() -> None:
    if _has_table("cubepi_pending"):
        return
    op.create_table(
        "cubepi_pending",
        sa.Column("thread_id", _ID, primary_key=True),
        sa.Column("question_id", _ID),
        sa.Column("request", _TEXT, nullable=False),
        sa.Column("run_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
        *_of_thread("fk_cubepi_pending_thread"),
    )


def _move_pending() -> None:
    """From two columns of the threads row into a table of its own."""
    if _has_column("cubepi_threads", "pending_request"):
        old = sa.table(
            "cubepi_threads",
            sa.column("thread_id"),
            sa.column("pending_request", sa.JSON().with_variant(postgresql.JSONB(), "postgresql")),
            sa.column("run_id"),
            sa.column("updated_at"),
        )
        columns = ["thread_id", "question_id", "request", "run_id", "created_at"]
        new = sa.table("cubepi_pending", *map(sa.column, columns))
        request = sa.cast(old.c.pending_request, sa.Text)
        waiting = sa.select(
            old.c.thread_id,
            old.c.pending_request["question_id"].as_string(),
            request,
            old.c.run_id,
            old.c.updated_at,
        ).where(
            old.c.pending_request.is_not(sa.null()),
            request != sa.literal("null", sa.String),  # JSON's own null
            # MySQL commits these rows when the next statement, the DROP, begins: it may be killed right then.
            old.c.thread_id.not_in(sa.select(new.c.thread_id)),
        )
        op.execute(sa.insert(new).from_select(columns, waiting))
        op.drop_column("cubepi_threads", "pending_request")
    if _has_column("cubepi_threads", "run_id"):
        op.drop_column("cubepi_threads", "run_id")


def _write_version() -> None:
    if _dialect() != "sqlite":
        _add_column(
            "cubepi_schema_version",
            sa.Column("oldest_library", sa.String(32), nullable=False, server_default=""),
        )
        op.alter_column(
            "cubepi_schema_version",
            "oldest_library",
            server_default=None,
            existing_type=sa.String(32),
            existing_nullable=False,
        )
    row = sa.table(
        "cubepi_schema_version",
        sa.column("version", sa.Integer),
        sa.column("oldest_library", sa.String),
    )
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=SCHEMA_VERSION, oldest_library=OLDEST_LIBRARY))


# ---- steps that look first ----------------------------------------------------------------------------


def _add_column(table: str, column: sa.Column[Any]) -> None:
    if not _has_column(table, column.name):
        op.add_column(table, column)


def _add_index(index: str, table: str, *columns: str) -> None:
    if not _has_index(table, index):
        op.create_index(index, table, list(columns))


# ---- what is there ------------------------------------------------------------------------------------


def _of_thread(name: str) -> list[sa.ForeignKeyConstraint]:
    if _dialect() in _MYSQL:
        return []
    return [sa.ForeignKeyConstraint(["thread_id"], ["cubepi_threads.thread_id"], name=name, ondelete="CASCADE")]


def _dialect() -> str:
    return op.get_context().dialect.name


def _has_table(name: str) -> bool:
    return not op.get_context().as_sql and sa.inspect(op.get_bind()).has_table(name)


def _has_column(table: str, column: str) -> bool:
    if op.get_context().as_sql:
        # A script starts from v3 as it is.
        return column in ("pending_request", "run_id") and table == "cubepi_threads"
    return column in {found["name"] for found in sa.inspect(op.get_bind()).get_columns(table)}


def _has_index(table: str, index: str) -> bool:
    if op.get_context().as_sql:
        return False
    return index in {found["name"] for found in sa.inspect(op.get_bind()).get_indexes(table)}
