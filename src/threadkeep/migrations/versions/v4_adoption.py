"""v4: runs, the pending table, counters on the threads row, and a format on every message.

Where there is nothing, the tables are made. What cubepi left (its schema 3, 4 or 5) is taken over in place: on a server
no table is rewritten and no payload touched, and a SQLite file's rows move into the new tables.

On MySQL every DDL statement is committed by itself, so an interrupted upgrade is run again from its start: each step
looks first whether it is done, or may be done twice. Old workers are kept out before anything is counted or moved.
"""

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "threadkeep_v4"
down_revision = "threadkeep_v3"
branch_labels = None
depends_on = None

SCHEMA_VERSION = 1004
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
_MIRROR = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_PAYLOAD = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
_ROLE = sa.Text().with_variant(mysql.VARCHAR(32, charset="utf8mb4"), *_MYSQL)

_MSGPACK, _JSON = 0, 1

Steps = list[tuple[str, Callable[[], None]]]


def upgrade() -> None:
    options = op.get_context().opts
    if not _as_script() and not options.get("is_checked"):
        preflight(op.get_bind(), rename_ids=bool(options.get("rename_ids")))
    steps = _steps()
    for number, (name, step) in enumerate(steps):
        _report(name, number, len(steps))
        step()
    _report("", len(steps), len(steps))


def downgrade() -> None:
    raise NotImplementedError("v4 keeps what v3 cannot hold: runs and their order, counters, and messages in JSON")


def _steps() -> Steps:
    if not _is_cubepis():
        return [("making the tables", _create), ("writing the version", _write_version)]
    return _adopt_file() if _dialect() == "sqlite" else _adopt_server()


# ---- the tables -----------------------------------------------------------------------------------------


def _create() -> None:
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
            sa.Column("role", _ROLE, nullable=False),
            sa.Column("run_id", _ID),
            sa.Column("format", sa.SmallInteger, nullable=False),
            sa.Column("payload", _PAYLOAD, nullable=False),
            sa.Column("metadata", _MIRROR, nullable=False),
            sa.Column("created_at", _TIME),
            *_of_thread("fk_cubepi_messages_thread"),
        )
    _index_messages()
    _create_runs()
    _create_pending()
    if not _has_table("cubepi_schema_version"):
        op.create_table(
            "cubepi_schema_version",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("oldest_library", sa.String(32), nullable=False),
        )


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
            sa.Column("completion_time", _TIME),
            sa.Column("completion_seq", sa.BigInteger),
            *_of_thread("fk_cubepi_runs_thread"),
        )
    _add_index("ix_cubepi_runs_thread_seq", "cubepi_runs", "thread_id", "completion_seq")


def _create_pending() -> None:
    if not _has_table("cubepi_pending"):
        op.create_table(
            "cubepi_pending",
            sa.Column("thread_id", _ID, primary_key=True),
            sa.Column("question_id", _ID),
            sa.Column("request", _TEXT, nullable=False),
            sa.Column("run_id", _ID),
            sa.Column("created_at", _TIME, nullable=False),
            *_of_thread("fk_cubepi_pending_thread"),
        )


def _of_thread(name: str) -> list[sa.ForeignKeyConstraint]:
    # None on MySQL: cubepi's messages are partitioned there, and such a table cannot have one.
    if _dialect() in _MYSQL:
        return []
    return [sa.ForeignKeyConstraint(["thread_id"], ["cubepi_threads.thread_id"], name=name, ondelete="CASCADE")]


def _write_version() -> None:
    row = sa.table("cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String))
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=SCHEMA_VERSION, oldest_library=OLDEST_LIBRARY))


# ---- what the statements name ---------------------------------------------------------------------------


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


_threads = sa.table(
    "cubepi_threads",
    *map(sa.column, ("thread_id", "parent_thread_id", "forked_at_seq", "extra", "last_seq", "last_completion_seq")),
    *map(sa.column, ("created_at", "updated_at", "run_id")),
    *map(sa.column, ("v3_extra", "v3_created_at", "v3_updated_at", "v3_run_id")),
    sa.column("pending_request", _MIRROR),
)
_messages = _table(
    "cubepi_messages", "thread_id", "seq", "role", "run_id", "format", "payload", "metadata", "created_at"
)
_runs = _table("cubepi_runs", "thread_id", "run_id", "claimed_at", "completion_time", "completion_seq")
_pending = _table("cubepi_pending", "thread_id", "question_id", "request", "run_id", "created_at")


# ---- a server of cubepi's: the tables are converted where they are -------------------------------------


def _adopt_server() -> Steps:
    return [
        ("keeping old workers out", _keep_old_workers_out),
        ("looking at the ids again", _look_again),
        ("changing the columns of threads", _convert_threads),
        ("changing the columns of messages", _convert_messages),
        ("building the index on messages", _index_messages),
        ("finding messages without a thread", _give_every_message_its_thread),
        ("moving runs", _move_runs),
        ("moving pending requests", _move_pending),
        ("counting the messages of every thread", _count),
        ("finding where forks were cut", _find_cuts),
        ("dropping what has moved", _drop_what_has_moved),
        ("building the indexes on threads", _index_threads),
        ("renaming ids", _rename_ids),
        ("writing the version", _make_it_ours),
    ]


