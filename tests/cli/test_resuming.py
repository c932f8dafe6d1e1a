"""`threadkeep resume`: what stands in the way of a thread's next run, and the repair of its transcript."""

import asyncio
import re
from typing import Any

import pytest

from cli.program import run, run_well
from threadkeep import (
    AssistantMessage,
    Completed,
    ConfirmRequest,
    HitlRequest,
    TextContent,
    ToolCall,
    UserMessage,
    open_checkpointer,
)

CLEAN = "nothing is in the way: the next run can begin"
OWNER = "worker-1.example.com:4711:0123456789ab"
SOON = 0.001
"""The ttl of what is to look as after a crash."""


def wants(*calls: tuple[str, str], run_id: str | None = None) -> AssistantMessage:
    """A message that asks for these calls, each an id and a tool."""
    return AssistantMessage(content=[ToolCall(id=id_, name=name, arguments={}) for id_, name in calls], run_id=run_id)


def squeezed(text: str) -> str:
    """Without the spaces that fill a line."""
    return re.sub(r" +\n", "\n", text)


async def crash(url: str) -> None:
    """A thread as a crash leaves it: something of each kind."""
    question = HitlRequest(question_id="q-1", payload=ConfirmRequest(prompt="Go on?"), created_at=1.0)
    async with open_checkpointer(url, owner=OWNER) as cp:
        await cp.claim_run("trip", "plain")
        await cp.append("trip", [wants(("call-1", "pay"), ("call-2", "mail"), run_id="plain")])
        await cp.checkpoints.save("trip", plan=["pay", "mail"], budget_spent_usd=0.25)
        await cp.save_pending_request("trip", question, run_id="plain")
        async with cp.runs.lease("trip", "leased", ttl=60):
            pass
        await cp.ledger.issue("trip", "call-1", "pay", {"to": "alice", "amount": 5}, ttl=SOON)
        await cp.ledger.issue("trip", "call-2", "mail", {"to": "bob"}, ttl=60)
        await asyncio.sleep(0.05)


async def test_resume_prints_all_that_is_in_the_way(url: str) -> None:
    await crash(url)

    told = squeezed(run_well("resume", url, "trip").out)
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    for pattern in (
        r"thread +trip\nstatus +active\n",
        rf"checkpoint +version 1 at seq 1, {time}, 0.25 USD spent\n",
        r"\npending request\n +question +q-1\n +of run +plain\n +asks +Go on\?\n",
        rf"\nopen runs\n.*\n +plain +claimed +claimed {time}, \d+ seconds? ago\n",
        rf"\n +leased +abandoned +claimed {time}, \d+ seconds? ago\n +was leased to {OWNER}\n",
        rf'\n +call-1 +unknown +pay\(to="alice", amount=5\)\n +issued {time}, \d+ seconds? ago\n +by {OWNER}\n',
        r'\n +call-2 +in flight +mail\(to="bob"\)\n',
        r"\ntool calls without a result\n.*\n +1 +call-1 +pay +plain\n +1 +call-2 +mail +plain\n",
        r"\nwhat to do\n +1\. Wait: (.*\n)+ +2\. .*ledger\.resolve\((.*\n)+ +3\. .*--repair(.*\n)+ +4\. Answer",
        r"\n +5\. .*cp\.runs\.lease\((.*\n)+ +6\. .*only its host knows",
    ):
        assert re.search(pattern, told), (pattern, told)
    assert CLEAN not in told


async def test_resume_says_when_nothing_is_in_the_way(url: str) -> None:
    async with open_checkpointer(url) as cp:
        await cp.claim_run("done", "run-1")
        await cp.append("done", [UserMessage(content=[TextContent(text="hello")], run_id="run-1")])
        await cp.ledger.once("done", "call-1", "add", {"x": 1, "y": 2}, lambda x, y: x + y)
        await cp.mark_run_complete("done", "run-1")
        await cp.threads.set_status("done", "completed")

    told = squeezed(run_well("resume", url, "done").out)
    assert told == f"thread      done\nstatus      completed\ncheckpoint  none\n\n{CLEAN}\n"


