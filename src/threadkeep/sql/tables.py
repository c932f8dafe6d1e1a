"""The model: one MetaData for every server. The tables keep cubepi's names, because v3 databases are adopted in place.

Every key starts with thread_id and every statement names it, so a thread lives in one shard or partition.
"""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep.sql.column_types import (
    id_type,
    json_mirror,
    json_text,
    payload_type,
    role_type,
    short_hash,
    short_name,
    utc_time,
)

metadata = sa.MetaData()

SCHEMA_VERSION = 1010
"""Numbers of ours start at 1004: no cubepi release takes such a number for its own."""


FK_DIALECTS = ("postgresql", "sqlite")


def _of_thread(name: str, *, dialects: tuple[str, ...] = FK_DIALECTS) -> sa.ForeignKeyConstraint:
    """A row goes with its thread. MySQL has no such key: its adopted tables are partitioned and cannot."""
    return sa.ForeignKeyConstraint(
        ["thread_id"],
        ["cubepi_threads.thread_id"],
        name=name,
        ondelete="CASCADE",
        info={"only_on": dialects},
    ).ddl_if(dialect=dialects)  # type: ignore[arg-type] # takes several, but is not declared so


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
    sa.Column("status", short_name(), nullable=False, server_default="active"),
    sa.Column("last_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_token", sa.BigInteger, nullable=False, server_default="0"),
    # Null where nobody has said anything: no server rewrites a table for such a column.
    sa.Column("title", json_text()),
    sa.Column("metadata", json_text()),
    sa.Column("model_id", id_type()),
    sa.Column("provider_id", id_type()),
    sa.Column("agent", id_type()),
    sa.Column("system_prompt", json_text()),
    sa.Column("deleted_at", utc_time()),
    # How far the log has been compacted: what comes after it is in the context window by itself.
    sa.Column("compacted_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("ix_cubepi_threads_status", "status", "created_at", "thread_id"),
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
    # Null in rows from before messages had ids: such a message is called by its seq.
    sa.Column("message_id", id_type()),
    # PostgreSQL would check it row by row, a third of its work in a fork, and could find nothing: see the decisions.
    _of_thread("fk_cubepi_messages_thread", dialects=("sqlite",)),
)

