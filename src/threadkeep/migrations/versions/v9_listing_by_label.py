"""v9: labels know when their thread was made, so that a listing by metadata is a walk along an index.

Without the time, all threads with a label were gathered before the newest of them were taken. The rows of the labels
are written once for it; on SQLite they move into a new table, which is all or nothing there. And the index on messages
by thread and run is dropped: no statement needs it, and every append paid for it.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "threadkeep_v9"
down_revision = "threadkeep_v8"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1009
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_EXACT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ID = sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)
_HASH = sa.Text().with_variant(mysql.CHAR(64, charset="ascii", collation="ascii_bin"), *_MYSQL)
_TIME = (
    sa.DateTime()
    .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
)
_NO_TIME = "1970-01-01 00:00:00"

_RUN_INDEX = "ix_cubepi_messages_thread_run"
_OLD_INDEX = "ix_cubepi_thread_labels_label"
_NEW_INDEX = "ix_cubepi_thread_labels_created"

_threads = sa.table("cubepi_threads", *map(sa.column, ("thread_id", "created_at")))
_labels = sa.table("cubepi_thread_labels", *map(sa.column, ("thread_id", "label", "created_at")))
_old_labels = sa.table("cubepi_old_thread_labels", *map(sa.column, ("thread_id", "label", "created_at")))


def upgrade() -> None:
    # MySQL commits each DDL statement by itself: an interrupted upgrade is run again, and looks what is there.
    steps: list[tuple[str, Any]] = [
        ("dropping the index on messages by run", _drop_run_index),
        ("giving labels the times of their threads", _rebuild_labels if _dialect() == "sqlite" else _add_times),
        ("building the index on labels", _index_labels),
        ("writing the version", lambda: _write_version(SCHEMA_VERSION)),
    ]
    _lock()
    for number, (name, step) in enumerate(steps):
        _report(name, number, len(steps))
        step()
    _report("", len(steps), len(steps))


def downgrade() -> None:
    _lock()
    _add_index(_RUN_INDEX, "cubepi_messages", "thread_id", "run_id")
    _add_index(_OLD_INDEX, "cubepi_thread_labels", "label", "thread_id")
    _drop_index(_NEW_INDEX, "cubepi_thread_labels")
    op.drop_column("cubepi_thread_labels", "created_at")
    _write_version(1008)


def _lock() -> None:
    if _dialect() == "postgresql":
        # Threads before messages before labels, as every write takes them.
        tables = "cubepi_threads, cubepi_messages, cubepi_thread_labels"
        op.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")


# ---- steps ----------------------------------------------------------------------------------------------


def _drop_run_index() -> None:
    # cubepi's own has the same name. On PostgreSQL those of the partitions go with it.
    _drop_index(_RUN_INDEX, "cubepi_messages")


def _add_times() -> None:
    """In the table as it is: a new one would not have the rights that were granted on this."""
    if _is_script() or "created_at" not in _columns("cubepi_thread_labels"):
        # With a default for a moment: no server rewrites a table for that.
        column = sa.Column("created_at", _TIME, nullable=False, server_default=_NO_TIME)
        op.add_column("cubepi_thread_labels", column)
    op.alter_column(
        "cubepi_thread_labels", "created_at", server_default=None, existing_type=_TIME, existing_nullable=False
    )
    its_thread = _threads.c.thread_id == _labels.c.thread_id
    # MySQL has no foreign key: who deletes threads past the library leaves their labels behind.
    op.execute(sa.delete(_labels).where(~sa.exists().where(its_thread)))
    made_at = sa.select(_threads.c.created_at).where(its_thread).scalar_subquery()
    op.execute(sa.update(_labels).values(created_at=made_at))


def _rebuild_labels() -> None:
    """SQLite adds no column that must have a value and has no default."""
    if not _is_script() and "created_at" in _columns("cubepi_thread_labels"):
        return
    # Out and in again, not renamed: SQLite would rename it in a host's views, too.
    op.execute(
        "CREATE TABLE cubepi_old_thread_labels AS SELECT labels.thread_id, labels.label, threads.created_at"
        " FROM cubepi_thread_labels AS labels JOIN cubepi_threads AS threads ON threads.thread_id = labels.thread_id"
    )
    op.drop_table("cubepi_thread_labels")
    op.create_table(
        "cubepi_thread_labels",
        sa.Column("thread_id", _ID, primary_key=True),
        sa.Column("label", _HASH, primary_key=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["cubepi_threads.thread_id"], name="fk_cubepi_thread_labels_thread", ondelete="CASCADE"
        ),
    )
    op.execute(sa.insert(_labels).from_select([column.name for column in _labels.c], sa.select(_old_labels)))
    op.drop_table("cubepi_old_thread_labels")


def _index_labels() -> None:
    _add_index(_NEW_INDEX, "cubepi_thread_labels", "label", "created_at", "thread_id")
    if _dialect() != "sqlite":  # where it went with the table
        _drop_index(_OLD_INDEX, "cubepi_thread_labels")


def _write_version(version: int) -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))


def _report(step: str, done: int, total: int) -> None:
    """Tell whoever runs this how far it is, if they want to know."""
    progress = op.get_context().opts.get("progress")
    if progress is not None:
        progress(step, done, total, False)


# ---- what is there --------------------------------------------------------------------------------------


def _add_index(index: str, table: str, *columns: str) -> None:
    if _is_script() or index not in _indexes(table):
        op.create_index(index, table, list(columns))


def _drop_index(index: str, table: str) -> None:
    if _is_script() or index in _indexes(table):
        op.drop_index(index, table)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _is_script() -> bool:
    """Whether nobody can look what is there (`--sql`)."""
    return op.get_context().as_sql


def _dialect() -> str:
    return op.get_context().dialect.name