async def test_resume_shows_what_was_being_streamed(url: str) -> None:
    async with open_checkpointer(url) as cp:
        for piece in ("The tra", "in leaves at ", "nine."):
            await cp.parts.append("trip", "answer-1", "text", piece)
        await cp.parts.append("trip", "answer-1", "tool_call", {"day": "Monday"}, tool_name="trains")
        await cp.parts.append("trip", "answer-2", "json", {"x": [1, None]})

        told = squeezed(run_well("resume", url, "trip").out)
        last = r"last \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ seconds? ago"
        for pattern in (
            rf'\ndrafts\n.*\n +answer-1 +4 +The train leaves at nine\. → trains\(day="Monday"\)\n +{last}\n',
            rf'\n +answer-2 +1 +{{"x": \[1, null\]}}\n +{last}\n',
            r"\nwhat to do\n +1\. .*cp\.parts\.discard\(",
        ):
            assert re.search(pattern, told), (pattern, told)

        await cp.append("trip", [AssistantMessage(content=[], message_id="answer-1")])
        await cp.parts.discard("trip", "answer-2")
    assert CLEAN in run_well("resume", url, "trip").out


async def test_nothing_begins_in_a_thread_that_is_deleted(url: str) -> None:
    async with open_checkpointer(url) as cp:
        await cp.append("trip", [wants(("call-1", "pay"))])
        await cp.threads.soft_delete("trip")

        told = squeezed(run_well("resume", url, "trip").out)
        assert re.search(r"\ndeleted +\d{4}-.* UTC: it takes no writes until it is restored\n", told)
        assert re.search(r"\nwhat to do\n +1\. .*cp\.threads\.restore\(thread_id\)\.\n +2\. .*--repair", told)
        refused = run("resume", url, "trip", "--repair")
        assert (refused.code, refused.out) == (1, "")
        assert "threads.restore()" in refused.err
        await cp.threads.restore("trip")
    assert "deleted" not in run_well("resume", url, "trip").out


async def test_repair_appends_what_is_missing_and_says_what(url: str) -> None:
    async with open_checkpointer(url) as cp:
        await cp.append("trip", [wants(("call-1", "pay"), ("call-2", "mail"))])
        await cp.ledger.issue("trip", "call-1", "pay", {})
        await cp.ledger.complete("trip", "call-1", {"receipt": 7})

    told = squeezed(run_well("resume", url, "trip", "--repair").out)
    assert told.startswith("appended 2 results\n")
    assert re.search(r'\n +call-1 +pay → {"receipt":7}\n', told)
    assert re.search(r"\n +call-2 +mail → This tool call was interrupted", told)
    assert told.endswith(f"{CLEAN}\n")
    again = squeezed(run_well("resume", url, "trip", "--repair").out)
    assert again.startswith("nothing to repair: every tool call has a result\n\nthread ")
    async with open_checkpointer(url) as cp:
        data = await cp.load("trip")
        assert data is not None
        assert [(m.tool_call_id, m.is_error) for m in data.messages[1:]] == [("call-1", False), ("call-2", True)]


async def test_an_unknown_call_that_is_settled_first_gets_its_real_result(sqlite_url: str) -> None:
    async with open_checkpointer(sqlite_url) as cp:
        await cp.append("trip", [wants(("call-1", "pay"))])
        await cp.ledger.issue("trip", "call-1", "pay", {}, ttl=SOON)
        await asyncio.sleep(0.05)
        assert "unknown" in run_well("resume", sqlite_url, "trip").out
        await cp.ledger.resolve("trip", "call-1", Completed("paid"))

    assert "pay → paid" in run_well("resume", sqlite_url, "trip", "--repair").out


@pytest.mark.parametrize("how", ["issued", "leased"])
async def test_repair_keeps_out_of_the_way_of_a_worker_that_is_alive(how: str, sqlite_url: str) -> None:
    async with open_checkpointer(sqlite_url) as cp, cp.runs.lease("trip", "leased", ttl=60):
        run_id = "leased" if how == "leased" else None
        await cp.append("trip", [wants(("call-1", "pay"), run_id=run_id)])
        if how == "issued":
            await cp.ledger.issue("trip", "call-1", "pay", {}, ttl=60)
        refused = await asyncio.to_thread(run, "resume", sqlite_url, "trip", "--repair")

        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("threadkeep: a worker is at call 'call-1'")
        data = await cp.load("trip")
        assert data is not None
        assert len(data.messages) == 1


async def test_repair_leaves_a_thread_of_other_classes_alone(sqlite_url: str) -> None:
    # Such a host could not load a message of ours: every load of its thread would fail from then on.
    theirs: list[Any] = [
        {"kind": "theirs", "content": [{"type": "tool_call", "id": "call-1", "name": "pay"}]},
    ]
    async with open_checkpointer(sqlite_url, message_type=Any) as cp:
        await cp.append("theirs", theirs)

    assert re.search(r"\n +1 +call-1 +pay", run_well("resume", sqlite_url, "theirs").out)
    refused = run("resume", sqlite_url, "theirs", "--repair")
    assert (refused.code, refused.out) == (1, "")
    assert "call cp.repair(thread_id) in the program that has theirs" in refused.err
    async with open_checkpointer(sqlite_url, message_type=Any) as cp:
        data = await cp.load("theirs")
        assert data is not None
        assert data.messages == theirs


