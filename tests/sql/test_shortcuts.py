"""Shortcuts: the writes of every turn, each in one message to the server.

They write what the operation would have written, and refuse what it would have refused, in the same words. So most
tests here do the same twice: by a shortcut, and by the operation, which a `transaction()` takes. (SQLite has none.)
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.connectors.asyncio import AsyncAdapt_dbapi_cursor
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_cursor
from sqlalchemy.ext.asyncio import create_async_engine

from backends import BACKENDS, CLASSES, Backend
from racing import SIZE
from sql.sessions import LONG, OUR_OWN_POOLS, Server
from sql.turn_writes import (
    OTHERS,
    SMALL,
    TURN,
    Write,
    absent,
    alive,
    by_operation,
    outcome_of,
    put_away,
    said,
    state,
)
from threadkeep import (
    CheckpointerError,
    CheckpointerLockTimeoutError,
    MySQLCheckpointer,
    OutcomeUnknownError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    ThreadDeletedError,
)
from threadkeep.sql import tables
from threadkeep.sql.database import AtOnce, Database
from threadkeep.sql.dialects import NoShortcutError, Shortcut


@pytest.fixture(params=OUR_OWN_POOLS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The shortcuts that were tried, and whether each has done it."""
    tried: list[tuple[str, bool]] = []
    written = Database._written

    async def noted(self: Database, shortcut: Shortcut, at_once: AtOnce) -> Any:
        try:
            result = await written(self, shortcut, at_once)
        except NoShortcutError:
            tried.append((at_once.name, False))
            raise
        tried.append((at_once.name, True))
        return result

    monkeypatch.setattr(Database, "_written", noted)
    return tried


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the drivers were told to send. (Not whether an idle connection still lives.)"""
    messages: list[str] = []

    def listening(execute: Any) -> Any:
        def noted(self: Any, sql: str, *args: Any) -> Any:
            if sql != "SELECT 1":
                messages.append(sql)
            return execute(self, sql, *args)

        return noted

    for cursor in (AsyncAdapt_dbapi_cursor, AsyncAdapt_asyncpg_cursor):
        monkeypatch.setattr(cursor, "execute", listening(cursor.execute))
    return messages


# ---- when they are taken ----------------------------------------------------------------------------------


async def test_each_write_of_a_turn_is_one_message(
    backend: Backend, sent: list[str], taken: list[tuple[str, bool]]
) -> None:
    """`save_extra` is two: what is there has to be read first."""
    async with backend.opened() as cp:
        await alive(cp, "thread")
        taken.clear()
        for name, write in TURN.items():
            for thread_id in ("thread", "new"):
                if (name, thread_id) == ("mark_run_complete", "new"):
                    await cp.claim_run("new", "open")
                    taken.clear()
                sent.clear()
                await write(cp, thread_id)
                assert len(sent) == (2 if name == "save_extra" else 1)
                assert taken == [(name, True)]
                taken.clear()
        assert await state(cp, "thread") == (
            [
                ("done", said("done", "done")),
                ("open", said("open", "open")),
                ("open", said("1", "open")),
                (None, said("2")),
            ],
            [("done", 1), ("new", None), ("open", 2)],
            {"a": 1, "b": 2},
            False,
        )
        assert await state(cp, "new") == (
            [("open", said("1", "open")), (None, said("2"))],
            [("new", None), ("open", 1)],
            {"b": 2},
            False,
        )


async def test_they_are_not_taken_where_they_would_commit(backend: Backend, taken: list[tuple[str, bool]]) -> None:
    """In a transaction, ours or the host's, and on an engine that the host has set up."""
    assert backend.engine is not None
    threads = ("by shortcut", "in a transaction", "using a connection", "on an engine")
    async with backend.opened() as cp, CLASSES[backend.name](backend.engine) as of_host:
        for thread_id in threads:
            await alive(cp, thread_id)
        for write in TURN.values():
            await write(cp, "by shortcut")
        taken.clear()
        async with cp.transaction() as tx:
            for write in TURN.values():
                await write(tx, "in a transaction")
        async with backend.engine.begin() as conn:
            for write in TURN.values():
                await write(cp.using(conn), "using a connection")
        for write in TURN.values():
            await write(of_host, "on an engine")
        assert not any(done for _, done in taken)
        by_shortcut, *otherwise = [await state(cp, thread_id) for thread_id in threads]
        assert otherwise == [by_shortcut] * 3


