"""An agent whose conversation outgrows its context window. Old messages are summarized, and none is lost.

    python examples/compacting_agent.py
    python examples/compacting_agent.py postgresql://user@host/database

The models are scripted: no key, no network. Answers are stored piece by piece while they stream, and then appended.
Before each answer the agent estimates the tokens in its window. When they pass the budget, a summary takes the place of
the oldest messages in it, and later another one that of this summary. The log behind the window stays whole.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from textwrap import fill, indent, shorten
from typing import Any
from uuid import uuid4

import threadkeep
from threadkeep import (
    AssistantMessage,
    CheckpointerMethods,
    MessageRecord,
    StaleContextError,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    new_message_id,
)

BUDGET = 200
"""Tokens that the window may have before an answer."""
KEEP = 55
"""Tokens of the newest messages that a compaction leaves alone."""
PRICES = {"large": 3e-6, "small": 2e-7}
"""Dollars for a token, by model. The large one answers, the small one summarizes."""

QUESTIONS = [
    "We are four people and want to spend a week in May by the sea. Ada cannot eat nuts.",
    "Which trains go there on Monday?",
    "We take the first one. Bea travels with a bicycle.",
    "Which trains come back on Sunday?",
    "We take the second one. Where do we sleep? It should be a quiet house.",
    "Carl does not walk well. Is there a room on the ground floor?",
    "Which trains go to the lighthouse on Wednesday?",
    "We take the first one. What should we pack for such a week?",
    "Who of us cannot eat everything?",
]
LETTER = (
    "The landlord writes: the key is under the third stone by the gate, which is open from eight to ten. There is a"
    " boat, and whoever takes it out brings it back before dark. Be patient with the lamp."
)

Messages = Sequence[Any]
Summarize = Callable[[Messages], Awaitable[str]]


# ---- the agent -------------------------------------------------------------------------------------------------


async def turn(cp: CheckpointerMethods, thread_id: str, question: str) -> str:
    """Append the question, let the model use its tools, and return its answer."""
    await cp.append(thread_id, [user(question)])
    while True:
        await compact(cp, thread_id, small_model)
        said = await answer(cp, thread_id, await cp.context.load(thread_id))
        if not isinstance(said, ToolCall):
            return said
        result = ToolResultMessage(
            tool_call_id=said.id,
            tool_name=said.name,
            content=[TextContent(text=time_table(**said.arguments))],
        )
        await cp.append(thread_id, [result])


async def answer(cp: CheckpointerMethods, thread_id: str, window: Messages) -> str | ToolCall:
    """Store the model's answer, first piece by piece and then whole."""
    message_id = new_message_id()  # before there is a message: its parts hang on this
    said: str | ToolCall = ""
    async for piece in large_model(window):
        if isinstance(piece, ToolCall):
            await cp.parts.append(thread_id, message_id, "tool_call", piece.arguments, tool_name=piece.name)
            said = piece
        else:
            await cp.parts.append(thread_id, message_id, "text", piece)
            said = f"{said}{piece}"
    content = said if isinstance(said, ToolCall) else TextContent(text=said)
    message = AssistantMessage(content=[content], message_id=message_id)
    # Nobody finds an answer without what it took.
    async with cp.transaction() as tx:
        await tx.append(thread_id, [message])
        await write_down(tx, thread_id, message_id, "large", window, message)
    return said


async def compact(cp: CheckpointerMethods, thread_id: str, summarize: Summarize) -> None:
    """If the window has passed the budget, put a summary in the place of the oldest messages in it."""
    while True:
        window = await cp.context.records(thread_id)
        messages = [record.message for record in window]
        old = oldest(messages)
        if tokens(messages) <= BUDGET or not old:
            return
        # Nothing is locked while the model works: others may append, and even compact.
        summary, summary_id = user(await summarize(old)), new_message_id()
        # Also one that comes too late was paid for.
        await write_down(cp, thread_id, summary_id, "small", old, summary)
        removed, kept = window[: len(old)], messages[len(old) :]
        try:
            await cp.context.swap(thread_id, removed, summary, summary_id=summary_id)
        except StaleContextError:
            print("  somebody else has compacted meanwhile: looking again")
            continue
        print(f"  {counted(removed)} summarized: {tokens(messages)} -> {tokens([summary, *kept])} tokens")
        return


def oldest(window: Messages) -> Messages:
    """All but the newest KEEP tokens, and never the last message: that is to be answered."""
    first = len(window) - 1
    while first > 0 and tokens(window[first - 1 :]) <= KEEP:
        first -= 1
    # A tool's result stays with its call: models' APIs refuse one without the other.
    while first > 0 and window[first].role == "tool_result":
        first -= 1
    return window[:first] if first > 1 else []  # a summary alone would become no shorter


async def write_down(
    cp: CheckpointerMethods, thread_id: str, message_id: str, model: str, read: Messages, wrote: Any
) -> None:
    """Keep what the model has taken for a message."""
    taken, given = tokens(read), tokens([wrote])
    cost = (taken + given) * PRICES[model]
    await cp.usage.record(thread_id, message_id, input_tokens=taken, output_tokens=given, cost=cost, model_id=model)