async def test_it_fits_into_80_columns_and_a_pipe_gets_no_colours(sqlite_url: str) -> None:
    uuid = "11111111-4444-4444-4444-121212121212"
    async with open_checkpointer(sqlite_url, owner="o" * 100) as cp:
        await cp.claim_run(uuid, uuid)
        await cp.append(uuid, [wants((uuid, "t" * 200), run_id=uuid)])
        await cp.ledger.issue(uuid, uuid, "t" * 200, {"blob": "word " * 100_000})
        async with cp.runs.lease(uuid, "x" * 120, ttl=60):
            pass
        await cp.parts.append(uuid, uuid, "text", "word " * 100_000)
        await cp.parts.append(uuid, "m" * 120, "text", "word")

    lines = run_well("resume", sqlite_url, uuid, env={"COLUMNS": "80"}).lines
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert any(f"  {uuid}  in flight  tttt" in line for line in lines)  # not folded
    assert "characters)" in "".join(lines)


@pytest.mark.parametrize("columns", [80, 60, 40])
async def test_a_narrow_terminal_loses_no_word(sqlite_url: str, columns: int) -> None:
    uuid = "11111111-4444-4444-4444-121212121212"
    async with open_checkpointer(sqlite_url) as cp:
        await cp.claim_run("thread", uuid)
        await cp.ledger.issue("thread", uuid, "pay", {"amount": 1})

    narrow = run_well("resume", sqlite_url, "thread", env={"COLUMNS": str(columns)})
    assert max(map(len, narrow.lines)) <= columns
    words = narrow.out.split()
    assert [words.count(word) for word in ("issued", "UTC,", "ago")] == [1, 2, 2]
    if columns == 80:  # else pieces of the ids stand between the words
        assert len(re.findall(r"UTC, \d+ seconds? ago", " ".join(words))) == 2
    runs = run_well("show", sqlite_url, "thread", env={"COLUMNS": str(columns)}).lines
    table = runs[runs.index("runs") + 2 :]
    assert uuid in "".join(line[:34].strip() if columns == 40 else line.strip() for line in table)


@pytest.mark.parametrize("columns", [80, 40, 30])
async def test_what_to_do_is_told_whole(sqlite_url: str, columns: int) -> None:
    async with open_checkpointer(sqlite_url) as cp:
        request = HitlRequest(question_id="q", payload=ConfirmRequest(prompt="?"), created_at=0)
        await cp.save_pending_request("thread", request)
        await cp.parts.append("thread", "m-1", "text", "half an")

    lines = run_well("resume", sqlite_url, "thread", env={"COLUMNS": str(columns)}).lines
    told = "".join(line.strip() for line in lines)
    assert "…" not in told.replace("(…)", "")
    assert "tx.clear_pending_request_if_matches(…)" in told
    assert any(line.split() == ["message", "parts"] for line in lines)


async def test_nothing_that_is_stored_can_command_the_terminal(sqlite_url: str) -> None:
    # Clear the screen, set the title, CSI in one character, NUL, text direction, rich's markup and emoji codes.
    hostile = "\x1b[2J \x1b]0;title\x07 \x9b31m \0 \u202eolleh [bold]loud[/] :smile:"
    reversing = "id-\u202e-reversed"
    call = {"type": "tool_call", "id": reversing, "name": hostile, "arguments": {}}
    async with open_checkpointer(sqlite_url, message_type=Any, request_type=Any, owner=reversing) as cp:
        await cp.claim_run(reversing, reversing)
        await cp.append(reversing, [{"content": [call], "run_id": reversing}, {"content": [call | {"id": hostile}]}])
        await cp.save_pending_request(reversing, {"payload": {"prompt": hostile}}, run_id=reversing)
        await cp.ledger.issue(reversing, reversing, reversing, {hostile: hostile})
        async with cp.runs.lease(reversing, reversing + "2", ttl=60):
            pass
        await cp.parts.append(reversing, reversing, "text", hostile)
        await cp.parts.append(reversing, reversing, reversing, {hostile: hostile}, tool_name=reversing)

    told = run_well("resume", sqlite_url, reversing)
    for outcome in (told, run("resume", sqlite_url, reversing, "--repair")):
        assert not set(outcome.out + outcome.err) & set("\x1b\x07\x9b\0\u202e\r")
    assert r"\u202eolleh [bold]loud[/] :smile:" in told.out