async def test_they_are_not_taken_with_a_lease(backend: Backend, taken: list[tuple[str, bool]]) -> None:
    """None looks at the fence."""
    async with backend.opened() as cp, cp.runs.lease("thread", "open", ttl=60) as lease:
        taken.clear()
        for write in TURN.values():
            await write(lease, "thread")
        assert not any(done for _, done in taken)
        messages = [("open", said("1", "open")), (None, said("2"))]
        assert await state(cp, "thread") == (messages, [("new", None), ("open", 1)], {"b": 2}, False)


async def test_an_append_with_more_to_it_is_left_to_the_operation(
    backend: Backend, taken: list[tuple[str, bool]]
) -> None:
    """Ids that may be taken, texts to be found, and what is too much for one message."""
    many, much = [said(f"{number}") for number in range(1_001)], [said("x" * 5 * 1024 * 1024)]
    async with backend.opened() as cp, backend.opened(searchable=True) as searching:
        await cp.messages.append("thread", [said("given")], message_ids=["given"])
        await searching.append("thread", [said("findable")])
        await cp.append("thread", many)
        await cp.append("thread", much)
        assert taken == [("append", False)] * 4
        messages = (await cp.load("thread")).messages
        assert messages == [said("given"), said("findable"), *many, *much]
        assert [hit.seq for hit in await searching.threads.search("findable")] == [2]
        assert (await cp.messages.get("thread", "given")).seq == 1
        assert (await cp.threads.get("thread")).last_seq == len(messages)


# ---- what they refuse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [alive, put_away, absent])
async def test_it_is_as_if_the_operation_had_been_run(
    backend: Backend, taken: list[tuple[str, bool]], condition: Any
) -> None:
    seen: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    async with backend.opened(max_value_bytes=SMALL) as cp:
        for name, write in {**TURN, **OTHERS}.items():
            of_shortcut, of_operation = f"shortcut: {name}", f"operation: {name}"
            for thread_id in (of_shortcut, of_operation):
                await condition(cp, thread_id)
            taken.clear()
            outcome = await outcome_of(write(cp, of_shortcut), of_shortcut)
            assert outcome is None or not any(done for _, done in taken)
            seen[name] = outcome, await state(cp, of_shortcut)
            outcome = await outcome_of(by_operation(cp, write, of_operation), of_operation)
            expected[name] = outcome, await state(cp, of_operation)
        async with backend.opened() as other:
            for name in seen:
                await other.threads.delete(f"shortcut: {name}")  # no transaction was left open, with a lock in it
    assert seen == expected


async def test_the_errors_are_those_of_the_contract(backend: Backend) -> None:
    """For the test above compares two ways with each other."""
    async with backend.opened() as cp:
        await alive(cp, "thread")
        await put_away(cp, "put away")
        for name, error in {
            "claim a run that is open": RunAlreadyClaimedError,
            "claim a run that is complete": RunAlreadyCompletedError,
            "append to a run that is complete": RunAlreadyCompletedError,
            "append to several, one complete": RunAlreadyCompletedError,
            "complete a run that nobody claimed": RunNotClaimedError,
        }.items():
            with pytest.raises(error) as caught:
                await OTHERS[name](cp, "thread")
            assert caught.value.thread_id == "thread"
        for write in (*TURN.values(), *OTHERS.values()):
            with pytest.raises(ThreadDeletedError):
                await write(cp, "put away")
        with pytest.raises(RunNotClaimedError):
            await cp.mark_run_complete("nobody", "run")
        assert await cp.load("nobody") is None


