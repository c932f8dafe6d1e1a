"""The messages of the benchmark: 1 KB of text each, every second one the assistant's."""

from typing import Any

from threadkeep import AssistantMessage, TextContent, UserMessage

_SENTENCE = "What was said before is said again, in other words and at some length. "
TEXT = (_SENTENCE * 15)[:1024]


def typed_messages(count: int, run_id: str | None = None) -> list[Any]:
    """Of Threadkeep's own classes."""
    classes = (UserMessage, AssistantMessage)
    return [classes[number % 2](content=[TextContent(text=TEXT)], run_id=run_id) for number in range(count)]


def plain_messages(count: int) -> list[dict[str, Any]]:
    """Items as the OpenAI SDK keeps them."""
    kinds = (("user", "input_text"), ("assistant", "output_text"))
    return [
        {"role": role, "content": [{"type": part, "text": TEXT}]}
        for role, part in (kinds[number % 2] for number in range(count))
    ]
