"""An agent's prompts: what it says is kept, as cubeloop's own classes and under the run that said it."""

import asyncio
from typing import Any

import cubeloop
import pytest

import threadkeep

from .travel_agent import BOOK_LIMA, chatting_agent, text_of


async def test_messages_come_back_as_the_very_classes_of_cubeloop(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    await agent.prompt(BOOK_LIMA)

    stored = (await checkpointer.load("t")).messages
    assert [type(message) for message in stored] == [
        cubeloop.UserMessage,
        cubeloop.AssistantMessage,
        cubeloop.ToolResultMessage,
        cubeloop.AssistantMessage,
    ]
    assert [message.model_dump() for message in stored] == [message.model_dump() for message in agent.state.messages]
    # The agent still holds the tool's own model here; the database, which does not know it, its fields.
    assert stored[2].details == {"city": "Lima", "nights": 7}
    assert text_of(stored[3]) == "Booked: 7 nights in Lima"


async def test_every_message_carries_the_run_that_made_it(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt(BOOK_LIMA)
    await agent.prompt("Thank you", run_id="mine")

    stored = (await checkpointer.load("t")).messages
    assert [message.run_id for message in stored] == [first] * 4 + ["mine"] * 2


async def test_runs_are_claimed_and_completed(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")
    first = await agent.prompt(BOOK_LIMA)
    second = await agent.prompt("Thank you")

    runs = await checkpointer.runs.list("t")
    assert [(run.run_id, run.completion_seq) for run in runs] == [(first, 1), (second, 2)]


async def test_extra_is_kept(checkpointer: Any) -> None:
    await chatting_agent(checkpointer, "t").prompt(BOOK_LIMA)

    assert (await checkpointer.load("t")).extra == {"last_tool": "book"}


async def test_another_agent_goes_on_with_the_thread(checkpointer: Any) -> None:
    first = chatting_agent(checkpointer, "t")
    await first.prompt(BOOK_LIMA)
    second = chatting_agent(checkpointer, "t")
    await second.prompt("Thank you")

    assert [text_of(message) for message in second.state.messages] == [
        BOOK_LIMA,
        "",
        "7 nights in Lima",
        "Booked: 7 nights in Lima",
        "Thank you",
        "You said: Thank you",
    ]
    assert second.state.extra == {"last_tool": "book"}
    assert (await checkpointer.load("t")).messages == second.state.messages


async def test_a_run_is_prompted_once(checkpointer: Any) -> None:
    agents = [chatting_agent(checkpointer, "t") for _ in range(5)]
    prompts = (agent.prompt("Hello", run_id="r") for agent in agents)
    results = await asyncio.gather(*prompts, return_exceptions=True)

    assert results.count("r") == 1
    refused = (threadkeep.RunAlreadyClaimedError, threadkeep.RunAlreadyCompletedError)
    assert sum(isinstance(result, refused) for result in results) == 4
    assert len((await checkpointer.load("t")).messages) == 2
    with pytest.raises(threadkeep.RunAlreadyCompletedError):
        await chatting_agent(checkpointer, "t").prompt("Hello again", run_id="r")


async def test_a_run_that_failed_stays_open(checkpointer: Any) -> None:
    agent = chatting_agent(checkpointer, "t")

    async def no_network(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    agent.transform_context = no_network
    failed = await agent.prompt("Hello")

    assert agent.state.error_message == "no network"
    (run,) = await checkpointer.runs.list("t")
    assert (run.run_id, run.completed_at) == (failed, None)
    assert (await checkpointer.load("t")).messages[-1].stop_reason == "error"
