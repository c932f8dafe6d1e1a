"""Messages, requests, ids and values that the contracts are tried with."""

from __future__ import annotations

from typing import Any

from threadkeep.messages import (
    ApproveRequest,
    AskRequest,
    AssistantMessage,
    ConfirmRequest,
    HitlRequest,
    ImageContent,
    Option,
    Question,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)


def said(text: str, run_id: str | None = None, **metadata: Any) -> UserMessage:
    """A user's message."""
    return UserMessage(content=[TextContent(text=text)], run_id=run_id, metadata=metadata)


def texts(messages: list[Any]) -> list[str]:
    """What was said, for short comparisons."""
    return [message.content[0].text for message in messages]


def one_of_each(run_id: str | None = None) -> list[Any]:
    """A message of each class, with every field filled."""
    return [
        UserMessage(
            content=[TextContent(text="how much?"), ImageContent(source="aGk=", media_type="image/png")],
            timestamp=1_700_000_000.123456,
            metadata={"channel": "web"},
            run_id=run_id,
        ),
        AssistantMessage(
            content=[
                ThinkingContent(thinking="a sum"),
                TextContent(text="let me see"),
                ToolCall(id="call_1", name="add", arguments={"a": 1, "b": [2.5, None, True]}),
            ],
            stop_reason="tool_use",
            usage=Usage(input_tokens=3, output_tokens=4, cache_read_tokens=5, cache_write_tokens=6),
            timestamp=1_700_000_001.5,
            provider_id="provider",
            model_id="model",
            response_id="response",
            metadata={"nested": {"list": [1, {"x": None}]}},
            run_id=run_id,
        ),
        ToolResultMessage(
            tool_call_id="call_1",
            tool_name="add",
            content=[TextContent(text="3.5")],
            details={"hits": [1, {"u": "ü"}], "none": None},
            is_error=True,
            timestamp=None,
            metadata={},
            run_id=run_id,
        ),
        AssistantMessage(content=[], stop_reason="error", error_message="out of tokens", usage=None, run_id=run_id),
    ]


def asking(question_id: str = "question-1", prompt: str = "go on?") -> HitlRequest:
    """A pending request."""
    return HitlRequest(
        question_id=question_id,
        thread_id="thread",
        payload=ConfirmRequest(prompt=prompt),
        created_at=1_700_000_000.0,
    )


REQUESTS = [
    asking(),
    HitlRequest(
        question_id="approve",
        thread_id=None,
        payload=ApproveRequest(
            tool_name="pay", tool_call_id="call_1", args={"amount": 12.5, "to": "é\0"}, details={"a": 1}
        ),
        created_at=1.5,
        timeout_seconds=30.0,
    ),
    HitlRequest(
        question_id="ask",
        payload=AskRequest(
            questions=[
                Question(
                    key="q",
                    prompt="which?",
                    options=[Option(label="A", value="a", description="first", allow_input=True)],
                    multi_select=True,
                    required=False,
                ),
                Question(key="free", prompt="why?"),
            ]
        ),
        created_at=0.0,
    ),
]

GOOD_IDS = [
    "a",
    "Run-A",
    "user_2:conv",
    "with space inside",
    "Ünï-3",
    "日本語のスレッド",
    "👩\u200d💻",
    "a" * 255,
    "é" * 127,
    "𝕏" * 63,
    "'; DROP TABLE cubepi_threads; --",
    'quo"te\\back%_slash',
    "{curly} %s %(x)s :name ?",
]

BAD_IDS: list[Any] = [
    "",
    " ",
    " leading",
    "trailing ",
    "tab\t",
    "\u3000wide",
    "nul\0byte",
    "line\nbreak",
    "bell\x07",
    "del\x7f",
    "c1\x85inside",
    "lone\ud800surrogate",
    "a" * 256,
    "é" * 128,
    None,
    7,
    b"bytes",
    ["list"],
]

DIFFERENT_IDS = [
    ("Run-A", "run-a"),
    ("cafe", "café"),
    ("na\u00efve", "nai\u0308ve"),
    ("strasse", "straße"),
    ("ı", "i"),
    ("ﬁ", "fi"),
    ("1", "１"),
    ("zero", "zero\u200b"),
]

STORABLE_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    0.1,
    -0.0,
    1e-320,
    1.7976931348623157e308,
    1e16,
    2**53 + 1,
    2**63,
    -(2**64),
    10**999,
    "",
    "plain",
    "NUL \0 inside",
    "\x01\x1f\x7f\u2028\u2029",
    "emoji 👩\u200d👩\u200d👧 and 𝕏",
    "quote\" back\\slash 'single' %s :x {y}",
    "\ufffe\uffff",
    [],
    {},
    [[], {}, [None, [1, 1.0, True]]],
    {"": "empty key", "NUL\0key": 1, "emoji🙂": {"deep": [1, 2]}},
    {"1": 1, "1.0": 1.0, "true": True},
    "long " * 20_000,
]


def nested(levels: int) -> Any:
    """Lists in lists, this many."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


class Named(str):
    """A str that is not exactly one."""


HOSTILE_TEXTS = [
    *(
        "'",
        "''",
        "\\",
        "\\'",
        "\\\\'",
        "\\\\",
        '"',
        "`",
        "\0",
        "\x1a",
        "\n\r\t",
        "%",
        "%s %d %%",
        "?",
        ":thread",
        "$1",
        "{}",
    ),
    *(
        "'); DROP TABLE cubepi_threads; -- ",
        "\\'); DROP TABLE cubepi_threads; #",
        "/*",
        "*/",
        "-- ",
        "é' 🙂\\",
        "\u2028",
    ),
]
"""Texts that would be something else to a database, if they were not kept apart from its statements."""

UNSTORABLE_VALUES: list[tuple[Any, str]] = [
    (float("nan"), ""),
    (float("inf"), ""),
    ([1, float("-inf")], "[1]"),
    ({"a": {"b": (1, 2)}}, ".a.b"),
    ({"a": [0, {1, 2}]}, ".a[1]"),
    (b"bytes", ""),
    ({"when": object()}, ".when"),
    ({1: "int key"}, ""),
    ({"deep": {None: 1}}, ".deep"),
    ("lone \ud800 surrogate", ""),
    ({"key \udfff": 1}, "['key \\udfff']"),
    (10**1000, ""),
    (-(10**1000), ""),
    (Named("x"), ""),
    (nested(101), "[0]" * 100),
]


def same(left: Any, right: Any) -> bool:
    """Equal in type too, all the way down: 1, 1.0 and True are three values, and so are 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return bool(left.keys() == right.keys()) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    return bool(left == right)
