"""The model: one MetaData for every server. The tables keep cubepi's names, because v3 databases are adopted in place.

Every key starts with thread_id and every statement names it, so a thread lives in one shard or partition.
"""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep.sql.column_types import id_type, json_mirror, json_text, payload_type, role_type, utc_time

metadata = sa.MetaData()

SCHEMA_VERSION = 1005
"""Numbers of ours start at 1004: no cubepi release takes such a number for its own."""


FK_DIALECTS = ("postgresql", "sqlite")


def _of_thread(name: str) -> sa.ForeignKeyConstraint:
    """A row goes with its thread. MySQL has no such key: its adopted tables are partitioned and cannot."""
    return sa.ForeignKeyConstraint(
        ["thread_id"],
        ["cubepi_threads.thread_id"],
        name=name,
        ondelete="CASCADE",
        info={"only_on": FK_DIALECTS},
    ).ddl_if(dialect=FK_DIALECTS)  # type: ignore[arg-type] # takes several, but is not declared so


threads = sa.Table(
    "cubepi_threads",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("parent_thread_id", id_type()),
    sa.Column("forked_at_seq", sa.BigInteger),
    sa.Column("extra", json_text(), nullable=False),
    # Counters, not MAX() + 1: one upsert creates the row, locks it and allocates.
    sa.Column("last_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_completion_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("created_at", utc_time(), nullable=False),
    sa.Column("updated_at", utc_time(), nullable=False),
    sa.Index("ix_cubepi_threads_created", "created_at", "thread_id"),
    sa.Index("ix_cubepi_threads_parent", "parent_thread_id", "created_at", "thread_id"),
)

messages = sa.Table(
    "cubepi_messages",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("role", role_type(), nullable=False),
    sa.Column("run_id", id_type()),
    # No default: a cubepi worker that outlived the upgrade must fail here rather than write past our counters.
    sa.Column("format", sa.SmallInteger, nullable=False),
    sa.Column("payload", payload_type(), nullable=False),
    sa.Column("metadata", json_mirror(), nullable=False),
    # Null where cubepi wrote the row on MySQL: its own time stands in a column beside, which no upgrade rewrites.
    sa.Column("created_at", utc_time()),
    _of_thread("fk_cubepi_messages_thread"),
    sa.Index("ix_cubepi_messages_thread_run", "thread_id", "run_id"),
)

runs = sa.Table(
    "cubepi_runs",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("run_id", id_type(), primary_key=True),
    sa.Column("claimed_at", utc_time(), nullable=False),
    # Under a name that no cubepi release knows: one that outlived the upgrade must fail to complete a run.
    sa.Column("completion_time", utc_time(), key="completed_at"),
    sa.Column("completion_seq", sa.BigInteger),
    _of_thread("fk_cubepi_runs_thread"),
    sa.Index("ix_cubepi_runs_thread_seq", "thread_id", "completion_seq"),
)

pending = sa.Table(
    "cubepi_pending",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("question_id", id_type()),
    sa.Column("request", json_text(), nullable=False),
    sa.Column("run_id", id_type()),
    sa.Column("created_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_pending_thread"),
)

hitl_answers = sa.Table(
    "cubepi_hitl_answers",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # The run's id, or '' for none. cubepi calls it run_id, and must not clear answers after the upgrade.
    sa.Column("run_key", id_type(), primary_key=True),
    sa.Column("question_id", id_type(), primary_key=True),
    sa.Column("answer", json_text(), nullable=False),
    sa.Column("answered_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_hitl_answers_thread"),
)

schema_version = sa.Table(
    "cubepi_schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("oldest_library", sa.String(32), nullable=False),
)

OF_A_THREAD = (messages, runs, pending, hitl_answers)
"""What a deleted thread takes with it."""
