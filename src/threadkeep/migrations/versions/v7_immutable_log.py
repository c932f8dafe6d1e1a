"""v7: the immutable log and the context window over it. Ids of messages, parts, usage, summaries, files, and search.

New tables, and columns that are null or have a constant default, which no server rewrites a table for. A unique index
over the messages is built; those from before have no ids and are called by their seqs.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "threadkeep_v7"
down_revision = "threadkeep_v6"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1007
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_EXACT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ID = sa.Text().with_variant(mysql.VARCHAR(255, **_EXACT), *_MYSQL)
_ROLE = sa.Text().with_variant(mysql.VARCHAR(32, charset="utf8mb4"), *_MYSQL)
_HASH = sa.Text().with_variant(mysql.CHAR(64, charset="ascii", collation="ascii_bin"), *_MYSQL)
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), *_MYSQL)
_PAYLOAD = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
_TIME = (
    sa.DateTime()
    .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
)

_OF_THREADS: dict[str, Any] = {
    "title": _TEXT,
    "metadata": _TEXT,
    "model_id": _ID,
    "provider_id": _ID,
    "agent": _ID,
    "system_prompt": _TEXT,
    "deleted_at": _TIME,
}
"""The columns that are null where nobody has said anything."""
_NEW_TABLES = (
    "cubepi_thread_labels",
    "cubepi_search_texts",
    "cubepi_parts",
    "cubepi_usage",
    "cubepi_summaries",
    "cubepi_context",
    "cubepi_files",
)


def upgrade() -> None:
    # MySQL commits each DDL statement by itself: an interrupted upgrade is run again, and looks what is there.
    steps: list[tuple[str, Any]] = [
        # Threads before messages, as every write takes them: on PostgreSQL these are locks, held to the end.
        ("adding columns to threads", _add_to_threads),
        ("adding the ids of messages", _add_to_messages),
        ("building the index on the ids of messages", _index_messages),
        ("making the tables of the log", _create_tables),
        ("writing the version", _write_version),
    ]
    for number, (name, step) in enumerate(steps):
        _report(name, number, len(steps))
        step()
    _report("", len(steps), len(steps))


def downgrade() -> None:
    if op.get_context().as_sql or any(map(_has_rows, _NEW_TABLES)) or _has_ids() or _says_more_of_a_thread():
        raise NotImplementedError(
            "v6 has no place for the message ids, parts, usage, summaries, files and fields of threads there are"
        )
    for table in _NEW_TABLES:
        op.drop_table(table)
    op.drop_index("ix_cubepi_messages_thread_message", "cubepi_messages")
    op.drop_column("cubepi_messages", "message_id")
    for column in (*_OF_THREADS, "compacted_seq"):
        op.drop_column("cubepi_threads", column)
    _write_version(1006)


# ---- columns --------------------------------------------------------------------------------------------


def _add_to_threads() -> None:
    for name, type_ in _OF_THREADS.items():
        _add_column("cubepi_threads", sa.Column(name, type_))
    _add_column("cubepi_threads", sa.Column("compacted_seq", sa.BigInteger, nullable=False, server_default="0"))


def _add_to_messages() -> None:
    _add_column("cubepi_messages", sa.Column("message_id", _ID))


def _index_messages() -> None:
    # It holds the columns by which cubepi's tables are partitioned: without them it could not be unique there.
    _add_index("ix_cubepi_messages_thread_message", "cubepi_messages", "thread_id", "message_id", unique=True)


# ---- tables ---------------------------------------------------------------------------------------------


def _create_tables() -> None:
    _create_thread_labels()
    _create_search_texts()
    _create_parts()
    _create_usage()
    _create_summaries()
    _create_context()
    _create_files()


def _create_thread_labels() -> None:
    if not _columns("cubepi_thread_labels"):
        op.create_table(
            "cubepi_thread_labels",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("label", _HASH, primary_key=True),
            *_of_thread("fk_cubepi_thread_labels_thread"),
        )
    _add_index("ix_cubepi_thread_labels_label", "cubepi_thread_labels", "label", "thread_id")


def _create_search_texts() -> None:
    if not _columns("cubepi_search_texts"):
        op.create_table(
            "cubepi_search_texts",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("folded", _TEXT, nullable=False),
            *_of_thread("fk_cubepi_search_texts_thread"),
        )


def _create_parts() -> None:
    if not _columns("cubepi_parts"):
        op.create_table(
            "cubepi_parts",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("message_id", _ID, primary_key=True),
            sa.Column("part_index", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("part_type", _ID, nullable=False),
            sa.Column("content", _TEXT, nullable=False),
            sa.Column("tool_name", _ID),
            sa.Column("tool_call_id", _ID),
            sa.Column("tool_state", _ID),
            sa.Column("started_at", _TIME),
            sa.Column("completed_at", _TIME),
            sa.Column("compacted_at", _TIME),
            sa.Column("output", _TEXT),
            sa.Column("error", _TEXT),
            sa.Column("token_estimate", sa.BigInteger, nullable=False),
            sa.Column("created_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_parts_thread"),
        )


def _create_usage() -> None:
    if not _columns("cubepi_usage"):
        op.create_table(
            "cubepi_usage",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("message_id", _ID, primary_key=True),
            sa.Column("run_id", _ID),
            sa.Column("model_id", _ID, nullable=False),
            sa.Column("provider_id", _ID, nullable=False),
            sa.Column("input_tokens", sa.BigInteger, nullable=False),
            sa.Column("output_tokens", sa.BigInteger, nullable=False),
            sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
            sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
            sa.Column("cost", sa.BigInteger, nullable=False),
            sa.Column("finish_reason", _ID, nullable=False),
            *_of_thread("fk_cubepi_usage_thread"),
        )


def _create_summaries() -> None:
    if not _columns("cubepi_summaries"):
        op.create_table(
            "cubepi_summaries",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("message_id", _ID, nullable=False),
            sa.Column("role", _ROLE, nullable=False),
            sa.Column("run_id", _ID),
            sa.Column("format", sa.SmallInteger, nullable=False),
            sa.Column("payload", _PAYLOAD, nullable=False),
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.Column("replaces", _TEXT, nullable=False),
            sa.Column("created_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_summaries_thread"),
        )
    _add_index("ix_cubepi_summaries_thread_message", "cubepi_summaries", "thread_id", "message_id", unique=True)


def _create_context() -> None:
    if not _columns("cubepi_context"):
        op.create_table(
            "cubepi_context",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("number", sa.BigInteger),
            *_of_thread("fk_cubepi_context_thread"),
        )


def _create_files() -> None:
    if not _columns("cubepi_files"):
        op.create_table(
            "cubepi_files",
            sa.Column("content_id", _ID, primary_key=True),
            sa.Column("path_key", _HASH, primary_key=True),
            sa.Column("path", _TEXT, nullable=False),
            sa.Column("media_type", _ID, nullable=False),
            sa.Column("size", sa.BigInteger),
            sa.Column("token_count", sa.BigInteger),
            sa.Column("summary", _TEXT, nullable=False),
            sa.Column("metadata", _TEXT, nullable=False),
            sa.Column("stored_at", _TIME, nullable=False),
        )
    _add_index("ix_cubepi_files_path", "cubepi_files", "path_key", "stored_at")


def _of_thread(name: str) -> list[sa.ForeignKeyConstraint]:
    if op.get_context().dialect.name in _MYSQL:
        return []
    return [sa.ForeignKeyConstraint(["thread_id"], ["cubepi_threads.thread_id"], name=name, ondelete="CASCADE")]


def _write_version(version: int = SCHEMA_VERSION) -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))


# ---- steps that look first ------------------------------------------------------------------------------


def _add_column(table: str, column: sa.Column[Any]) -> None:
    if column.name not in _columns(table):
        op.add_column(table, column)


def _add_index(index: str, table: str, *columns: str, unique: bool = False) -> None:
    if op.get_context().as_sql or index not in _indexes(table):
        op.create_index(index, table, list(columns), unique=unique)


def _report(step: str, done: int, total: int) -> None:
    """Tell whoever runs this how far it is, if they want to know."""
    progress = op.get_context().opts.get("progress")
    if progress is not None:
        progress(step, done, total, False)


# ---- what is there --------------------------------------------------------------------------------------


def _columns(table: str) -> set[str]:
    """The columns of a table; none where there is none, and in a script (`--sql`), which cannot look."""
    if op.get_context().as_sql:
        return set()
    seen = sa.inspect(op.get_bind())
    return {column["name"] for column in seen.get_columns(table)} if seen.has_table(table) else set()


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _has_rows(table: str) -> bool:
    return _finds(sa.select(sa.literal(1)).select_from(sa.table(table)))


def _has_ids() -> bool:
    messages = sa.table("cubepi_messages", sa.column("message_id"))
    return _finds(sa.select(sa.literal(1)).select_from(messages).where(messages.c.message_id.is_not(None)))


def _says_more_of_a_thread() -> bool:
    threads = sa.table("cubepi_threads", *map(sa.column, (*_OF_THREADS, "compacted_seq")))
    said = [threads.c[name].is_not(None) for name in _OF_THREADS]
    return _finds(sa.select(sa.literal(1)).select_from(threads).where(sa.or_(*said, threads.c.compacted_seq != 0)))


def _finds(rows: sa.Select[Any]) -> bool:
    return op.get_bind().execute(rows.limit(1)).first() is not None
