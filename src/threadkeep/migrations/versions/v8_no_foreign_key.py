"""v8: on PostgreSQL the messages have no foreign key to their threads any more.

It was checked row by row, at every append and every fork, and protected nothing: a write locks the thread's row first,
and a delete removes the messages itself. MySQL never had it. On SQLite it stays: it costs next to nothing there, and to
drop it would rewrite the table.

Nothing is rewritten and no row is read. Going back builds the key again, for which the server looks at every message.
"""

import sqlalchemy as sa
from alembic import op

revision = "threadkeep_v8"
down_revision = "threadkeep_v7"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1008
OLDEST_LIBRARY = "0.1.0"

_KEY = "fk_cubepi_messages_thread"
_KEY_OF_CUBEPI = "cubepi_messages_thread_id_fkey"
"""As PostgreSQL itself has named it, where cubepi's table was taken over. A script (`--sql`) cannot look."""


def upgrade() -> None:
    if _is_postgresql():
        _drop_key()
    _write_version(SCHEMA_VERSION)


def downgrade() -> None:
    if _is_postgresql():
        _lock()
        op.create_foreign_key(
            _KEY, "cubepi_messages", "cubepi_threads", ["thread_id"], ["thread_id"], ondelete="CASCADE"
        )
    _write_version(1007)


def _drop_key() -> None:
    if op.get_context().as_sql:
        _lock()
        for name in (_KEY, _KEY_OF_CUBEPI):
            op.execute(f"ALTER TABLE cubepi_messages DROP CONSTRAINT IF EXISTS {name}")
    elif names := _names():
        _lock()
        for name in names:
            op.drop_constraint(name, "cubepi_messages", type_="foreignkey")


def _names() -> list[str]:
    """What the key is called, if it is there. A host may have made cubepi's tables itself, and named it."""
    return [
        str(key["name"])
        for key in sa.inspect(op.get_bind()).get_foreign_keys("cubepi_messages")
        if key["constrained_columns"] == ["thread_id"] and key["referred_table"] == "cubepi_threads"
    ]


def _lock() -> None:
    # Threads before messages, as every write takes them. The change of a key alone takes them the other way round.
    op.execute("LOCK TABLE cubepi_threads, cubepi_messages IN ACCESS EXCLUSIVE MODE")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _write_version(version: int) -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=version, oldest_library=OLDEST_LIBRARY))