# ---- what happens while they wait -------------------------------------------------------------------------


async def complete_the_run(tx: Any, thread_id: str) -> None:
    await tx.mark_run_complete(thread_id, "open")


async def complete_another_run(tx: Any, thread_id: str) -> None:
    await tx.claim_run(thread_id, "another")
    await tx.mark_run_complete(thread_id, "another")


async def claim_the_run(tx: Any, thread_id: str) -> None:
    await tx.claim_run(thread_id, "new")


async def claim_and_complete_the_run(tx: Any, thread_id: str) -> None:
    await tx.claim_run(thread_id, "new")
    await tx.mark_run_complete(thread_id, "new")


async def append_and_save(tx: Any, thread_id: str) -> None:
    await tx.append(thread_id, [said("meanwhile", "open")])
    await tx.save_extra(thread_id, {"meanwhile": True})


async def put_it_away(tx: Any, thread_id: str) -> None:
    await tx.threads.soft_delete(thread_id)


async def bring_it_back(tx: Any, thread_id: str) -> None:
    await tx.threads.restore(thread_id)


async def delete_it(tx: Any, thread_id: str) -> None:
    await tx.threads.delete(thread_id)


async def begin_it_anew(tx: Any, thread_id: str) -> None:
    """With as many completed runs as before, but another one."""
    await tx.threads.delete(thread_id)
    await claim_and_complete_the_run(tx, thread_id)


async def fork_onto_it(tx: Any, thread_id: str) -> None:
    """The same for a fork that takes its place."""
    await tx.threads.delete(thread_id)
    await tx.fork("source", thread_id, after_run_id="new")


RACES: dict[str, list[tuple[Write, Write, list[str]]]] = {
    "its runs": [
        (alive, complete_the_run, ["append", "append one", "mark_run_complete", "claim a run that is open"]),
        (alive, complete_another_run, ["append", "append one", "append to several", "mark_run_complete"]),
        (alive, claim_the_run, ["claim_run", "complete a run that nobody claimed"]),
        (
            alive,
            claim_and_complete_the_run,
            [
                "claim_run",
                "append to a run that nobody claimed",
                "append to several",
                "complete a run that nobody claimed",
            ],
        ),
    ],
    "its rows": [
        (alive, append_and_save, [*TURN]),
        (alive, put_it_away, [*TURN, "append one"]),
        (put_away, bring_it_back, [*TURN, "append one without a run"]),
    ],
    "its life": [
        (alive, delete_it, [*TURN, "save nothing"]),
        (alive, begin_it_anew, ["append", "append to a run that nobody claimed", "append to several", "claim_run"]),
        (alive, fork_onto_it, ["append to a run that nobody claimed", "save_extra"]),
        # Without completions: PostgreSQL sees no thread to wait for, and refuses at once, rightly.
        (absent, alive, ["append", "append to a run that is complete", "claim_run", "save_extra"]),
    ],
}
"""What a thread is like, what happens to it while a write waits for it, and the writes that may do so."""


@pytest.mark.parametrize(
    ("of", "undone"), [("its runs", False), ("its rows", False), ("its life", False), ("its life", True)]
)
async def test_a_write_that_waited_sees_what_it_waited_for(
    backend: Backend, server: Server, of: str, undone: bool
) -> None:
    """A statement's snapshot is older than the lock it waits for, and so is what `save_extra` has read.

    All of them at once, each in a thread of its own. Each is as if it had come after what it waited for, or as if that
    had never been, where it was undone.
    """
    every = {**TURN, **OTHERS}
    writes = {
        f"{meanwhile.__name__}: {name}": (condition, meanwhile, every[name])
        for condition, meanwhile, names in RACES[of]
        for name in names
    }
    seen: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    async with backend.opened(max_pool_size=len(writes) + 1, lock_timeout=LONG) as cp:
        await claim_and_complete_the_run(cp, "source")
        for name, (condition, _, _) in writes.items():
            await condition(cp, name)
            await condition(cp, f"operation: {name}")
        with suppress(ZeroDivisionError):
            async with cp.transaction() as tx:
                for name, (_, meanwhile, _) in writes.items():
                    await meanwhile(tx, name)
                waiting = {
                    name: asyncio.create_task(outcome_of(write(cp, name), name))
                    for name, (_, _, write) in writes.items()
                }
                await server.until_waiting(len(writes))
                if undone:
                    raise ZeroDivisionError
        for name, (_, meanwhile, write) in writes.items():
            seen[name] = await waiting[name], await state(cp, name)
            thread_id = f"operation: {name}"
            if not undone:
                await by_operation(cp, meanwhile, thread_id)
            outcome = await outcome_of(by_operation(cp, write, thread_id), thread_id)
            expected[name] = outcome, await state(cp, thread_id)
        await server.until_quiet()
    assert seen == expected


