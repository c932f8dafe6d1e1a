"""Values at the edge of what a release takes. Threadkeep would refuse some, but they are in people's databases."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from with_cubepi.old_library import module
from with_cubepi.old_worker import asked

NOT_NUMBERS = [float("nan"), float("inf"), float("-inf")]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def called(arguments: dict[str, Any], **fields: Any) -> Any:
    of = module("providers.base")
    call = of.ToolCall(id="call", name="tool", arguments=arguments)
    return of.AssistantMessage(content=[of.TextContent(text="x"), call], **fields)


def oddities() -> dict[str, Callable[[Any, str], Awaitable[None]]]:
    """By name. A release may refuse one of them, or the server it writes to."""
    of = module("providers.base")
    text = of.TextContent(text="x")

    def message(made: Callable[[], Any]) -> Callable[[Any, str], Awaitable[None]]:
        async def append(cp: Any, thread_id: str) -> None:
            await cp.append(thread_id, [made()])

        return append

    def extra(value: Any) -> Callable[[Any, str], Awaitable[None]]:
        async def save(cp: Any, thread_id: str) -> None:
            await cp.save_extra(thread_id, {"odd": value})

        return save

    async def pending_with_wide_numbers(cp: Any, thread_id: str) -> None:
        request = asked(thread_id)
        request.payload.details = {"wide": 10**40, "float": 1e300, "deep": nested(20)}
        await cp.save_pending_request(thread_id, request, run_id="r" * 64)

    return {
        "NaN in arguments": message(lambda: called({"odd": NOT_NUMBERS})),
        "NaN in details": message(
            lambda: of.ToolResultMessage(tool_call_id="c", tool_name="t", content=[text], details=NOT_NUMBERS)
        ),
        "NaN in metadata": message(lambda: of.UserMessage(content=[text], metadata={"odd": NOT_NUMBERS})),
        "NaN in extra": extra(NOT_NUMBERS),
        "infinite timestamp": message(lambda: of.UserMessage(content=[text], timestamp=float("inf"))),
        "deep arguments": message(lambda: called({"odd": nested(110)})),
        "deep metadata": message(lambda: called({}, metadata={"odd": nested(25)})),
        "deep extra": extra(nested(25)),
        "deeper extra": extra(nested(110)),
        "NUL in metadata": message(partial(called, {}, metadata={"nul\x00": "\x00"})),
        "NUL in extra": extra({"\x00": "a\x00b"}),
        "surrogate in extra": extra("\ud800"),
        "surrogate in a key of extra": extra({"\udfff": 1}),
        "digits": extra(10**1500),
        "digits in arguments": message(lambda: called({"odd": 10**1500})),
        "large": message(lambda: of.UserMessage(content=[of.TextContent(text="é" * 4_000_000)])),
        "other types in extra": extra({"tuple": (1, 2), "keys": {1: "a", None: "b", False: "c"}}),
        "empty": message(lambda: of.UserMessage(content=[])),
        "pending with wide numbers": pending_with_wide_numbers,
    }


async def write_oddities(cp: Any) -> dict[str, str]:
    """Write each to a thread of its own. Those that were refused, and why."""
    refused = {}
    for name, write in oddities().items():
        try:
            await write(cp, name)
        except Exception as error:  # whatever the release, its driver and the database make of it
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    return refused
