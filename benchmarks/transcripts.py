"""Messages of about 1 KB, whose texts are objects of their own, as they would be if they had come from a model.

A *transcript* is as an agent makes it: runs of ten, in which a user asks and tools are called. *Talk* is 1 KB of text
in each message, a user's and an assistant's in turns.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from threadkeep import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage
from threadkeep.messages import Usage

RUN = 10
"""Messages in a run."""

_SAID = "What had been planned at noon was forgotten by the evening, and somebody had to ask once more. "
_KILOBYTE = 1024
_USER, _ASSISTANT, _RESULT = _SAID * 9, _SAID * 7, _SAID * 8


def run_id_of(thread: str, number: int) -> str:
    return f"{thread}-run-{number:06}"


def transcript(thread: str, count: int) -> Iterator[Any]:
    """The first `count` messages of a thread."""
    runs = range(-(-count // RUN))
    return islice((message for number in runs for message in messages_of_run(run_id_of(thread, number))), count)


def talk(thread: str, count: int) -> Iterator[Any]:
    """So many messages of 1 KB of text."""
    for number in range(count):
        kind = (UserMessage, AssistantMessage)[number % 2]
        yield kind(content=[TextContent(text=f"{thread} {number}: {_SAID * 11}"[:_KILOBYTE])])


def messages_of_run(run: str) -> Iterator[Any]:
    """A question, four tools and what they gave, and the answer."""
    yield UserMessage(content=_text(run, _USER), timestamp=1_800_000_000.25, run_id=run)
    for number in range((RUN - 2) // 2):
        call = ToolCall(id=f"{run}-call-{number}", name="look_up", arguments={"query": "evening", "page": number})
        yield answer(run, call)
        yield ToolResultMessage(
            tool_call_id=call.id,
            tool_name=call.name,
            content=_text(run, _RESULT),
            timestamp=1_800_000_001.5,
            run_id=run,
        )
    yield answer(run)


def answer(run: str, *calls: ToolCall) -> AssistantMessage:
    """What the model says, with the tools that it asks for."""
    return AssistantMessage(
        content=[*_text(run, _ASSISTANT), *calls],
        stop_reason="tool_use" if calls else "stop",
        usage=Usage(input_tokens=1_200, output_tokens=240),
        timestamp=1_800_000_000.75,
        provider_id="provider",
        model_id="model",
        run_id=run,
    )


def _text(run: str, said: str) -> list[Any]:
    return [TextContent(text=f"{run}: {said}")]
