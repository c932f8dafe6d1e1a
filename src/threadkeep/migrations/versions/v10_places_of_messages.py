"""v10: a message is found by its id without an index over all messages.

An id that is made ends with the seq of its message from now on. The others, those that hosts give, and all that were
made before, stand in a table of their own with their seqs. The index that every append and every fork paid for is
dropped. No message is rewritten.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "threadkeep_v10"
down_revision = "threadkeep_v9"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1010
OLDEST_LIBRARY = "0.1.0"

_MYSQL = ("mysql", "mariadb")
_ID = sa.Text().with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)
_INDEX = "ix_cubepi_messages_thread_message"
_PLACES = "cubepi_message_places"

_COLUMNS = ("thread_id", "message_id", "seq")
_messages = sa.table("cubepi_messages", *map(sa.column, _COLUMNS))
_places = sa.table(_PLACES, *map(sa.column, _COLUMNS))


def upgrade() -> None:
    # MySQL commits each DDL statement by itself: an interrupted upgrade is run again, and looks what is there.
    steps: list[tuple[str, Any]] = [
        ("making the table of places", _create_places),
        ("writing down the places of messages with ids", _fill_places),
        ("dropping the index on the ids of messages", _drop_index),
        ("writing the version", lambda: _write_version(SCHEMA_VERSION)),
    ]
    _lock()
    for number, (name, step) in enumerate(steps):
        _report(name, number, len(steps))
        step()
    _report("", len(steps), len(steps))


def downgrade() -> None:
    _lock()
    if _is_script() or _INDEX not in _indexes():
        op.create_index(_INDEX, "cubepi_messages", ["thread_id", "message_id"], unique=True)
    op.drop_table(_PLACES)
    _write_version(1009)


def _lock() -> None:
    if _dialect() == "postgresql":
        # Threads before messages, as every write takes them.
        op.execute("LOCK TABLE cubepi_threads, cubepi_messages IN ACCESS EXCLUSIVE MODE")


# ---- steps ----------------------------------------------------------------------------------------------


def _create_places() -> None:
    if _is_script() or _PLACES not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            _PLACES,
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("message_id", _ID, primary_key=True),
            sa.Column("seq", sa.BigInteger, nullable=False),
            *_of_thread(),
        )


def _of_thread() -> list[sa.ForeignKeyConstraint]:
    """As for the messages: on PostgreSQL it would be checked row by row, and MySQL has none."""
    if _dialect() != "sqlite":
        return []
    name = "fk_cubepi_message_places_thread"
    return [sa.ForeignKeyConstraint(["thread_id"], ["cubepi_threads.thread_id"], name=name, ondelete="CASCADE")]


def _fill_places() -> None:
    op.execute(sa.delete(_places))  # what an upgrade that was interrupted has left
    # All that it reads stands in the index.
    named = sa.select(*(_messages.c[name] for name in _COLUMNS)).where(_messages.c.message_id.is_not(None))
    op.execute(sa.insert(_places).from_select([*_COLUMNS], named))


def _drop_index() -> None:
    # On PostgreSQL those of the partitions go with it.
    if _is_script() or _INDEX in _indexes():
        op.drop_index(_INDEX, "cubepi_messages")


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


def _indexes() -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("cubepi_messages")}


def _is_script() -> bool:
    """Whether nobody can look what is there (`--sql`)."""
    return op.get_context().as_sql


def _dialect() -> str:
    return op.get_context().dialect.name