# ---- values -----------------------------------------------------------------------------------------------

TOKENS = [
    *("'", '"', "`", "\\", "\\'", "''", "%", "%s", "%(thread)s", "%%", ";", "--", "-- ", "#", "/*", "*/", "?", "$1"),
    *(":run", "{", "}", "[", "]", "(", ")", ",", "0x27", "\\0", "\\n", "\\u0000", "_binary", "N'", "x'27", "NULL"),
    *("COMMIT", "ROLLBACK", "; COMMIT; ", "DELETE FROM cubepi_threads", "LAST_INSERT_ID()", "BEGIN", "a", "B", " "),
    *("é", "e\u0301", "ß", "\U0001f600", "\uff07", "\u02bc", "\u2028", "\ufeff", "\u00a5", "\u200b"),
]
CONTROL = ["\x00", "\n", "\r", "\x1a", "\t", "\x7f", "\x08", "\x1b"]
"""In values only: no id may hold them."""

INTENT = "', json_object(), now(), 0x61); DELETE FROM cubepi_threads; COMMIT; -- "
"""Would be a statement of its own, if a quote in it ended the value."""
MODES = ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"]


def made_of(tokens: list[str], dice: random.Random) -> str:
    return "".join(dice.choices(tokens, k=dice.randint(1, 12)))


def some_id(dice: random.Random) -> str:
    return made_of(TOKENS, dice).strip() or "x"


@asynccontextmanager
async def opened_with(backend: Backend, **settings: str) -> AsyncIterator[Any]:
    """A checkpointer whose URL has these settings."""
    assert backend.engine is not None
    url = backend.engine.url.set(drivername="mysql").update_query_dict(settings)
    async with CLASSES[backend.name](url.render_as_string(hide_password=False)) as cp:
        yield cp


async def say_anything(cp: Any, dice: random.Random) -> None:
    """Whole turns of it; all of it comes back, and is all there is."""
    expected: dict[str, Any] = {}
    for number in range(10 * SIZE):
        thread_id, run_id = f"{number} {some_id(dice)}", some_id(dice)
        texts = [made_of([*TOKENS, *CONTROL], dice) for _ in range(3)]
        message = said(texts[0], run_id, **{"text": texts[1], texts[2]: [texts[0], 10**200, 0.1, None, True]})
        extra = {texts[1]: {texts[2]: -(2**70)}}
        await cp.claim_run(thread_id, run_id)
        await cp.append(thread_id, [message, said(texts[2])])
        await cp.save_extra(thread_id, {"before": texts[2]})
        await cp.save_extra(thread_id, extra)
        await cp.mark_run_complete(thread_id, run_id)
        expected[thread_id] = ([message, said(texts[2])], {"before": texts[2], **extra}, [run_id])
    for thread_id, written in expected.items():
        data = await cp.load(thread_id)
        assert (data.messages, data.extra, [run.run_id for run in await cp.runs.list(thread_id)]) == written
        assert [record.run_id for record in await cp.messages.list(thread_id)] == [*written[2], None]
    assert {record.thread_id for record in await cp.threads.list(limit=1000)} == set(expected)