def _keep_old_workers_out() -> None:
    """cubepi looks at the version only when it starts: from here on, whatever it still tries must fail."""
    if _dialect() == "postgresql":
        # In the order in which cubepi takes them; all changes below need the same lock.
        tables = [name for name in ("cubepi_threads", "cubepi_messages", "cubepi_runs") if _has_table(name)]
        op.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    elif _threads_are_cubepis():
        _set_aside("cubepi_threads", "run_id")  # or a question could be withdrawn that has already moved
        # Each of its other writes begins by inserting a thread with defaults, and now there is none.
        _replace_time("updated_at", *([sa.CheckConstraint(f"updated_at >= '{_NO_TIME}'")] if _is_lenient() else []))
    if _has_column("cubepi_runs", "completed_at"):
        # Ours has no column of that name, so no old worker can complete a run in it.
        op.rename_table("cubepi_runs", "cubepi_old_runs")
    if _has_index("cubepi_old_runs", "ix_cubepi_runs_thread_seq") and _dialect() == "postgresql":
        op.drop_index("ix_cubepi_runs_thread_seq", "cubepi_old_runs")  # a schema has one of each name


def _is_lenient() -> bool:
    """Whether a missing default stops nobody: without strict mode a server puts in a zero, and takes the row.

    There a check stops them. MariaDB adds one at no cost, so it always gets it; MySQL has to copy the threads for it.
    """
    if _as_script():
        return False
    modes = str(op.get_bind().exec_driver_sql("SELECT @@GLOBAL.sql_mode").scalar())
    return "STRICT" not in modes or bool(getattr(op.get_bind().dialect, "is_mariadb", False))


def _look_again() -> None:
    """An old worker may have written since the preflight. What is there now is all there will be."""
    if not _as_script():
        so_far = "Nothing" if _dialect() == "postgresql" else "Old workers are kept out now; nothing else"
        preflight(op.get_bind(), rename_ids=bool(op.get_context().opts.get("rename_ids")), so_far=so_far)


def _threads_are_cubepis() -> bool:
    """Whether the threads have columns of cubepi's. One statement drops all of them, when they have served."""
    return _has_column("cubepi_threads", "pending_request")


def _convert_threads() -> None:
    if not _threads_are_cubepis():
        return
    _drop_parent_key()
    # New columns and a drop, not a change of type, which would rewrite the table.
    _set_aside("cubepi_threads", "extra")
    default = None if _dialect() in _MYSQL else "{}"  # MySQL has none for text, and needs none
    _add_column("cubepi_threads", sa.Column("extra", _TEXT, nullable=False, server_default=default))
    _drop_default("cubepi_threads", "extra", _TEXT)
    if _dialect() in _MYSQL:
        _replace_time("created_at")
    else:
        _drop_default("cubepi_threads", "created_at", _TIME)
        _drop_default("cubepi_threads", "updated_at", _TIME)
    for column in ("last_seq", "last_completion_seq"):
        _add_column("cubepi_threads", sa.Column(column, sa.BigInteger, nullable=False, server_default="0"))


_NO_TIME = "1970-01-01 00:00:00"


def _replace_time(column: str, *constraints: sa.CheckConstraint) -> None:
    """A TIMESTAMP of seconds in the session's zone by a time of ours, which `_count` fills in."""
    _set_aside("cubepi_threads", column)
    _add_column("cubepi_threads", sa.Column(column, _TIME, *constraints, nullable=False, server_default=_NO_TIME))
    _drop_default("cubepi_threads", column, _TIME)


def _convert_messages() -> None:
    if _dialect() in _MYSQL:
        # A TIMESTAMP of seconds in the session's zone. Converting it would rewrite the table: it stays beside ours.
        _set_aside("cubepi_messages", "created_at")
        _add_column("cubepi_messages", sa.Column("created_at", _TIME))
        _make_run_ids_exact()
    else:
        op.alter_column("cubepi_messages", "created_at", nullable=True, server_default=None)
    _add_column("cubepi_messages", sa.Column("run_id", _ID))
    # The rows that are there are msgpack. Without the default, old workers can add no more of them.
    _add_column("cubepi_messages", sa.Column("format", sa.SmallInteger, nullable=False, server_default=str(_MSGPACK)))
    _drop_default("cubepi_messages", "format", sa.SmallInteger())
    _drop_default("cubepi_messages", "metadata", _MIRROR)


def _make_run_ids_exact() -> None:
    """cubepi's v4 compared them by the database's collation: `Run-A` was `run-a`."""
    if not _has_column("cubepi_messages", "run_id") or _as_script():
        return
    columns = sa.inspect(op.get_bind()).get_columns("cubepi_messages")
    run_id: Any = next(column["type"] for column in columns if column["name"] == "run_id")
    if run_id.collation != _EXACT["collation"]:
        # Without its index, the column changes in place.
        _spell_runs_alike()
        if _has_index("cubepi_messages", "ix_cubepi_messages_thread_run"):
            op.drop_index("ix_cubepi_messages_thread_run", "cubepi_messages")
        op.alter_column("cubepi_messages", "run_id", type_=_ID, existing_nullable=True)


