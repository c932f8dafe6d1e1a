"""Ids in a database of cubepi's that are not allowed here: listed and refused, or renamed when that is asked for."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import threadkeep
from cli.program import run as run_command
from cli.program import run_well
from migrations.databases import Place, drift_of
from migrations.golden import (
    EXPECTED,
    SINCE_THEN,
    WITH_MESSAGES,
    add_thread,
    everything,
    prove_that_nothing_was_lost,
    put_v3,
)
from migrations.program import alembic, alembic_well
from threadkeep import CubepiSchemaMismatch
from threadkeep.ids import check_id
from threadkeep.testing.samples import same

SPACED, LONG, CONTROL, RUN, QUESTION = "a thread ", "ü" * 200, "tab\tand \x7f", " run", "question\n"
BAD = {
    SPACED: "white space",
    LONG: "400 bytes",
    CONTROL: "control character",
    RUN: "white space",
    QUESTION: "white space",
}
THREAD = EXPECTED[WITH_MESSAGES[0]]


@pytest.fixture
async def spoilt(place: Place) -> Place:
    """A v3 database with ids that cubepi took."""
    await put_v3(place, partitioned=False)
    await add_thread(place, SPACED, THREAD)
    await add_thread(place, LONG, THREAD, question_id="fine", run_id="fine")
    await add_thread(place, CONTROL, THREAD, question_id=QUESTION, run_id=RUN)
    return place


async def test_they_are_listed_and_nothing_is_changed(spoilt: Place) -> None:
    before = await spoilt.run(everything)
    with pytest.raises(CubepiSchemaMismatch) as caught:
        await threadkeep.upgrade(spoilt.url)
    for id_, reason in BAD.items():
        assert any(repr(id_) in line and reason in line for line in str(caught.value).splitlines()), id_
    assert "--rename-ids" in str(caught.value)
    assert caught.value.actual == 3

    by_command = await asyncio.to_thread(run_command, "upgrade", spoilt.url)
    by_alembic = await asyncio.to_thread(alembic, "upgrade", "head", url=spoilt.url)
    for outcome in (by_command, by_alembic):
        assert outcome.code != 0
        assert "Traceback" not in outcome.err
        assert repr(SPACED) in outcome.err
    assert await spoilt.run(everything) == before


async def test_a_file_that_opens_itself_is_refused_too(sqlite_place: Place) -> None:
    await put_v3(sqlite_place)
    await add_thread(sqlite_place, SPACED, THREAD)
    before = await sqlite_place.run(everything)
    with pytest.raises(CubepiSchemaMismatch, match="rename"):
        async with sqlite_place.checkpointer():
            pass
    assert await sqlite_place.run(everything) == before


@pytest.mark.parametrize("way", ["python", "command line", "alembic"])
async def test_renamed_they_keep_everything(spoilt: Place, way: str) -> None:
    if way == "python":
        renamed = await threadkeep.upgrade(spoilt.url, rename_ids=True)
        assert set(renamed) == set(BAD)
    else:
        if way == "command line":
            out = (await asyncio.to_thread(run_well, "upgrade", "--rename-ids", spoilt.url)).out
            assert out.count("renamed ") == len(BAD)
        else:
            await asyncio.to_thread(alembic_well, "-x", "rename_ids=yes", "upgrade", "head", url=spoilt.url)
        renamed = {id_: threadkeep.migrations.renamed_id(id_) for id_ in BAD}
    assert [check_id("id", id_) for id_ in renamed.values()] == list(dict.fromkeys(renamed.values()))

    async with spoilt.checkpointer() as cp:
        for old in (SPACED, LONG, CONTROL):
            data = await cp.load(renamed[old])
            written = [{**message, **SINCE_THEN} for message in THREAD["messages"]]
            assert same([message.model_dump(mode="json") for message in data.messages], written)
            assert same(data.extra, THREAD["extra"])
        assert await cp.load_pending(renamed[SPACED]) is None
        request, run_id = await cp.load_pending(renamed[LONG])
        assert (request.question_id, run_id) == ("fine", "fine")
        request, run_id = await cp.load_pending(renamed[CONTROL])
        assert (request.question_id, run_id) == (renamed[QUESTION], renamed[RUN])
        assert await cp.clear_pending_request_if_matches(
            renamed[CONTROL], question_id=renamed[QUESTION], run_id=renamed[RUN]
        )
        for old in (SPACED, LONG, CONTROL):
            assert await cp.threads.delete(renamed[old])
    await prove_that_nothing_was_lost(spoilt)
    assert await drift_of(spoilt) == ""


async def test_two_that_differ_by_a_space_stay_two(place: Place) -> None:
    await put_v3(place, partitioned=False)
    await add_thread(place, "u", THREAD)
    if place.kind in ("sqlite", "postgresql"):  # MySQL takes them for one, and so did cubepi
        await add_thread(place, "u ", {**THREAD, "extra": {"other": True}})
    await threadkeep.upgrade(place.url, rename_ids=True)
    async with place.checkpointer() as cp:
        assert same((await cp.load("u")).extra, THREAD["extra"])
        if place.kind in ("sqlite", "postgresql"):
            assert (await cp.load(threadkeep.migrations.renamed_id("u "))).extra == {"other": True}


async def test_an_empty_run_is_an_id_that_is_not_allowed(place: Place) -> None:
    """cubepi took it. Among answers alone, '' means that there is no run."""
    await put_v3(place, partitioned=False)
    await add_thread(place, "waiting", THREAD, question_id="question", run_id="")
    with pytest.raises(CubepiSchemaMismatch, match="run '': it is empty"):
        await threadkeep.upgrade(place.url)
    renamed = await threadkeep.upgrade(place.url, rename_ids=True)
    async with place.checkpointer() as cp:
        _, run_id = await cp.load_pending("waiting")
        assert run_id == renamed[""]
        assert await cp.clear_pending_request_if_matches("waiting", question_id="question", run_id=run_id)


async def put_answers(place: Place, *answers: tuple[str, str, str]) -> None:
    """What cubepi's schema 5 has beyond 3, with answers of these threads, runs and questions."""
    if place.kind == "sqlite":
        table, answer = "thread_hitl_answers", "answer_json"
        await place.execute(
            f"CREATE TABLE {table} (thread_id TEXT, run_id TEXT NOT NULL DEFAULT '', question_id TEXT, {answer} TEXT,"
            " answered_at REAL DEFAULT (julianday('now')), PRIMARY KEY (thread_id, run_id, question_id))"
        )
    else:
        table, answer = "cubepi_hitl_answers", "answer"
        id_ = "TEXT" if place.kind == "postgresql" else "VARCHAR(191)"
        time = "TIMESTAMPTZ" if place.kind == "postgresql" else "TIMESTAMP NULL"
        json = "JSONB" if place.kind == "postgresql" else "JSON"
        await place.execute(
            f"ALTER TABLE cubepi_messages ADD run_id {id_}",
            f"CREATE TABLE cubepi_runs (thread_id {id_}, run_id {id_}, claimed_at {time}, completed_at {time},"
            " completion_seq BIGINT, PRIMARY KEY (thread_id, run_id))",
            f"CREATE TABLE {table} (thread_id {id_}, run_id {id_}, question_id {id_}, {answer} {json},"
            f" answered_at {time} DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (thread_id, run_id, question_id))",
            "UPDATE cubepi_schema_version SET version = 5",
        )
    for ids in answers:
        insert = f"INSERT INTO {table} (thread_id, run_id, question_id, {answer})"
        await place.execute(f"{insert} VALUES ({', '.join(map(repr, ids))}, '\"yes\"')")