@pytest.mark.stress
async def test_anything_may_be_said(backend: Backend, taken: list[tuple[str, bool]]) -> None:
    async with backend.opened() as cp:
        await say_anything(cp, random.Random(1))  # noqa: S311 - the same every time, not secret
        assert taken == [(name, True) for name, _ in taken]


@pytest.mark.stress
@pytest.mark.parametrize("backend", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("sql_mode", MODES)
async def test_anything_may_be_said_in_any_sql_mode(backend: Backend, sql_mode: str) -> None:
    """MySQL and MariaDB: values travel as literals, whose quotes mean what the mode says.

    A host may have set it for all connections, and here the URL does.
    """
    async with opened_with(backend, init_command=f"SET SESSION sql_mode = '{sql_mode}'") as cp:
        await say_anything(cp, random.Random(2))  # noqa: S311 - as above


@pytest.mark.parametrize("backend", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("settings", [{"charset": "gbk"}, {"charset": "latin1"}, {"init_command": "SET NAMES gbk"}])
async def test_anything_may_be_said_whatever_character_set_a_url_names(
    backend: Backend, settings: dict[str, str]
) -> None:
    """MySQL and MariaDB: in gbk, half a character takes the backslash before a quote for its other half."""
    hostile = ['café \\ "x" \U0001f600', f"€{INTENT}", f"\u00df{INTENT}"]
    async with opened_with(backend, **settings) as cp:
        await say_anything(cp, random.Random(4))  # noqa: S311 - as above
        await cp.append("many", [said(text) for text in hostile * 100])
        for _ in range(2):  # threads that are there already go together
            crowd = (cp.append(f"crowd {number}", [said(text) for text in hostile]) for number in range(8))
            await asyncio.gather(*crowd)
        assert [message.content[0].text for message in (await cp.load("many")).messages] == hostile * 100
        for number in range(8):
            assert [message.content[0].text for message in (await cp.load(f"crowd {number}")).messages] == hostile * 2


@pytest.mark.parametrize("backend", ["mysql-of-host", "mariadb-of-host"], indirect=True)
@pytest.mark.parametrize("charset", ["gbk", "latin1", "utf8"])
async def test_a_hosts_engine_in_another_character_set_is_refused(backend: Backend, charset: str) -> None:
    """MySQL and MariaDB: see above; and `utf8`, which is not all of it, has no emoji."""
    assert backend.engine is not None
    engine = create_async_engine(backend.engine.url.update_query_dict({"charset": charset}))
    with pytest.raises(CheckpointerError, match="charset=utf8mb4"):
        await MySQLCheckpointer(engine).__aenter__()
    async with backend.opened() as cp, engine.begin() as conn:
        with pytest.raises(CheckpointerError, match="charset=utf8mb4"):
            await cp.using(conn).append("thread", [said("x")])
        assert await cp.load("thread") is None
    await engine.dispose()


@pytest.mark.parametrize("backend", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("sql_mode", MODES)
async def test_nothing_that_is_said_is_executed(backend: Backend, sql_mode: str) -> None:
    async with opened_with(backend, init_command=f"SET SESSION sql_mode = '{sql_mode}'") as cp:
        await cp.append("other", [said("1")])
        for text in (INTENT, f"\\{INTENT}", f'"{INTENT}', f"'{INTENT}"):
            await cp.append("thread", [said(text)])
            await cp.append("thread", [said("x", None, text=text)])
            await cp.save_extra("thread", {text: text})
        assert await state(cp, "other") == ([(None, said("1"))], [], {}, False)
        messages, _, extra, _ = await state(cp, "thread")
        assert (len(messages), len(extra)) == (8, 4)
        assert [message.content[0].text for _, message in messages[::2]] == [*extra]


async def rows_of(backend: Backend, thread_id: str) -> list[Any]:
    """What the tables hold of a thread, but for what is never the same twice."""
    of_their_own = {"thread_id", "created_at", "updated_at", "claimed_at", "completed_at", "message_id"}
    found: list[Any] = []
    assert backend.engine is not None
    async with backend.engine.connect() as conn:
        for table in (tables.threads, tables.messages, tables.runs):
            columns = [sa.type_coerce(c, sa.JSON) if c.name == "metadata" else c for c in table.c]
            columns = [column for column, c in zip(columns, table.c, strict=True) if c.key not in of_their_own]
            statement = sa.select(*columns).where(table.c.thread_id == thread_id)
            found.append(sorted(map(repr, (await conn.execute(statement)).all())))
    return found


async def test_both_ways_store_the_same_rows(backend: Backend, taken: list[tuple[str, bool]]) -> None:
    """The mirrors too, from which nothing is read back. Ids are as long as they may be."""
    dice = random.Random(3)  # noqa: S311 - as above
    texts = ["", *CONTROL, *TOKENS, *(made_of([*TOKENS, *CONTROL], dice) for _ in range(20)), "x" * 10_000, INTENT]
    async with backend.opened() as cp:
        for number, letter in enumerate(("x", "é", "\U0001f600") * 4):
            run_id = _longest("run", letter)
            some = texts[number::12]
            extra: dict[str, Any] = {text: [text, 10**300, -(2**63), 1e-7, 1, 1.0, True, None, {}] for text in some}
            messages = [said(text, run_id, **{text: extra[text], "text": text}) for text in some]
            rows: dict[str, Any] = {}
            for name in ("shortcut", "operation"):
                thread_id = _longest(f"{number} by {name}", letter)
                async with cp.transaction() if name == "operation" else _as_it_is(cp) as way:
                    taken.clear()
                    await way.claim_run(thread_id, run_id)
                    await way.append(thread_id, messages[:7])
                    await way.append(thread_id, [*messages[7:], said("plain")])
                    await way.save_extra(thread_id, extra)
                    await way.save_extra(thread_id, {"more": some})
                    await way.mark_run_complete(thread_id, run_id)
                    assert taken == ([] if name == "operation" else [(tried, True) for tried, _ in taken])
                data = await cp.load(thread_id)
                assert (data.messages, data.extra) == ([*messages, said("plain")], {**extra, "more": some})
                rows[name] = await rows_of(backend, thread_id)
            assert rows["shortcut"] == rows["operation"]


def _longest(start: str, letter: str) -> str:
    """An id that starts like this and takes 255 bytes, or as many as make whole letters."""
    return start + letter * ((255 - len(start.encode())) // len(letter.encode()))


@asynccontextmanager
async def _as_it_is(value: Any) -> AsyncIterator[Any]:
    yield value


# ---- locks, broken connections, cancelled callers ---------------------------------------------------------

SETTINGS = {
    "postgresql": "SELECT current_setting('lock_timeout'), current_setting('default_transaction_isolation')",
    "mysql": "SELECT @@innodb_lock_wait_timeout, @@sql_mode, @@autocommit, @@transaction_isolation",
    "mariadb": "SELECT @@innodb_lock_wait_timeout, @@sql_mode, @@autocommit, @@tx_isolation",
}


async def test_lock_waits_are_bounded_and_the_limit_stays_with_the_write(
    backend: Backend, server: Server, sent: list[str]
) -> None:
    """On MySQL and MariaDB the limit is the session's, which is ours; on PostgreSQL a pooler may share it out."""
    async with backend.opened(lock_timeout=0.3, min_pool_size=len(TURN), max_pool_size=len(TURN)) as cp:
        engine = cp._opened.get().connections.engine

        async def settings() -> list[Any]:
            """Of every connection."""
            async with AsyncExitStack() as stack:
                opened = [await stack.enter_async_context(engine.connect()) for _ in TURN]
                return [(await conn.exec_driver_sql(SETTINGS[backend.name])).one() for conn in opened]

        set_up, connected = await settings(), await server.all()
        await alive(cp, "thread")
        before = await state(cp, "thread")
        async with backend.opened(max_pool_size=1) as other, other.transaction() as tx:
            await tx.append("thread", [said("meanwhile")])
            sent.clear()
            outcomes = await asyncio.gather(*(write(cp, "thread") for write in TURN.values()), return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {CheckpointerLockTimeoutError}
            # One message each, and one to read the extra: the operation does not wait as long again.
            assert len([sql for sql in sent if sql != "ROLLBACK"]) == len(TURN) + 1
            assert await state(cp, "thread") == before
            assert await settings() == set_up
        for write in (*TURN.values(), *OTHERS.values()):
            await outcome_of(write(cp, "thread"), "thread")
        assert await settings() == set_up
        await server.until_quiet()
        await server.until_connected(len(connected))
        assert await server.all() == connected  # as ever: none had to be given up


async def test_one_whose_connection_breaks_has_an_unknown_outcome(backend: Backend, server: Server) -> None:
    """And is not sent again, neither as it was nor as the operation."""
    async with backend.opened(lock_timeout=LONG) as cp:
        await alive(cp, "thread")
        before = await state(cp, "thread")
        with suppress(ZeroDivisionError):
            async with cp.transaction() as tx:
                await tx.append("thread", [said("undone")])
                writing = [asyncio.ensure_future(write(cp, "thread")) for write in TURN.values()]
                for session in await server.until_waiting(len(writing)):
                    await server.kill(session)
                outcomes = await asyncio.gather(*writing, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {OutcomeUnknownError}
                raise ZeroDivisionError
        await server.until_quiet()
        assert await state(cp, "thread") == before
        for write in TURN.values():
            await write(cp, "thread")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_write_has_happened_or_never_will(backend: Backend, server: Server, times: int) -> None:
    """Cancelled once, and again while it cleans up: as a task group does to one that is in a timeout."""
    async with backend.opened(lock_timeout=LONG) as cp:
        for thread_id in TURN:
            await alive(cp, thread_id)
        async with cp.transaction() as tx:
            for thread_id in TURN:
                await tx.append(thread_id, [said("meanwhile")])
            writing = [asyncio.ensure_future(write(cp, thread_id)) for thread_id, write in TURN.items()]
            await server.until_waiting(len(writing))
            for _ in range(times):
                for task in writing:
                    task.cancel()
                await asyncio.wait(writing, timeout=0.1)
            # Some drivers let go at once, with others it takes until the lock is there.
            were_over = [task.done() for task in writing]
            before = [await state(cp, thread_id) for thread_id in TURN]
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
        seen = [await state(cp, thread_id) for thread_id in TURN]
        await server.until_quiet()
        assert [await state(cp, thread_id) for thread_id in TURN] == seen
        for was_over, now, then in zip(were_over, seen, before, strict=True):
            if was_over:
                then[0].append((None, said("meanwhile")))
                assert now == then
        for thread_id, write in TURN.items():
            await cp.threads.delete(thread_id)
            await alive(cp, thread_id)
            await write(cp, thread_id)


async def test_closing_lets_those_that_wait_end(backend: Backend, server: Server) -> None:
    async with backend.opened() as other:
        for thread_id in TURN:
            await alive(other, thread_id)
        cp = backend.make(lock_timeout=LONG)
        await cp.__aenter__()
        async with other.transaction() as tx:
            for thread_id in TURN:
                await tx.append(thread_id, [said("meanwhile")])
            writing = [asyncio.ensure_future(write(cp, thread_id)) for thread_id, write in TURN.items()]
            await server.until_waiting(len(writing))
            closing = asyncio.ensure_future(cp.__aexit__(None, None, None))
            await asyncio.wait([closing], timeout=0.1)
        await closing
        assert all(task.done() for task in writing)
        assert await asyncio.gather(*writing) == [None] * len(writing)
        for thread_id, write in TURN.items():
            await other.threads.delete("by operation")
            await alive(other, "by operation")
            await other.append("by operation", [said("meanwhile")])
            await by_operation(other, write, "by operation")
            assert await state(other, thread_id) == await state(other, "by operation")
