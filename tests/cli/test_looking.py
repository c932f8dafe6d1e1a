"""`threadkeep threads`, `show` and `fork`, on every backend."""

import re
from typing import Any

import pytest
import sqlalchemy as sa

from cli.program import run, run_well
from threadkeep import ConfirmRequest, HitlRequest, TextContent, UserMessage, open_checkpointer
from threadkeep.migrations.upgrading import on_connection
from threadkeep.sql.tables import messages


def user(text: str, run_id: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], run_id=run_id)


async def fill(url: str, *thread_ids: str) -> None:
    """Threads with one completed run each, in this order."""
    async with open_checkpointer(url) as cp:
        for thread_id in thread_ids:
            await cp.claim_run(thread_id, "run-1")
            await cp.append(thread_id, [user(f"hello from {thread_id}", "run-1")])
            await cp.mark_run_complete(thread_id, "run-1")


def first_words(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


# ---- threads ---------------------------------------------------------------------------------------------


async def test_threads_lists_newest_first_in_pages(url: str) -> None:
    await fill(url, "oldest", "middle", "newest")

    assert first_words(run_well("threads", url).lines) == ["thread", "newest", "middle", "oldest"]
    page = run_well("threads", url, "--limit", "2").lines
    assert first_words(page[:-1]) == ["thread", "newest", "middle"]
    assert page[-1] == "there are more: add --after middle"
    rest = run_well("threads", url, "--limit", "2", "--after", "middle").lines
    assert first_words(rest) == ["thread", "oldest"]


async def test_threads_of_a_parent_are_its_forks(sqlite_url: str) -> None:
    await fill(sqlite_url, "source", "other")
    async with open_checkpointer(sqlite_url) as cp:
        await cp.fork("source", "copy", after_run_id="run-1")

    header, *rows = run_well("threads", sqlite_url, "--parent", "source").lines
    assert header.split()[:2] == ["thread", "parent"]
    assert [row.split()[:2] for row in rows] == [["copy", "source"]]
    assert run_well("threads", sqlite_url, "--parent", "other").lines == ["no threads"]


async def test_a_pipe_gets_long_ids_whole(sqlite_url: str) -> None:
    thread_id = "thread-" + "x" * 120
    await fill(sqlite_url, thread_id)

    assert thread_id in run_well("threads", sqlite_url).out
    folded = run_well("threads", sqlite_url, env={"COLUMNS": "80"}).lines
    assert max(map(len, folded)) <= 80
    assert "".join(line.split()[0] for line in folded[1:]) == thread_id


async def test_the_uuid_of_a_thread_is_not_folded_on_80_columns(sqlite_url: str) -> None:
    source, copy = (f"{digit * 8}-4444-4444-4444-121212121212" for digit in "12")
    await fill(sqlite_url, source)
    async with open_checkpointer(sqlite_url) as cp:
        await cp.fork(source, copy, after_run_id="run-1")

    lines = run_well("threads", sqlite_url, env={"COLUMNS": "80"}).lines
    assert first_words(lines) == ["thread", copy, source]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", [10, 20, 40, 52, 66, 72])
async def test_a_narrow_terminal_gets_the_ids_and_as_much_beside_them_as_there_is_room(
    sqlite_url: str, columns: int
) -> None:
    source, copy = (f"{digit * 8}-4444-4444-4444-121212121212" for digit in "12")
    await fill(sqlite_url, source)
    async with open_checkpointer(sqlite_url) as cp:
        await cp.fork(source, copy, after_run_id="run-1")

    def has_whole_ids(lines: list[str]) -> bool:
        assert max(map(len, lines)) <= columns
        words = first_words(lines)
        return words == ["thread", copy, source] if columns >= 36 else "".join(words) == f"thread{copy}{source}"

    narrow = {"COLUMNS": str(columns)}
    assert has_whole_ids(run_well("threads", sqlite_url, env=narrow).lines)
    async with open_checkpointer(sqlite_url) as cp:
        await cp.threads.set_status(copy, "cancelled")
    lines = run_well("threads", sqlite_url, env=narrow).lines
    assert sum("cancelled" in line for line in lines) == 1  # below the id, if there is no room beside it
    assert has_whole_ids([line for line in lines if line.strip() != "cancelled"])


async def test_a_status_is_shown_and_asked_for(url: str) -> None:
    source, copy = (f"{digit * 8}-4444-4444-4444-121212121212" for digit in "12")
    await fill(url, source)
    assert "status" not in run_well("threads", url).out
    async with open_checkpointer(url) as cp:
        await cp.fork(source, copy, after_run_id="run-1")
        await cp.threads.set_status(copy, "cancelled")

    for columns in ("80", "120"):
        lines = run_well("threads", url, env={"COLUMNS": columns}).lines
        assert first_words(lines) == ["thread", copy, source]  # not folded
        assert max(map(len, lines)) <= int(columns)
        assert [line.split()[-1] == "cancelled" for line in lines] == [False, True, False]
    assert first_words(run_well("threads", url, "--status", "active").lines) == ["thread", source]
    assert first_words(run_well("threads", url, "--status", "cancelled").lines) == ["thread", copy]
    assert run_well("threads", url, "--status", "failed").lines == ["no threads"]
    assert re.search(r"\nstatus +cancelled *\n", run_well("show", url, copy).out)
    assert "status" not in run_well("show", url, source).out


async def test_titles_stand_beside_the_ids_or_below_them(url: str) -> None:
    source, copy = (f"{digit * 8}-4444-4444-4444-121212121212" for digit in "12")
    async with open_checkpointer(url) as cp:
        await cp.threads.create(source, title="A week by the sea,\nwith four people and a bicycle " + "x" * 300)
        await cp.threads.create(copy, parent_thread_id=source)

    for columns in ("80", "100"):
        lines = run_well("threads", url, env={"COLUMNS": columns}).lines
        assert first_words(lines) == ["thread", copy, source, "A"]
        assert lines[-1].strip() == "A week by the sea, with four people…"
        assert max(map(len, lines)) <= int(columns)
    for columns in ("120", "200"):
        header, other, titled = run_well("threads", url, env={"COLUMNS": columns}).lines
        assert header.split()[-1] == "title"
        assert first_words([other, titled]) == [copy, source]  # not folded
        assert "  A week by the sea, with four " in titled
        assert max(len(other), len(titled)) <= int(columns)
    assert "title" not in run_well("threads", url, "--parent", source).out


async def test_a_thread_that_was_deleted_softly_is_listed_when_it_is_asked_for(url: str) -> None:
    uuid = "11111111-4444-4444-4444-121212121212"
    await fill(url, uuid, "stays")
    async with open_checkpointer(url) as cp:
        await cp.threads.soft_delete(uuid)

    assert first_words(run_well("threads", url).lines) == ["thread", "stays"]
    for columns in ("80", "100", "120"):
        lines = run_well("threads", url, "--deleted", env={"COLUMNS": columns}).lines
        assert first_words(lines) == ["thread", "stays", uuid]  # not folded
        assert [line.split()[-1] == "deleted" for line in lines] == [False, False, True]
        assert max(map(len, lines)) <= int(columns)
    page = run_well("threads", url, "--deleted", "--limit", "1").lines
    assert page[-1] == "there are more: add --after stays"
    assert re.search(
        r"\ndeleted +\d{4}-.* UTC: it takes no writes until it is restored", run_well("show", url, uuid).out
    )
    assert "deleted" not in run_well("show", url, "stays").out
    refused = run("fork", url, uuid, "copy", "--after", "run-1")
    assert (refused.code, refused.out) == (1, "")
    assert "threads.restore()" in refused.err


# ---- show ------------------------------------------------------------------------------------------------


async def test_show_prints_the_whole_thread(url: str) -> None:
    await fill(url, "parent")
    async with open_checkpointer(url) as cp:
        await cp.fork("parent", "child", after_run_id="run-1", metadata={"why": "to see"})
        await cp.claim_run("child", "run-2")
        await cp.append("child", [user("and on", "run-2"), user("an old one")])
        request = HitlRequest(question_id="q-1", payload=ConfirmRequest(prompt="Go on?"), created_at=1.0)
        await cp.save_pending_request("child", request, run_id="run-2")

    shown = run_well("show", url, "child").out
    for pattern in (
        r"thread +child\n",
        r"fork of +parent, copied up to its seq 1\n",
        r"created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
        r'\nextra\n +fork +{"why": "to see"}\n',
        r"question +q-1\n +of run +run-2\n +asks +Go on\?\n",
        r"run-1 +1 +\d{4}-.*\d\d:\d\d:\d\d +\d{4}-",
        r"run-2 +open +\d{4}-",
        r"\n +1  user  run-1  hello from parent\n +2  user  run-2  and on\n +3  user +an old one\n",
    ):
        assert re.search(pattern, re.sub(r" +\n", "\n", shown)), (pattern, shown)


async def test_show_tells_titles_parents_and_what_is_in_the_context_window(url: str) -> None:
    async with open_checkpointer(url) as cp:
        await cp.threads.create("main", title="A week by the sea")
        await cp.threads.create("sub", parent_thread_id="main")
        ids = await cp.messages.append("main", [user(f"number {seq}") for seq in range(1, 9)])
        assert "context" not in run_well("show", url, "main").out
        await cp.context.swap("main", ids[:3], user("the first three"))
        assert re.search(r"\ncontext +1 summary and 5 of 8 messages *\n", run_well("show", url, "main").out)
        await cp.context.swap("main", ids[4:6], user("two of them"))

    shown = run_well("show", url, "main")
    assert re.search(r"\ncontext +2 summaries and 3 of 8 messages *\n", shown.out)
    assert re.search(r"\ntitle +A week by the sea *\n", shown.out)
    assert "the first three" not in shown.out  # the log is shown, and all of it
    assert [line.split()[0] for line in shown.lines[-8:]] == [str(seq) for seq in range(1, 9)]
    assert re.search(r"\nparent +main *\n", run_well("show", url, "sub").out)


async def test_show_gives_the_seqs_that_the_database_has(sqlite_url: str) -> None:
    # A thread that cubepi forked has gaps; one is made here by hand.
    await fill(sqlite_url, "gappy")
    async with open_checkpointer(sqlite_url) as cp:
        await cp.append("gappy", [user("second"), user("third")])
    statement = sa.delete(messages).where(messages.c.seq == 2)
    await on_connection(sqlite_url, lambda conn: conn.execute(statement))

    shown = run_well("show", sqlite_url, "gappy").lines
    assert [line.split()[0] for line in shown[-2:]] == ["1", "3"]
    assert shown[-1].endswith("third")


async def test_show_reads_messages_of_other_classes(sqlite_url: str) -> None:
    calls = [{"type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}]
    theirs: list[Any] = [
        {"role": "user", "content": "plain text"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"kind": "response", "parts": [{"part_kind": "text", "content": "in parts"}]},
        {"unheard": ["of"]},
        "not even an object",
    ]
    async with open_checkpointer(sqlite_url, message_type=Any, request_type=Any) as cp:
        await cp.append("theirs", theirs)
        await cp.save_pending_request("theirs", {"theirs": "too"})

    shown = run_well("show", sqlite_url, "theirs").lines
    assert [line.split(maxsplit=2)[1:] for line in shown[-5:-2]] == [
        ["user", "plain text"],
        ["assistant", '→ search({"q": "x"})'],
        ["response", "in parts"],
    ]
    assert shown[-2].endswith('{"unheard": ["of"]}')
    assert shown[-1].endswith("not even an object")
    assert any(line.endswith('asks      {"theirs": "too"}') for line in shown)


async def test_nothing_that_is_stored_can_command_the_terminal(sqlite_url: str) -> None:
    # Clear the screen, set the title, CSI in one character, NUL, text direction, rich's markup and emoji codes.
    hostile = "\x1b[2J \x1b]0;title\x07 \x9b31m \0 \u202eolleh [bold]loud[/] :smile:"
    reversing = "id-\u202e-reversed"
    async with open_checkpointer(sqlite_url, message_type=Any, request_type=Any) as cp:
        await cp.claim_run(reversing, reversing)
        await cp.append(reversing, [{"role": hostile, "content": hostile, "run_id": reversing}])
        await cp.save_extra(reversing, {hostile: hostile, "[red]:smile:[/]": [hostile]})
        await cp.save_pending_request(reversing, {"payload": {"prompt": hostile}}, run_id=reversing)
        await cp.threads.update(reversing, title=hostile)

    shown = run_well("show", sqlite_url, reversing)
    for outcome in (shown, run_well("threads", sqlite_url), run("show", sqlite_url, "\x1b[2J\u202e")):
        assert not set(outcome.out + outcome.err) & set("\x1b\x07\x9b\0\u202e\r")
    assert r"\u202eolleh [bold]loud[/] :smile:" in shown.out
    assert "[red]:smile:[/]" in shown.out


async def test_long_texts_are_shortened_and_say_so(sqlite_url: str) -> None:
    async with open_checkpointer(sqlite_url) as cp:
        await cp.append("long", [user("word " * 100_000), user("short")])
        await cp.save_extra("long", {"blob": "x" * 1_000_000})

    outcome = run_well("show", sqlite_url, "long")
    assert len(outcome.out) < 2_000
    assert "… (500,000 characters)" in outcome.out
    assert "… (1,000,002 characters)" in outcome.out
    assert outcome.lines[-1].split() == ["2", "user", "short"]


async def test_show_keeps_to_the_last_messages(sqlite_url: str) -> None:
    async with open_checkpointer(sqlite_url) as cp:
        await cp.append("many", [user(f"number {seq}") for seq in range(1, 151)])

    shown = run_well("show", sqlite_url, "many").lines
    assert shown[-1] == "the first 50 are not shown: add --last 150"
    assert shown[-2].endswith("number 150")
    assert not any(line.endswith("number 50") for line in shown)
    everything = run_well("show", sqlite_url, "many", "--last", "150").lines
    assert [line.split()[0] for line in everything[-150:]] == [str(seq) for seq in range(1, 151)]


# ---- fork ------------------------------------------------------------------------------------------------


async def test_fork_copies_and_says_how_much(url: str) -> None:
    await fill(url, "source")
    async with open_checkpointer(url) as cp:
        await cp.claim_run("source", "run-2")
        await cp.append("source", [user("not yet done", "run-2")])

    assert run_well("fork", url, "source", "copy", "--after", "run-1").lines == [
        "forked 'source' after run 'run-1': 'copy' has 1 message"
    ]
    again = run("fork", url, "source", "copy", "--after", "run-1")
    assert (again.code, again.out) == (1, "")
    assert "'copy' exists already" in again.err
    async with open_checkpointer(url) as cp:
        copy = await cp.load("copy")
        assert copy is not None
        assert [message.content[0].text for message in copy.messages] == ["hello from source"]
