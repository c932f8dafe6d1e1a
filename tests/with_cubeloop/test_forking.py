"""Branches of a conversation: `Agent.fork`, which keeps one, and `Agent.fork_once`, which only looks."""

from typing import Any

import pytest
from cubeloop import AssistantMessage, TextContent, UserMessage

import threadkeep

from .travel_agent import BOOK_LIMA, PLAN_A_TRIP, chatting_agent, pause_when_asking, text_of, travel_agent


async def everything(checkpointer: Any) -> list[Any]:
    """All that the database holds, down to the moment each thread was last written."""
    threads = await checkpointer.threads.list()
    return [
        (
            thread,
            await checkpointer.load(thread.thread_id),
            await checkpointer.runs.list(thread.thread_id),
            await checkpointer.load_pending(thread.thread_id),
        )
        for thread in threads
    ]


async def test_a_fork_holds_the_thread_up_to_its_run(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt(BOOK_LIMA)
    await agent.prompt("Thank you")
    before = await everything(checkpointer)

    await agent.fork("t", "branch", after_run_id=first, metadata={"label": "what if"})

    source, branch = await checkpointer.load("t"), await checkpointer.load("branch")
    assert branch.messages == source.messages[:4]
    assert branch.parent_thread_id == "t"
    assert branch.extra == {"last_tool": "book", "fork": {"label": "what if"}}
    assert (await checkpointer.threads.get("branch")).forked_at_seq == 4
    assert [thread for thread in await everything(checkpointer) if thread[0].thread_id == "t"] == before


async def test_a_fork_can_be_continued(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt("Hello")
    await agent.fork("t", "branch", after_run_id=first)

    branched = chatting_agent(checkpointer, "branch")
    second = await branched.prompt("Somewhere else")
    await agent.prompt("Here")

    assert said_in(await checkpointer.load("branch")) == [
        "Hello",
        "You said: Hello",
        "Somewhere else",
        "You said: Somewhere else",
    ]
    assert said_in(await checkpointer.load("t")) == ["Hello", "You said: Hello", "Here", "You said: Here"]
    runs = await checkpointer.runs.list("branch")
    assert [(run.run_id, run.completion_seq) for run in runs] == [(first, 1), (second, 2)]


async def test_a_fork_can_be_forked(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt("Hello")
    await agent.fork("t", "branch", after_run_id=first)
    second = await chatting_agent(checkpointer, "branch").prompt("Again")

    await agent.fork("branch", "twig", after_run_id=second)
    await agent.fork("branch", "other twig", after_run_id=first)

    branch = await checkpointer.load("branch")
    assert (await checkpointer.load("twig")).messages == branch.messages
    assert (await checkpointer.load("other twig")).messages == branch.messages[:2]


async def test_a_fork_leaves_out_the_run_that_waits(checkpointer: Any) -> None:
    first = await chatting_agent(checkpointer, "t").prompt("Hello")
    agent = pause_when_asking(travel_agent(checkpointer, "t", "waiting"))
    await agent.prompt(PLAN_A_TRIP, run_id="waiting")

    await agent.fork("t", "branch", after_run_id=first)

    assert said_in(await checkpointer.load("branch")) == ["Hello", "You said: Hello"]
    assert await checkpointer.load_pending("branch") is None
    assert (await checkpointer.load_pending("t"))[1] == "waiting"


async def test_messages_from_before_there_were_runs_are_forked_along(checkpointer: Any) -> None:
    old = [
        UserMessage(content=[TextContent(text="Long ago")]),
        AssistantMessage(content=[TextContent(text="Indeed")]),
    ]
    await checkpointer.append("t", old)
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt("Hello")
    await agent.fork("t", "branch", after_run_id=first)

    branch = await checkpointer.load("branch")
    assert branch.messages[:2] == old
    assert [message.run_id for message in branch.messages] == [None, None, first, first]


@pytest.mark.parametrize(
    ("source", "target", "run", "error"),
    [
        ("nowhere", "branch", "done", threadkeep.ThreadNotFoundError),
        ("t", "branch", "waiting", threadkeep.RunNotCompletedError),
        ("t", "branch", "unheard of", threadkeep.RunNotCompletedError),
        ("t", "taken", "done", threadkeep.ThreadAlreadyExistsError),
    ],
)
async def test_what_cannot_be_forked(
    checkpointer: Any, source: str, target: str, run: str, error: type[Exception]
) -> None:
    await chatting_agent(checkpointer, "taken").prompt("Hello")
    await chatting_agent(checkpointer, "t").prompt("Hello", run_id="done")
    agent = pause_when_asking(travel_agent(checkpointer, "t", "waiting"))
    await agent.prompt(PLAN_A_TRIP, run_id="waiting")
    before = await everything(checkpointer)

    with pytest.raises(error):
        await agent.fork(source, target, after_run_id=run)
    assert await everything(checkpointer) == before


async def test_a_probe_sees_the_thread_up_to_its_run(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt("Hello")
    await agent.prompt("Goodbye")
    seen: list[list[str]] = []

    async def look(messages: list[Any], **_: object) -> list[Any]:
        seen.append([text_of(message) for message in messages])
        return messages

    agent.transform_context = look
    result = await agent.fork_once("t", BOOK_LIMA, after_run_id=first)

    assert seen[0] == ["Hello", "You said: Hello", BOOK_LIMA]
    assert (result.text, result.stop_reason) == ("Booked: 7 nights in Lima", "stop")
    assert len(result.messages) == 4


async def test_a_probe_writes_nothing(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt(BOOK_LIMA)
    before = await everything(checkpointer)

    result = await agent.fork_once("t", BOOK_LIMA, after_run_id=first)

    assert result.text == "Booked: 7 nights in Lima"
    assert await everything(checkpointer) == before


@pytest.mark.parametrize(
    ("source", "run", "error"),
    [
        ("nowhere", "done", threadkeep.ThreadNotFoundError),
        ("t", "unheard of", threadkeep.RunNotCompletedError),
    ],
)
async def test_what_cannot_be_probed(checkpointer: Any, source: str, run: str, error: type[Exception]) -> None:
    agent = chatting_agent(checkpointer, "t")
    await agent.prompt("Hello", run_id="done")

    with pytest.raises(error):
        await agent.fork_once(source, "And then?", after_run_id=run)


def said_in(thread: Any) -> list[str]:
    return [text_of(message) for message in thread.messages]