message_places = sa.Table(
    "cubepi_message_places",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # One that does not end with the seq of its message: the host gave it, or a fork has moved its message.
    sa.Column("message_id", id_type(), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    # As that of the messages.
    _of_thread("fk_cubepi_message_places_thread", dialects=("sqlite",)),
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

tool_calls = sa.Table(
    "cubepi_tool_calls",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("call_id", id_type(), primary_key=True),
    sa.Column("tool_name", id_type(), nullable=False),
    sa.Column("args", json_text(), nullable=False),
    sa.Column("idempotency_key", id_type(), nullable=False),
    sa.Column("run_id", id_type()),
    sa.Column("status", short_name(), nullable=False),
    sa.Column("result", json_text()),
    sa.Column("error", json_text()),
    sa.Column("owner", id_type(), nullable=False),
    sa.Column("process", id_type(), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("issued_at", utc_time(), nullable=False),
    # By the database's clock. An issued call whose time is over has an unknown outcome.
    sa.Column("expires_at", utc_time(), nullable=False),
    sa.Column("ended_at", utc_time()),
    _of_thread("fk_cubepi_tool_calls_thread"),
    sa.Index("ix_cubepi_tool_calls_thread_key", "thread_id", "idempotency_key"),
    sa.Index("ix_cubepi_tool_calls_thread_status", "thread_id", "status"),
    # For the one question that names no thread: has this global key been completed anywhere?
    sa.Index("ix_cubepi_tool_calls_key", "idempotency_key"),
)

checkpoints = sa.Table(
    "cubepi_checkpoints",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    # How far the transcript went. The messages themselves are where they are, and stay.
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("plan", json_text(), nullable=False),
    sa.Column("budget_spent_usd", json_text(), nullable=False),
    sa.Column("state", json_text(), nullable=False),
    sa.Column("created_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_checkpoints_thread"),
)

leases = sa.Table(
    "cubepi_leases",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("run_id", id_type(), primary_key=True),
    # Of two leases on a thread, the later has the greater token.
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("owner", id_type(), nullable=False),
    sa.Column("is_exclusive", sa.Boolean, nullable=False),
    sa.Column("expires_at", utc_time(), nullable=False),  # by the database's clock
    _of_thread("fk_cubepi_leases_thread"),
)

thread_labels = sa.Table(
    "cubepi_thread_labels",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # A hash of one key and its value in the thread's metadata: fixed in length, and equal only for equal JSON.
    sa.Column("label", short_hash(), primary_key=True),
    # The thread's own, which never changes: an index has the order of a listing only if it has the time.
    sa.Column("created_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_thread_labels_thread"),
    # For a question that names no thread: which ones have this in their metadata, the newest first?
    sa.Index("ix_cubepi_thread_labels_created", "label", "created_at", "thread_id"),
)

search_texts = sa.Table(
    "cubepi_search_texts",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # Of the message; 0 for the thread's title.
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("folded", json_text(), nullable=False),
    _of_thread("fk_cubepi_search_texts_thread"),
)

parts = sa.Table(
    "cubepi_parts",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # Of a message that may not be there yet.
    sa.Column("message_id", id_type(), primary_key=True),
    sa.Column("part_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("part_type", id_type(), nullable=False),
    sa.Column("content", json_text(), nullable=False),
    sa.Column("tool_name", id_type()),
    sa.Column("tool_call_id", id_type()),
    sa.Column("tool_state", id_type()),
    sa.Column("started_at", utc_time()),
    sa.Column("completed_at", utc_time()),
    sa.Column("compacted_at", utc_time()),
    sa.Column("output", json_text()),
    sa.Column("error", json_text()),
    sa.Column("token_estimate", sa.BigInteger, nullable=False),
    sa.Column("created_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_parts_thread"),
)

usage = sa.Table(
    "cubepi_usage",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    sa.Column("message_id", id_type(), primary_key=True),
    sa.Column("run_id", id_type()),
    sa.Column("model_id", id_type(), nullable=False),
    sa.Column("provider_id", id_type(), nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
    # In billionths of a dollar: sums of whole numbers are exact, on every server.
    sa.Column("cost", sa.BigInteger, nullable=False),
    sa.Column("finish_reason", id_type(), nullable=False),
    _of_thread("fk_cubepi_usage_thread"),
)

summaries = sa.Table(
    "cubepi_summaries",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # 1, 2, 3, …; greater than those of the summaries that it stands for.
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", id_type(), nullable=False),
    sa.Column("role", role_type(), nullable=False),
    sa.Column("run_id", id_type()),
    sa.Column("format", sa.SmallInteger, nullable=False),
    sa.Column("payload", payload_type(), nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    # What it stands for: see `windows.Replaced`.
    sa.Column("replaces", json_text(), nullable=False),
    sa.Column("created_at", utc_time(), nullable=False),
    _of_thread("fk_cubepi_summaries_thread"),
    sa.Index("ix_cubepi_summaries_thread_message", "thread_id", "message_id", unique=True),
)

context = sa.Table(
    "cubepi_context",
    metadata,
    sa.Column("thread_id", id_type(), primary_key=True),
    # The seq of the message; of a summary, that of the first message it stands for.
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    # Of the summary that stands here; null for a message that stayed.
    sa.Column("number", sa.BigInteger),
    _of_thread("fk_cubepi_context_thread"),
)

files = sa.Table(
    "cubepi_files",
    metadata,
    # The one table that belongs to no thread: the same file is met in many.
    sa.Column("content_id", id_type(), primary_key=True),
    # A hash of the path, which may be longer than a key can be.
    sa.Column("path_key", short_hash(), primary_key=True),
    sa.Column("path", json_text(), nullable=False),
    sa.Column("media_type", id_type(), nullable=False),
    sa.Column("size", sa.BigInteger),
    sa.Column("token_count", sa.BigInteger),
    sa.Column("summary", json_text(), nullable=False),
    sa.Column("metadata", json_text(), nullable=False),
    sa.Column("stored_at", utc_time(), nullable=False),
    sa.Index("ix_cubepi_files_path", "path_key", "stored_at"),
)

schema_version = sa.Table(
    "cubepi_schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("oldest_library", sa.String(32), nullable=False),
)

OF_A_THREAD = (
    messages,
    message_places,
    runs,
    pending,
    hitl_answers,
    tool_calls,
    checkpoints,
    leases,
    thread_labels,
    search_texts,
    parts,
    usage,
    summaries,
    context,
)
"""What a deleted thread takes with it."""
