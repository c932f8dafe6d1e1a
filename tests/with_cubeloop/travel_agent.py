"""A cubeloop agent that asks where to go, wants leave to book, and books. Its model is scripted: no network.

Run as a program it is the other process, which knows nothing but a database and some ids:

    travel_agent.py prompt URL THREAD RUN        prompts, prints its events, and waits for a human in vain
    travel_agent.py respond URL THREAD RUN JSON  gives the human's answer and goes on to the next question
"""

import asyncio
import json
import sys
from typing import Any

from cubeloop import (
    Agent,
    AgentToolResult,
    AssistantMessage,
    BoundModel,
    Message,
    Model,
    TextContent,
    ToolResultMessage,
    UserMessage,
    tool,
)
from cubeloop.agent.types import AgentEvent, BeforeToolCallContext
from cubeloop.hitl import (
    ApprovalDecision,
    ApprovalPolicyMiddleware,
    Approve,
    ApproveAnswer,
    AskUser,
    CheckpointedChannel,
    HitlRequest,
    ask_user_tool,
)
from cubeloop.providers.faux import FauxProvider, faux_assistant_message, faux_tool_call
from pydantic import BaseModel

import threadkeep

TYPES: dict[str, Any] = {"message_type": Message, "request_type": HitlRequest}

BOOK_LIMA = "Book a week in Lima"
PLAN_A_TRIP = "Plan my trip"
WHERE_TO = "Where would you like to go?"
CALL_OF_ASK = "call-ask"
CALL_OF_BOOK = "call-book"


class Booking(BaseModel):
    """What a tool gives back beside its text: a model of the host's, inside a message of the framework's."""

    city: str
    nights: int


async def book(city: str, nights: int) -> AgentToolResult:
    """Book a hotel."""
    text = f"{nights} nights in {city}"
    return AgentToolResult(content=[TextContent(text=text)], details=Booking(city=city, nights=nights))


book_tool = tool(book)


def next_turn(messages: list[Message], _: Model) -> AssistantMessage:
    """The model's part. It depends on nothing but the messages, so that any process can play it."""
    match messages[-1]:
        case ToolResultMessage(tool_name="ask_user", details={"hitl": {"answers": {"city": city}}}):
            return calling("book", {"city": city, "nights": 2}, CALL_OF_BOOK)
        case ToolResultMessage(tool_name="book") as booked:
            return faux_assistant_message(f"Booked: {text_of(booked)}")
        case UserMessage() as said if text_of(said) == PLAN_A_TRIP:
            return calling("ask_user", {"questions": [{"key": "city", "prompt": WHERE_TO}]}, CALL_OF_ASK)
        case UserMessage() as said if text_of(said) == BOOK_LIMA:
            return calling("book", {"city": "Lima", "nights": 7}, CALL_OF_BOOK)
        case UserMessage() as said:
            return faux_assistant_message(f"You said: {text_of(said)}")
        case other:
            raise AssertionError(f"no turn for a {type(other).__name__}: it did not come back as it went in")


def calling(name: str, arguments: dict[str, Any], call_id: str) -> AssistantMessage:
    """A turn in which the model wants a tool."""
    return faux_assistant_message(faux_tool_call(name, arguments, id=call_id), stop_reason="tool_use")


def scripted_model() -> BoundModel:
    """More turns than any run here takes, all of them `next_turn`."""
    provider = FauxProvider(provider_id="faux")
    provider.set_responses([next_turn] * 20)
    return provider.model("scripted")


async def note_the_tool(call: BeforeToolCallContext, *, signal: object = None) -> None:
    """Something for the agent to keep in `extra`."""
    call.context.extra["last_tool"] = call.tool_call.name


async def leave_is_needed(call: BeforeToolCallContext) -> ApprovalDecision:
    """To book costs money; to ask does not."""
    await note_the_tool(call)
    return AskUser(details={"why": "it costs money"}) if call.tool_call.name == "book" else Approve()


def chatting_agent(checkpointer: Any, thread_id: str) -> Agent[Message]:
    """An agent that books without asking anybody."""
    return Agent(
        model=scripted_model(),
        tools=[book_tool],
        before_tool_call=note_the_tool,
        checkpointer=checkpointer,
        thread_id=thread_id,
    )


def travel_agent(checkpointer: Any, thread_id: str, run_id: str) -> Agent[Message]:
    """An agent that asks a human twice in this run: a question, and leave to book."""
    channel = CheckpointedChannel(checkpointer=checkpointer, thread_id=thread_id, run_id=run_id)
    return Agent(
        model=scripted_model(),
        tools=[ask_user_tool(channel), book_tool],
        middleware=[ApprovalPolicyMiddleware(channel, policy=leave_is_needed)],
        channel=channel,
        checkpointer=checkpointer,
        thread_id=thread_id,
    )


def pause_when_asking(agent: Agent[Message]) -> Agent[Message]:
    """The same agent, which now lets go of its run at each question: another process is to go on with it."""

    async def let_go(event: AgentEvent, _: object) -> None:
        if event.type == "hitl_request":
            await agent.detach()

    agent.subscribe(let_go)
    return agent


def text_of(message: Message) -> str:
    """All that it says."""
    return "".join(block.text for block in message.content if isinstance(block, TextContent))


async def respond(agent: Agent[Message], answer: Any) -> None:
    """Give the human's answer, as the class that cubeloop has for it."""
    request = await agent.load_pending_hitl_request()
    assert request is not None, "nothing is pending"
    if request.payload.kind == "approve":
        answer = ApproveAnswer.model_validate(answer)
    await agent.respond(question_id=request.question_id, answer=answer)


async def other_process(*arguments: str) -> asyncio.subprocess.Process:
    """Start this file as a program. What it prints can be read; its tracebacks go to our own stderr."""
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)


async def main(command: str, url: str, thread_id: str, run_id: str, answer: str = "") -> None:
    """The other process."""
    async with threadkeep.open_checkpointer(url, **TYPES) as checkpointer:
        agent = travel_agent(checkpointer, thread_id, run_id)
        if command == "respond":
            await respond(pause_when_asking(agent), json.loads(answer))
        else:
            agent.subscribe(lambda event, _: print(event.type, flush=True))
            await agent.prompt(PLAN_A_TRIP, run_id=run_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