def _spell_runs_alike() -> None:
    """Messages that were of `run-a` although they say `Run-A` are of it still."""
    op.execute(
        "UPDATE cubepi_messages AS messages JOIN cubepi_old_runs AS runs"
        " ON runs.thread_id = messages.thread_id AND runs.run_id = messages.run_id"
        " SET messages.run_id = runs.run_id WHERE CAST(messages.run_id AS BINARY) <> CAST(runs.run_id AS BINARY)"
    )


def _drop_parent_key() -> None:
    """It kept a thread that had forks from being deleted. Its name is the server's or the host's choice."""
    if _as_script():
        _drop_parent_key_by_script()
        return
    seen = sa.inspect(op.get_bind())
    for key in seen.get_foreign_keys("cubepi_threads"):
        op.drop_constraint(str(key["name"]), "cubepi_threads", type_="foreignkey")
    if _dialect() in _MYSQL:
        for index in sa.inspect(op.get_bind()).get_indexes("cubepi_threads"):  # made for the key, by the server
            if index["column_names"] == ["parent_thread_id"]:
                op.drop_index(str(index["name"]), "cubepi_threads")


def _drop_parent_key_by_script() -> None:
    if _dialect() == "postgresql":
        op.drop_constraint("cubepi_threads_parent_thread_id_fkey", "cubepi_threads", type_="foreignkey")
        return
    # MySQL runs a statement that another one made. The key and the index that the server made for it share their name.
    op.execute(
        "SET @threadkeep_step = COALESCE((SELECT CONCAT('ALTER TABLE cubepi_threads DROP FOREIGN KEY `',"
        " CONSTRAINT_NAME, '`, DROP INDEX `', CONSTRAINT_NAME, '`') FROM information_schema.REFERENTIAL_CONSTRAINTS"
        " WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME = 'cubepi_threads'), 'DO 0')"
    )
    for statement in ("PREPARE step FROM @threadkeep_step", "EXECUTE step", "DEALLOCATE PREPARE step"):
        op.execute(statement)


_BY_THREAD = "FORCE INDEX (ix_cubepi_messages_thread_run)"
"""For MySQL, whose primary key is the table itself, payloads and all: the small index that was just built."""


def _give_every_message_its_thread() -> None:
    """On MySQL no foreign key kept a message from losing its thread. cubepi loads it all the same."""
    if _dialect() not in _MYSQL or _as_script() or not _threads_are_cubepis():
        return
    known = sa.select(_threads.c.thread_id).where(_threads.c.thread_id == _messages.c.thread_id)
    orphans = sa.select(_messages.c.thread_id).distinct().where(~sa.exists(known)).with_hint(_messages, _BY_THREAD)
    times = dict.fromkeys(("created_at", "updated_at"), sa.func.utc_timestamp())
    for thread_id in op.get_bind().execute(orphans).scalars().all():
        op.execute(sa.insert(_threads).values(thread_id=thread_id, v3_extra="{}", extra="{}", **times))


def _move_runs() -> None:
    _create_runs()
    if not _has_table("cubepi_old_runs"):
        return
    old = _table("cubepi_old_runs", "thread_id", "run_id", "claimed_at", "completed_at", "completion_seq")
    rows = sa.select(
        old.c.thread_id, old.c.run_id, _utc(old.c.claimed_at), _utc(old.c.completed_at), old.c.completion_seq
    )
    _refill(_runs, rows)
    op.drop_table("cubepi_old_runs")


def _move_pending() -> None:
    """From two columns of the threads row into a table of its own."""
    _create_pending()
    if not _threads_are_cubepis():
        return
    request = _threads.c.pending_request
    question_id = request["question_id"].as_string()
    if _dialect() in _MYSQL:
        as_text: sa.ColumnElement[Any] = sa.type_coerce(request, sa.Text)
        is_null = sa.func.json_type(as_text) == "NULL"
        question_id = sa.func.left(question_id, 255)  # a longer one is renamed, and the request has it whole
        waiting_since: sa.ColumnElement[Any] = _utc(_threads.c.v3_updated_at)
    else:
        as_text = sa.cast(request, sa.Text)
        is_null = as_text == sa.literal("null", sa.String)
        waiting_since = _threads.c.updated_at
    run_id = _threads.c.v3_run_id if _dialect() in _MYSQL else _threads.c.run_id
    waiting = sa.select(_threads.c.thread_id, question_id, as_text, run_id, waiting_since)
    _refill(_pending, waiting.where(request.is_not(sa.null()), ~is_null))


