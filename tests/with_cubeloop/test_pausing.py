"""A run that waits for a human, and goes on in another process."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cubeloop import ToolResultMessage
from cubeloop.hitl import ApproveRequest, AskRequest, HitlRequest

import servers

from .travel_agent import (
    CALL_OF_BOOK,
    PLAN_A_TRIP,
    WHERE_TO,
    other_process,
    pause_when_asking,
    text_of,
    travel_agent,
)

RespondElsewhere = Callable[[str, str, Any], Awaitable[None]]


async def paused(checkpointer: Any) -> None:
    """Thread "t" has run "r", and that waits for an answer."""
    agent = pause_when_asking(travel_agent(checkpointer, "t", "r"))
    assert await agent.prompt(PLAN_A_TRIP, run_id="r") == "r"
    assert agent.state.last_outcome == "suspended"


async def test_the_question_is_pending_under_its_run(checkpointer: Any) -> None:
    await paused(checkpointer)

    request, run_id = await checkpointer.load_pending("t")
    assert type(request) is HitlRequest
    assert type(request.payload) is AskRequest
    assert (request.thread_id, request.payload.questions[0].prompt, run_id) == ("t", WHERE_TO, "r")
    (run,) = await checkpointer.runs.list("t")
    assert run.completed_at is None


async def test_another_process_resumes_the_run(checkpointer: Any, respond_elsewhere: RespondElsewhere) -> None:
    await paused(checkpointer)

    await respond_elsewhere("t", "r", {"city": "Porto"})
    request, run_id = await checkpointer.load_pending("t")
    assert type(request.payload) is ApproveRequest
    assert (request.question_id, request.payload.args, run_id) == (
        CALL_OF_BOOK,
        {"city": "Porto", "nights": 2},
        "r",
    )

    await respond_elsewhere("t", "r", {"decision": "approve"})
    thread = await checkpointer.load("t")
    assert [text_of(message) for message in thread.messages[-2:]] == [
        "2 nights in Porto",
        "Booked: 2 nights in Porto",
    ]
    assert {message.run_id for message in thread.messages} == {"r"}
    assert thread.extra == {"last_tool": "book"}
    (run,) = await checkpointer.runs.list("t")
    assert (run.run_id, run.completion_seq) == ("r", 1)


async def test_the_humans_answer_reaches_the_tool(checkpointer: Any, respond_elsewhere: RespondElsewhere) -> None:
    await paused(checkpointer)
    await respond_elsewhere("t", "r", {"city": "Porto"})
    await respond_elsewhere("t", "r", {"decision": "edit", "edited_args": {"city": "Évora", "nights": 3}})

    messages = (await checkpointer.load("t")).messages
    asked, booked = (message for message in messages if isinstance(message, ToolResultMessage))
    assert asked.details == {"hitl": {"kind": "ask", "answers": {"city": "Porto"}}}
    assert text_of(booked) == "3 nights in Évora"
    assert booked.details == {
        # How cubeloop puts its own note beside what a tool gave back.
        "_non_dict_details": {"city": "Évora", "nights": 3},
        "hitl": {
            "decision": "edit",
            "original_args": {"city": "Porto", "nights": 2},
            "edited_args": {"city": "Évora", "nights": 3},
        },
    }


async def test_nothing_is_pending_afterwards(checkpointer: Any, respond_elsewhere: RespondElsewhere) -> None:
    await paused(checkpointer)
    await respond_elsewhere("t", "r", {"city": "Porto"})
    await respond_elsewhere("t", "r", {"decision": "deny", "reason": "too dear"})

    assert await checkpointer.load_pending("t") is None
    assert not await checkpointer.has_hitl_answer("t", CALL_OF_BOOK, run_id="r")


async def test_the_thread_goes_on_after_a_resume(checkpointer: Any, respond_elsewhere: RespondElsewhere) -> None:
    await paused(checkpointer)
    await respond_elsewhere("t", "r", {"city": "Porto"})
    await respond_elsewhere("t", "r", {"decision": "approve"})

    agent = travel_agent(checkpointer, "t", "next")
    await agent.prompt("Thank you", run_id="next")
    assert text_of((await checkpointer.load("t")).messages[-1]) == "You said: Thank you"
    assert [run.completion_seq for run in await checkpointer.runs.list("t")] == [1, 2]


# Not on memory, which a killed process takes with it.
@pytest.mark.parametrize("url", ["sqlite", *servers.SERVERS], indirect=True)
async def test_a_run_outlives_the_process_that_waited(
    url: str, checkpointer: Any, respond_elsewhere: RespondElsewhere
) -> None:
    process = await other_process("prompt", url, "t", "r")
    assert process.stdout is not None
    await process.stdout.readuntil(b"hitl_request\n")
    process.kill()
    await process.communicate()

    await respond_elsewhere("t", "r", {"city": "Porto"})
    await respond_elsewhere("t", "r", {"decision": "approve"})
    assert text_of((await checkpointer.load("t")).messages[-1]) == "Booked: 2 nights in Porto"


async def test_a_question_left_unanswered_can_be_aborted(checkpointer: Any) -> None:
    await paused(checkpointer)
    await travel_agent(checkpointer, "t", "r").abort_pending("nobody answered")

    assert await checkpointer.load_pending("t") is None
    assert (await checkpointer.load("t")).messages[-1].stop_reason == "aborted"
    (run,) = await checkpointer.runs.list("t")
    assert run.completed_at is None
