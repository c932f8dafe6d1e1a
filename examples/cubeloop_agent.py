"""A cubeloop agent on Threadkeep: it asks a human, is resumed by another, and its thread is forked.

    pip install threadkeep 'cubeloop>=0.15,<0.16'
    python examples/cubeloop_agent.py                            # on a SQLite file in a temporary folder
    python examples/cubeloop_agent.py postgresql://user@host/db  # or on a server, with its driver installed

The model is scripted: no key, no network.
"""

import asyncio
import sys
import tempfile
from typing import Any
from uuid import uuid4

from cubeloop import Agent, Message
from cubeloop.agent.types import AgentEvent
from cubeloop.hitl import CheckpointedChannel, HitlRequest, ask_user_tool
from cubeloop.providers.faux import FauxProvider, faux_assistant_message, faux_tool_call

import threadkeep

QUESTION = faux_tool_call("ask_user", {"questions": [{"key": "city", "prompt": "Where would you like to go?"}]})


def open_checkpointer(url: str) -> Any:
    """All that is loaded comes back as cubeloop's own classes, because they are given here."""
    return threadkeep.open_checkpointer(url, message_type=Message, request_type=HitlRequest)


def agent_for(checkpointer: Any, thread_id: str, run_id: str, *turns: Any) -> Agent[Message]:
    """An agent that may ask a human in this run, and whose model will say these turns."""
    provider = FauxProvider()
    provider.set_responses([faux_assistant_message(turn) for turn in turns])
    channel = CheckpointedChannel(checkpointer=checkpointer, thread_id=thread_id, run_id=run_id)
    agent: Agent[Message] = Agent(
        model=provider.model("scripted"),
        tools=[ask_user_tool(channel)],
        channel=channel,
        checkpointer=checkpointer,
        thread_id=thread_id,
    )

    async def let_go(event: AgentEvent, _: object) -> None:
        """Do not wait for the human: the question is in the database, and whoever has the answer resumes."""
        if event.type == "hitl_request":
            await agent.detach()

    agent.subscribe(let_go)
    return agent


async def show(checkpointer: Any, thread_id: str) -> None:
    """Print a thread."""
    thread = await checkpointer.load(thread_id)
    print(f"\n{thread_id}" + (f", forked from {thread.parent_thread_id}" if thread.parent_thread_id else ""))
    for message in thread.messages:
        said = [block.text if block.type == "text" else f"calls {block.name}" for block in message.content]
        print(f"  {message.run_id:10} {message.role:12} {' '.join(' '.join(said).split())}")


async def main(url: str) -> None:
    """Two checkpointer objects on one database: they might as well be two machines."""
    await threadkeep.upgrade(url)
    trip = f"trip-{uuid4().hex[:6]}"

    async with open_checkpointer(url) as checkpointer:
        agent = agent_for(checkpointer, trip, "plan", QUESTION)
        await agent.prompt("Plan my trip", run_id="plan")

    async with open_checkpointer(url) as checkpointer:
        request, run_id = await checkpointer.load_pending(trip)
        print(f"run {run_id!r} is waiting for a human: {request.payload.questions[0].prompt}")
        agent = agent_for(checkpointer, trip, run_id, "Porto, by plane.")
        await agent.respond(answer={"city": "Porto"})
        await show(checkpointer, trip)

        branch = f"{trip}-by-train"
        await agent.fork(trip, branch, after_run_id="plan", metadata={"label": "without flying"})
        agent = agent_for(checkpointer, branch, "no-plane", "Porto, by train.")
        await agent.prompt("And without flying?", run_id="no-plane")
        await show(checkpointer, branch)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/agent.db"))