def _refill(table: sa.TableClause, rows: sa.Select[Any]) -> None:
    """Fill the table anew: nobody can open this database yet, so whatever is in it came from an interrupted upgrade."""
    op.execute(sa.delete(table))
    op.execute(sa.insert(table).from_select([column.name for column in table.c], rows))


_THREADS_AT_ONCE = 1_000


def _count() -> None:
    """The work per thread: its counters, its extra as text, its times in UTC."""
    if not _threads_are_cubepis():
        return
    last_seq = _last(_messages.c.seq)
    last_completion_seq = _last(_runs.c.completion_seq).where(_runs.c.completion_seq.is_not(None))
    values: dict[str, Any] = {
        "last_seq": sa.func.coalesce(last_seq.scalar_subquery(), sa.literal_column("0")),
        "last_completion_seq": sa.func.coalesce(last_completion_seq.scalar_subquery(), sa.literal_column("0")),
        "extra": sa.cast(_threads.c.v3_extra, sa.Text),
    }
    if _dialect() in _MYSQL:
        values["extra"] = _threads.c.v3_extra
        values["created_at"] = _utc(_threads.c.v3_created_at)
        values["updated_at"] = _utc(_threads.c.v3_updated_at)
        values["v3_updated_at"] = _threads.c.v3_updated_at  # or MySQL would set it to now
    counted = sa.update(_threads).values(values)
    for range_ in _ranges(_threads.c.thread_id, _THREADS_AT_ONCE):
        op.execute(counted.where(range_))


def _last(seq: sa.ColumnClause[Any]) -> sa.Select[Any]:
    assert seq.table is not None, "a column of a table"
    of_thread = seq.table.c.thread_id == _threads.c.thread_id
    if _dialect() in _MYSQL:
        last: sa.Select[Any] = sa.select(sa.func.max(seq)).where(of_thread).correlate(_threads)
        return last.with_hint(_messages, _BY_THREAD) if seq.table is _messages else last
    # The last entry of the primary key.
    return sa.select(seq).where(of_thread).order_by(seq.desc()).limit(1).correlate(_threads)


def _drop_what_has_moved() -> None:
    if not _threads_are_cubepis():
        return
    moved = ["v3_extra", "pending_request"]
    moved += ["v3_run_id", "v3_created_at", "v3_updated_at"] if _dialect() in _MYSQL else ["run_id"]
    op.execute(f"ALTER TABLE cubepi_threads {', '.join(f'DROP COLUMN {column}' for column in moved)}")
    for column in moved:
        _note_dropped("cubepi_threads", column)


def _make_it_ours() -> None:
    # With this column the tables are ours: that is what the next upgrade looks at, and every worker. So nothing may be
    # left to do about it: PostgreSQL needs a default for a moment, and its upgrade is one transaction.
    default = "" if _dialect() == "postgresql" else None
    _add_column(
        "cubepi_schema_version", sa.Column("oldest_library", sa.String(32), nullable=False, server_default=default)
    )
    if _dialect() == "postgresql":
        _drop_default("cubepi_schema_version", "oldest_library", sa.String(32))
    _write_version()