# ---- what stands in for the models, and for a time table -------------------------------------------------------


async def large_model(window: Messages) -> AsyncIterator[str | ToolCall]:
    """Answers, six words at a time, or asks for a tool. It knows nothing but the window."""
    asked = next(message for message in reversed(window) if message.role == "user").content[0].text
    if window[-1].role == "tool_result":
        text = f"There are two trains, at {text_of(window[-1])}. Which one do you want to take?"
    elif asked.startswith("Which trains"):
        yield ToolCall(id=new_message_id(), name="time_table", arguments={"day": asked.rstrip("?").split()[-1]})
        return
    elif asked.startswith("Who of us"):
        text = next((said for said in sentences(window) if "cannot eat" in said), "I do not know") + "."
    else:
        text = "I have noted that, and will think of it when I look for something that suits all of you."
    words = text.split(" ")
    for start in range(0, len(words), 6):
        yield " " * (start > 0) + " ".join(words[start : start + 6])


async def small_model(old: Messages) -> str:
    """Summarizes: it keeps what travellers said of themselves, each thing once."""
    told = [said for said in sentences(old) if said.startswith(("We", "Ada", "Bea", "Carl"))]
    return ". ".join(dict.fromkeys(told)) + "."


def time_table(day: str) -> str:
    """The trains of a day."""
    return f"08:1{len(day)} and 15:4{len(day)} on {day}"


def sentences(messages: Messages) -> list[str]:
    """What was said, sentence by sentence."""
    return [said.strip() for message in messages for said in text_of(message).replace("?", ".").split(".")]


def text_of(message: Any) -> str:
    """What a message says, or asks a tool for."""
    return " ".join(part.text if isinstance(part, TextContent) else str(part.arguments) for part in message.content)


def tokens(messages: Messages) -> int:
    """An estimate, which is enough to know when to compact: four characters a token, and three for each message."""
    return sum(3 + len(text_of(message)) // 4 for message in messages)


# ---- the program -----------------------------------------------------------------------------------------------


def user(text: str) -> UserMessage:
    """A message of the user's, or a summary in the place of some."""
    return UserMessage(content=[TextContent(text=text)])


async def two_at_once(cp: CheckpointerMethods, thread_id: str) -> None:
    """While a worker waits for its summary, somebody goes on talking, and another worker compacts."""

    async def slow_model(old: Messages) -> str:
        await cp.append(thread_id, [user("Hello?")])
        await compact(cp, thread_id, small_model)
        return await small_model(old)

    await cp.append(thread_id, [user(LETTER)])
    await compact(cp, thread_id, slow_model)
    window = await cp.context.load(thread_id)
    print(f"  the window ends with: {text_of(window[-1])}")


async def account(cp: CheckpointerMethods, thread_id: str) -> None:
    """Compare the log with the window over it, and take a summary apart."""
    data, window = await cp.load(thread_id), await cp.context.load(thread_id)
    assert data is not None
    print("\n            messages  tokens")
    print(f"the log     {len(data.messages):8}  {tokens(data.messages):6}")
    print(f"the window  {len(window):8}  {tokens(window):6}")

    print("\nmodel  calls  tokens in  tokens out  dollars")
    for model, used in (await cp.usage.by_model(thread_id)).items():
        print(f"{model:5}  {used.answers:5}  {used.input_tokens:9}  {used.output_tokens:10}  {used.cost:.5f}")

    last = await cp.messages.last_summary(thread_id)
    assert last is not None
    print("\nthe last summary")
    print(indent(fill(text_of(last.message), 76), "  "))
    print("stands for")
    for entry in await cp.context.expand(thread_id, last):
        number = "summary" if entry.is_summary else f"seq {entry.seq}"
        print(f"  {number:>7}  {shorten(text_of(entry.message), 66, placeholder=' ...')}")
    under = [entry.message for entry in await cp.context.expand(thread_id, last, deep=True)]
    assert data.messages == under + window[1:]
    print(f"and in the end for the first {len(under)} messages of the log, which are as they were said")


def counted(records: Sequence[MessageRecord]) -> str:
    """How many summaries and messages these are."""
    summaries = sum(record.is_summary for record in records)
    return f"{summaries} summary and {len(records) - 1} messages" if summaries else f"{len(records)} messages"


async def main(url: str) -> None:
    """Hold the whole conversation."""
    # On a server the tables are made by a deploy step. This is ours.
    await threadkeep.upgrade(url)
    thread_id = f"trip-{uuid4().hex}"
    async with threadkeep.open_checkpointer(url) as cp:
        await cp.threads.create(thread_id, title="A week by the sea")
        for number, question in enumerate(QUESTIONS, start=1):
            said = await turn(cp, thread_id, question)
            window = await cp.context.load(thread_id)
            print(f"turn {number}: {len(window):2} in the window, {tokens(window)} tokens")
        print(f"  {QUESTIONS[-1]} {said}")
        print("two workers at once")
        await two_at_once(cp, thread_id)
        await account(cp, thread_id)
        await cp.threads.delete(thread_id)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/agent.db"))