async def test_answers_are_found_by_what_their_ids_became(place: Place) -> None:
    """A question that was answered is pending no more: its id stands nowhere else, and perhaps that of its run."""
    await put_v3(place, partitioned=False)
    await add_thread(place, "another", THREAD)
    first = WITH_MESSAGES[0]
    await put_answers(place, (first, "", "ask "), (first, "run ", "other"), ("another", "", "ASK "))
    with pytest.raises(CubepiSchemaMismatch) as caught:
        await threadkeep.upgrade(place.url)
    assert "question 'ask '" in str(caught.value)
    assert "run 'run '" in str(caught.value)

    renamed = await threadkeep.upgrade(place.url, rename_ids=True)
    assert renamed == {id_: threadkeep.migrations.renamed_id(id_) for id_ in ("run ", "ask ", "ASK ")}
    async with place.checkpointer() as cp:
        assert await cp.load_hitl_answer(first, renamed["ask "]) == "yes"
        assert await cp.load_hitl_answer(first, "other", run_id=renamed["run "]) == "yes"
        assert await cp.load_hitl_answer("another", renamed["ASK "]) == "yes"


async def test_a_new_name_that_is_taken_is_refused_before_anything_is_changed(place: Place) -> None:
    await put_v3(place, partitioned=False)
    await add_thread(place, SPACED, THREAD)
    await add_thread(place, threadkeep.migrations.renamed_id(SPACED), THREAD)
    before = await place.run(everything)
    with pytest.raises(CubepiSchemaMismatch, match="there already"):
        await threadkeep.upgrade(place.url, rename_ids=True)
    assert await place.run(everything) == before


@pytest.mark.parametrize("rename_ids", [False, True])
async def test_one_that_an_old_worker_writes_at_the_last_moment(server_place: Place, rename_ids: bool) -> None:
    """After the upgrade has looked, before it keeps old workers out. On SQLite there is no such moment."""
    await put_v3(server_place, partitioned=False)

    def progress(step: str, done: int, total: int, within: bool) -> None:
        if step == "keeping old workers out":
            with ThreadPoolExecutor() as worker:
                worker.submit(asyncio.run, add_thread(server_place, SPACED, THREAD)).result()

    async def adopt() -> None:
        await threadkeep.upgrade(server_place.url, rename_ids=rename_ids, progress=progress)

    if not rename_ids:
        with pytest.raises(CubepiSchemaMismatch, match=re.escape(repr(SPACED))):
            await adopt()
        await threadkeep.upgrade(server_place.url, rename_ids=True)
    else:
        await adopt()
    async with server_place.checkpointer() as cp:
        late = await cp.load(threadkeep.migrations.renamed_id(SPACED))
        early = await cp.load(WITH_MESSAGES[0])
        assert late is not None
        assert early is not None
        assert late.messages == early.messages