def _utc(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A time of cubepi's as ours. MySQL's TIMESTAMP is read in the session's zone, but for this function."""
    if _dialect() not in _MYSQL:
        return time
    return sa.func.timestampadd(sa.text("SECOND"), sa.func.unix_timestamp(time), "1970-01-01 00:00:00")


# ---- forks of cubepi's ----------------------------------------------------------------------------------


def _find_cuts() -> None:
    """cubepi recorded a completion_seq, or nothing. We record the parent's seq of the last message that was copied."""
    if _as_script():
        return  # v3 had no forks
    has_parent = _threads.c.parent_thread_id.is_not(None)
    forks = list(op.get_bind().execute(sa.select(_threads.c.thread_id, _threads.c.parent_thread_id).where(has_parent)))
    for number, (fork, parent) in enumerate(forks):
        _report("", number, len(forks), within=True)
        copied = itertools.takewhile(lambda pair: pair.is_copy, op.get_bind().execute(_pairs(fork, parent)))
        cut = max((pair.seq for pair in copied), default=0)
        op.execute(sa.update(_threads).where(_threads.c.thread_id == fork).values(forked_at_seq=cut))


def _pairs(fork: str, parent: str) -> sa.Select[Any]:
    """The fork's messages in their order, each beside the one of its parent that it would be a copy of.

    A fork begins with the messages it copied: those of the runs that came along, and legacy ones. One statement copied
    them, so they have one time.
    """
    its, theirs = _runs.alias("its"), _runs.alias("theirs")
    came_along = sa.select(its.c.run_id).where(
        its.c.thread_id == fork,
        theirs.c.thread_id == parent,
        its.c.run_id == theirs.c.run_id,
        its.c.completion_seq == theirs.c.completion_seq,
        its.c.completion_time == theirs.c.completion_time,
    )
    position = sa.func.row_number().over(order_by=_messages.c.seq).label("position")
    is_legacy = _messages.c.run_id.is_(None)
    slice_ = (
        sa.select(_messages.c.seq, _messages.c.payload, position)
        .where(_messages.c.thread_id == parent, sa.or_(is_legacy, _messages.c.run_id.in_(came_along)))
        .subquery()
    )
    time: sa.ColumnElement[Any] = sa.column("v3_created_at" if _dialect() in _MYSQL else "created_at")
    of_fork = _messages.c.thread_id == fork
    own = sa.select(_messages.c.payload, position, time.label("time")).where(of_fork).subquery()
    first = sa.select(time).select_from(_messages).where(of_fork).order_by(_messages.c.seq).limit(1).scalar_subquery()
    is_copy = sa.and_(own.c.payload == slice_.c.payload, own.c.time == first)
    pairs = own.join(slice_, own.c.position == slice_.c.position)
    return sa.select(slice_.c.seq, is_copy.label("is_copy")).select_from(pairs).order_by(own.c.position)


# ---- a SQLite file of cubepi's: its rows move -----------------------------------------------------------

_OLD_NAMES = ("messages", "thread_extra", "thread_pending_request", "runs")
_OLD_RUNS = {"thread_id", "run_id", "claimed_at", "completed_at", "completion_seq"}
_MESSAGES_AT_ONCE = 20_000


def _adopt_file() -> Steps:
    return [
        ("making the tables", _create),
        ("moving threads", _move_file_threads),
        ("moving runs", _move_file_runs),
        ("moving messages", _move_file_messages),
        ("moving pending requests", _move_file_pending),
        ("finding where forks were cut", _find_cuts),
        ("dropping what has moved", _drop_file_tables),
        ("renaming ids", _rename_ids),
        ("writing the version", _write_version),
    ]


def _old(name: str) -> sa.TableClause | None:
    """cubepi's table of this name. Another one is the host's."""
    if name == "runs" and (_as_script() or _columns("runs") != _OLD_RUNS):
        return None
    return _table(name, *sorted(_columns(name))) if _columns(name) else None


def _from_julian(day: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # As precise as SQLite's own clock, milliseconds; written with the six digits that all our times have.
    return sa.func.strftime("%Y-%m-%d %H:%M:%f", day).concat("000")


def _in_json(text: sa.ColumnElement[Any], path: str) -> sa.ColumnElement[Any]:
    # Python's json module writes NaN, which SQLite's own may refuse: what is taken out like this is a mirror.
    return sa.case((sa.func.json_valid(text), sa.func.json_extract(text, path)))


def _move_file_threads() -> None:
    """A thread was wherever its id was, and its time is that of its rows. One that has no times gets today's."""
    times = {"messages": "created_at", "thread_pending_request": "created_at", "runs": "claimed_at"}
    found = [
        sa.select(table.c.thread_id, (table.c[times[name]] if name in times else sa.null()).label("day"))
        for name in (*_OLD_NAMES, "thread_hitl_answers")
        if (table := _old(name)) is not None
    ]
    rows = sa.union_all(*found).subquery()
    now = sa.func.julianday("now")
    days = (
        sa.select(rows.c.thread_id, sa.func.min(rows.c.day).label("first"), sa.func.max(rows.c.day).label("last"))
        .group_by(rows.c.thread_id)
        .subquery()
    )
    extra = _old("thread_extra")
    source: sa.FromClause = days
    parent: sa.ColumnElement[Any] = sa.null()
    text: sa.ColumnElement[Any] = sa.literal("{}", sa.String)
    if extra is not None:
        source = days.outerjoin(extra, extra.c.thread_id == days.c.thread_id)
        text = sa.func.coalesce(extra.c.extra_json, text)
        parent = extra.c.parent_thread_id if "parent_thread_id" in extra.c else parent
    columns = ["thread_id", "parent_thread_id", "extra", "created_at", "updated_at"]
    first, last = (_from_julian(sa.func.coalesce(day, now)) for day in (days.c.first, days.c.last))
    threads = sa.select(days.c.thread_id, parent, text, first, last).select_from(source)
    op.execute(sa.insert(_threads).from_select(columns, threads))


def _move_file_runs() -> None:
    old = _old("runs")
    if old is None:
        return
    times = _from_julian(old.c.claimed_at), _from_julian(old.c.completed_at)
    _refill(_runs, sa.select(old.c.thread_id, old.c.run_id, *times, old.c.completion_seq))
    last = _last(_runs.c.completion_seq).where(_runs.c.completion_seq.is_not(None)).scalar_subquery()
    op.execute(sa.update(_threads).values(last_completion_seq=sa.func.coalesce(last, sa.literal_column("0"))))


def _move_file_messages() -> None:
    old = _old("messages")
    assert old is not None, "the preflight has seen it"
    role = sa.func.coalesce(_in_json(old.c.message_json, "$.role"), "")
    mirror = sa.func.coalesce(_in_json(old.c.message_json, "$.metadata"), "{}")
    for range_ in _ranges(old.c.id, _MESSAGES_AT_ONCE):
        before = _threads.c.last_seq
        rows = (
            sa.select(
                old.c.thread_id,
                before + sa.func.row_number().over(partition_by=old.c.thread_id, order_by=old.c.id),
                role,
                old.c.run_id if "run_id" in old.c else sa.null(),
                sa.literal_column(str(_JSON)),
                sa.cast(old.c.message_json, sa.LargeBinary),
                mirror,
                _from_julian(old.c.created_at),
            )
            .select_from(old.join(_threads, _threads.c.thread_id == old.c.thread_id))
            .where(range_)
        )
        op.execute(sa.insert(_messages).from_select([column.name for column in _messages.c], rows))
        counts = sa.select(old.c.thread_id, sa.func.count().label("more")).where(range_).group_by(old.c.thread_id)
        moved = counts.subquery()
        counted = sa.update(_threads).where(_threads.c.thread_id == moved.c.thread_id)
        op.execute(counted.values(last_seq=before + moved.c.more))


def _move_file_pending() -> None:
    old = _old("thread_pending_request")
    if old is None:
        return
    question_id = _in_json(old.c.request_json, "$.question_id")
    run_id: sa.ColumnElement[Any] = old.c.run_id if "run_id" in old.c else sa.null()
    _refill(
        _pending, sa.select(old.c.thread_id, question_id, old.c.request_json, run_id, _from_julian(old.c.created_at))
    )


def _drop_file_tables() -> None:
    """Views take their names. Every cubepi release fails at them: when it starts, and when it reads or writes."""
    for name in _OLD_NAMES:
        if _old(name) is not None:
            op.drop_table(name)
            _note_dropped(name)
        if not _has_table(name):
            op.execute(f"CREATE VIEW {name} AS SELECT 'Threadkeep keeps these threads now' AS moved")


# ---- ids ------------------------------------------------------------------------------------------------

_THREAD_IDS = (
    ("cubepi_threads", "thread_id"),
    ("messages", "thread_id"),
    ("thread_extra", "thread_id"),
    ("thread_pending_request", "thread_id"),
    ("runs", "thread_id"),
    ("thread_hitl_answers", "thread_id"),
)
_RUN_IDS = (
    ("cubepi_threads", "run_id"),
    ("cubepi_threads", "v3_run_id"),
    ("cubepi_messages", "run_id"),
    ("cubepi_runs", "run_id"),
    ("cubepi_old_runs", "run_id"),
    ("cubepi_pending", "run_id"),
    ("messages", "run_id"),
    ("thread_pending_request", "run_id"),
    ("runs", "run_id"),
)
_RUN_KEYS = (("cubepi_hitl_answers", "run_id"), ("thread_hitl_answers", "run_id"))
"""Among answers, no run is ''."""
_QUESTION_IDS = (("cubepi_hitl_answers", "question_id"), ("thread_hitl_answers", "question_id"))
_REQUESTS = (
    ("cubepi_threads", "pending_request"),
    ("cubepi_pending", "request"),
    ("thread_pending_request", "request_json"),
)
"""Where a question's id stands in JSON."""
_SHOWN = 50


def preflight(conn: sa.Connection, *, rename_ids: bool, so_far: str = "Nothing") -> dict[str, str]:
    """What would be renamed, and to what. Raises ValueError if that is not wanted. Changes nothing."""
    bad = _bad_ids(conn)
    listed = [f"{kind} {id_!r}: {_objection(id_)}" for kind, ids in bad.items() for id_ in ids]
    if listed and not rename_ids:
        more = f"\n  and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
        raise ValueError(
            f"{len(listed):,} of its ids are not allowed. To have them renamed, run"
            " 'threadkeep upgrade --rename-ids URL', upgrade(url, rename_ids=True), or, from a revision of yours,"
            f" upgrade_with(op, rename_ids=True). {so_far} was changed.\n  " + "\n  ".join(listed[:_SHOWN]) + more
        )
    new = {id_: renamed(id_) for ids in bad.values() for id_ in ids}
    if taken := sorted(set(new.values()).intersection(itertools.chain(*_ids(conn).values()))) if new else []:
        raise ValueError(
            f"ids that would be made by renaming are there already: {', '.join(map(repr, taken[:_SHOWN]))}."
            f" Rename one of each pair yourself. {so_far} was changed"
        )
    return new


def renamed(old: str) -> str:
    """What an id that is not allowed becomes: what can be kept of it, and a hash of it all, so that no two are one."""
    kept = "".join(character for character in old if unicodedata.category(character) != "Cc").strip()
    kept = kept.encode()[:200].decode(errors="ignore").strip()
    return f"{kept}~{hashlib.sha256(old.encode()).hexdigest()[:16]}"


def _objection(id_: str) -> str:
    """What is wrong with this id, or nothing: the rule of v4."""
    if not id_:
        return "it is empty"
    if id_ != id_.strip():
        return "it begins or ends with white space"
    if any(unicodedata.category(character) == "Cc" for character in id_):
        return "it holds a control character"
    if len(id_.encode()) > 255:
        return f"it takes {len(id_.encode())} bytes in UTF-8, more than 255"
    return ""


def _bad_ids(conn: sa.Connection) -> dict[str, list[str]]:
    return {kind: sorted({id_ for id_ in ids if _objection(id_)}) for kind, ids in _ids(conn).items()}


def _ids(conn: sa.Connection) -> dict[str, Iterator[str]]:
    """All there are, of each kind."""
    seen = sa.inspect(conn)
    columns = {
        table: {column["name"] for column in seen.get_columns(table)}
        for table in {table for table, _ in (*_THREAD_IDS, *_RUN_IDS, *_RUN_KEYS, *_QUESTION_IDS, *_REQUESTS)}
        if seen.has_table(table)
    }
    in_file = "message_json" in columns.get("messages", ())

    def is_theirs(table: str) -> bool:
        if table == "thread_hitl_answers":  # which is there longest: v5 moves it
            return "answer_json" in columns.get(table, ())
        return table.startswith("cubepi_") or (in_file and (table != "runs" or columns.get(table) == _OLD_RUNS))

    def ids(places: tuple[tuple[str, str], ...]) -> Iterator[str]:
        for table, column in places:
            if is_theirs(table) and column in columns.get(table, ()):
                yield from _values(conn, table, column)

    return {
        "thread": ids(_THREAD_IDS),
        "run": itertools.chain(ids(_RUN_IDS), filter(None, ids(_RUN_KEYS))),
        "question": itertools.chain(ids(_QUESTION_IDS), ids(_REQUESTS)),
    }


def _values(conn: sa.Connection, table: str, column: str) -> Iterator[str]:
    value = column
    if (table, column) in _REQUESTS:
        value = {
            "postgresql": f"CAST({column} AS JSONB) ->> 'question_id'",
            "sqlite": f"CASE WHEN json_valid({column}) THEN json_extract({column}, '$.question_id') END",
        }.get(conn.dialect.name, f"JSON_UNQUOTE(JSON_EXTRACT({column}, '$.question_id'))")
    if conn.dialect.name in _MYSQL:
        # By their bytes: to a collation of cubepi's, an id with a space at its end is the one without.
        value = f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)"
    distinct: sa.Select[Any] = sa.select(sa.literal_column(value)).distinct().select_from(sa.table(table))
    for found in conn.execute(distinct.where(sa.column(column).is_not(None))).scalars():
        if found is not None:
            yield found.decode() if isinstance(found, bytes) else found


def _rename_ids() -> None:
    """After everything has moved, so that there is one place for each id."""
    if not op.get_context().opts.get("rename_ids"):
        return  # there is nothing to rename: the preflight would have refused
    bad = _bad_ids(op.get_bind())
    for old in bad["thread"]:
        _rename_thread(old, renamed(old))
    for old in bad["run"]:
        _rename_run(old, renamed(old))
    for old in bad["question"]:
        for table, column in _QUESTION_IDS:
            _rename(table, column, old, renamed(old))
    if bad["question"]:
        _rename_questions_in_requests(set(bad["question"]))


def _rename_thread(old: str, new: str) -> None:
    # A row of the new name, its children, then the old row: foreign keys hold at every moment.
    others = [column for column in sorted(_columns("cubepi_threads")) if column != "thread_id"]
    threads = _table("cubepi_threads", "thread_id", *others)
    row = sa.select(sa.literal(new, sa.String), *(threads.c[name] for name in others)).where(threads.c.thread_id == old)
    op.execute(sa.insert(threads).from_select(["thread_id", *others], row))
    for table in ("cubepi_messages", "cubepi_runs", "cubepi_pending", "cubepi_hitl_answers", "thread_hitl_answers"):
        _rename(table, "thread_id", old, new)
    _rename("cubepi_threads", "parent_thread_id", old, new)
    op.execute(sa.delete(threads).where(threads.c.thread_id == old))


def _rename_run(old: str, new: str) -> None:
    of_run = sa.select(_messages.c.thread_id, _messages.c.seq, _messages.c.payload).where(
        _messages.c.run_id == old, _messages.c.format == _JSON
    )
    for thread_id, seq, payload in op.get_bind().execute(of_run).all():
        # The payload names its run. In msgpack it stays as it is, and the column overrules it.
        message = json.dumps({**json.loads(payload), "run_id": new}).encode()
        its_row = sa.and_(_messages.c.thread_id == thread_id, _messages.c.seq == seq)
        op.execute(sa.update(_messages).where(its_row).values(payload=message))
    for table, column in (*_RUN_IDS, *(_RUN_KEYS if old else ())):
        _rename(table, column, old, new)


def _rename_questions_in_requests(bad: set[str]) -> None:
    for thread_id, request in op.get_bind().execute(sa.select(_pending.c.thread_id, _pending.c.request)).all():
        parsed = json.loads(request)
        if parsed.get("question_id") in bad:
            new = renamed(parsed["question_id"])
            text = json.dumps({**parsed, "question_id": new}, ensure_ascii=False)
            its_row = _pending.c.thread_id == thread_id
            op.execute(sa.update(_pending).where(its_row).values(question_id=new, request=text))


def _rename(table: str, column: str, old: str, new: str) -> None:
    if column in _columns(table):
        target = _table(table, column)
        statement = sa.update(target).where(target.c[column] == old)
        if _dialect() in _MYSQL and "thread" not in column:
            # By their bytes: to a collation of cubepi's, `r`, `R ` and `r ` are one. Of threads there can be only one
            # of them, with the messages of all.
            in_bytes = "CAST(CONVERT({} USING utf8mb4) AS BINARY)"
            same = sa.text(f"{in_bytes.format(column)} = {in_bytes.format(':old')}").bindparams(old=old)
            statement = statement.where(same)
        op.execute(statement.values({column: new}))


# ---- steps that look first ------------------------------------------------------------------------------


def _add_column(table: str, column: sa.Column[Any]) -> None:
    if not _has_column(table, column.name):
        op.add_column(table, column)
        _note_added(table, column.name)


def _set_aside(table: str, column: str) -> None:
    """Give a column of cubepi's another name, so that ours can have it."""
    if not _has_column(table, f"v3_{column}"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO v3_{column}")
        _note_dropped(table, column)
        _note_added(table, f"v3_{column}")


def _drop_default(table: str, column: str, type_: Any) -> None:
    op.alter_column(table, column, server_default=None, existing_type=type_, existing_nullable=False)


def _add_index(index: str, table: str, *columns: str) -> None:
    if not _has_index(table, index):
        op.create_index(index, table, list(columns))


def _ranges(column: sa.ColumnClause[Any], at_once: int) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that cover the column's values from the first to the last, so many rows each."""
    if _as_script():
        yield sa.true()
        return
    table = column.table
    assert table is not None, "a column of a table"
    rows = op.get_bind().execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    done = 0
    last: Any = None
    while True:
        step = sa.select(column).order_by(column).limit(1).offset(at_once - 1)
        after: sa.ColumnElement[bool] = sa.true() if last is None else column > last
        end = op.get_bind().execute(step.where(after)).scalar()
        _report("", done, rows, within=True)
        if end is None:
            yield after
            return
        yield sa.and_(after, column <= end)
        done, last = done + at_once, end


def _report(step: str, done: int, total: int, *, within: bool = False) -> None:
    """Tell whoever runs this how far it is, if they want to know."""
    progress = op.get_context().opts.get("progress")
    if progress is not None:
        progress(step, done, total, within)


# ---- what is there --------------------------------------------------------------------------------------

_V3_SCRIPT = {
    "cubepi_threads": [
        "thread_id",
        "parent_thread_id",
        "forked_at_seq",
        "extra",
        "pending_request",
        "run_id",
        "created_at",
        "updated_at",
    ],
    "cubepi_messages": ["thread_id", "seq", "role", "metadata", "payload", "created_at"],
    "cubepi_schema_version": ["version"],
}
_V3_FILE_SCRIPT = {
    "messages": ["id", "thread_id", "message_json", "created_at"],
    "thread_extra": ["thread_id", "extra_json"],
    "thread_pending_request": ["thread_id", "request_json", "run_id", "created_at"],
}


def _dialect() -> str:
    return op.get_context().dialect.name


def _as_script() -> bool:
    """Whether a script is printed (`--sql`). It cannot look: it is told where it starts, and knows what it has done."""
    return bool(op.get_context().as_sql)


def _script_state() -> dict[str, set[str]]:
    options = op.get_context().opts
    if "threadkeep_script" not in options:
        shape = _V3_FILE_SCRIPT if _dialect() == "sqlite" else _V3_SCRIPT
        of_v3 = {name: set(columns) for name, columns in shape.items()}
        options["threadkeep_script"] = of_v3 if options.get("script_for_v3") else {}
    state: dict[str, set[str]] = options["threadkeep_script"]
    return state


def _note_added(table: str, column: str) -> None:
    if _as_script():
        _script_state()[table].add(column)


def _note_dropped(table: str, column: str | None = None) -> None:
    if not _as_script():
        return
    if column is None:
        del _script_state()[table]
    else:
        _script_state()[table].remove(column)


def _is_cubepis() -> bool:
    """Whether cubepi made what is there: on a server its version table lacks our column, in a file its tables are."""
    if _dialect() == "sqlite":
        return "message_json" in _columns("messages")
    return _has_table("cubepi_schema_version") and not _has_column("cubepi_schema_version", "oldest_library")


def _columns(table: str) -> set[str]:
    if _as_script():
        return _script_state().get(table, set())
    seen = sa.inspect(op.get_bind())
    return {column["name"] for column in seen.get_columns(table)} if seen.has_table(table) else set()


def _has_table(name: str) -> bool:
    return name in _script_state() if _as_script() else sa.inspect(op.get_bind()).has_table(name)


def _has_column(table: str, column: str) -> bool:
    return column in _columns(table)


def _has_index(table: str, index: str) -> bool:
    if not _has_table(table) or _as_script():
        return False
    return index in {found["name"] for found in sa.inspect(op.get_bind()).get_indexes(table)}
