"""Random values, messages and requests, of every kind that the release has and the database takes."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from with_cubepi.old_library import module

T = TypeVar("T")

WORDS = [
    "ok",
    "tool",
    "naïve",
    "données",
    "数据",
    "Ω",
    "🙂",
    "\U0001d54f",
    "e\u0301",
    'quote"',
    "back\\slash",
    "tab\t",
    "line\nbreak",
    "\u2028",
    '{"k": 1}',
    "<b>&amp;</b>",
    "%s %(x)s {y}",
    "\x7f\x1b[0m",
    "NULL",
    "1.0",
]
KEYS = ["k", "K", "", "a.b", "$x", "ключ", 'q"', "with space", "🙂", "key" * 20]
NUMBERS: list[int | float] = [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 1.0, 0.1, -0.5, 1e-7, 1e20, 1.5e300, -0.0]
WIDE: list[int | float] = [2**64, -(10**40), 123456789012345678901234567890]
STOP_REASONS = ["stop", "tool_use", "length", "error", "aborted"]


class Values:
    """Random values that this kind of database and release can both keep."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = random.Random(seed)  # noqa: S311 # the same data for the same seed; nothing is kept secret
        self._kind = kind
        self._messages = module("providers.base")
        self._requests = module("hitl.types")

    def some(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def text(self, *, nul: bool = True) -> str:
        words = WORDS + ["zero\x00byte"] * nul
        return " ".join(self.some(words) for _ in range(self.random.randint(0, 12)))

    def uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def moment(self) -> float | None:
        return self.random.uniform(1.6e9, 1.8e9) if self.likely(0.8) else None

    def json(self, depth: int = 0, *, nul: bool, wide: bool) -> Any:
        """Any JSON. PostgreSQL's JSONB refuses NUL, msgpack integers past 64 bits."""
        nested = 0.0 if depth > 4 else 0.4 if depth else 0.6
        if self.likely(nested):
            size = self.random.randint(0, 4)
            if self.likely(0.5):
                return [self.json(depth + 1, nul=nul, wide=wide) for _ in range(size)]
            return {self.some(KEYS): self.json(depth + 1, nul=nul, wide=wide) for _ in range(size)}
        leaves: list[Callable[[], Any]] = [
            lambda: None,
            lambda: self.likely(0.5),
            lambda: self.some(NUMBERS + (WIDE if wide else [])),
            lambda: self.random.uniform(-1e6, 1e6),
            lambda: self.text(nul=nul),
        ]
        return self.some(leaves)()

    def in_a_json_column(self) -> Any:
        """A value for a column that the server parses."""
        return self.json(nul=self._kind != "postgresql", wide=True)

    def json_object(self, *, wide: bool | None = None) -> dict[str, Any]:
        """An object for such a column. `wide` is false where msgpack has to take it too."""
        nul = self._kind != "postgresql"
        keys = [self.some(KEYS) for _ in range(self.random.randint(0, 3))]
        return {key: self.json(1, nul=nul, wide=wide is not False) for key in keys}

    def in_a_payload(self) -> Any:
        return self.json(nul=True, wide=self._kind == "sqlite")

    # ---- messages -----------------------------------------------------------------------------------------------

    def message(self, run_id: str | None = None) -> Any:
        make = self.some([self._user, self._assistant, self._assistant, self._tool_result])
        return make(run_id)

    def _user(self, run_id: str | None) -> Any:
        return self._make("UserMessage", run_id, content=self._contents([self._text, self._image]))

    def _assistant(self, run_id: str | None) -> Any:
        kinds = [self._text, self._text, self._image, self._thinking, self._tool_call]
        usage = {f"{name}_tokens": self.random.randint(0, 10**6) for name in ("input", "output", "cache_read")}
        optional = {
            "error_message": self.text(),
            "usage": self._messages.Usage(**usage),
            "response_id": self.uuid(),
            "error_type": "overloaded",
            "error_code": "529",
            "status_code": 529,
            "retry_after": 1.0,
            "tokens_in": 12,
            "context_window": 200_000,
        }
        return self._make(
            "AssistantMessage",
            run_id,
            content=self._contents(kinds),
            stop_reason=self.some(STOP_REASONS),
            provider_id=self.some(["", "anthropic"]),
            model_id=self.some(["", "m-1", self.text()]),
            **{name: value for name, value in optional.items() if self.likely(0.4)},
        )

    def _tool_result(self, run_id: str | None) -> Any:
        of_a_host = self._requests.ApproveAnswer(decision="edit", edited_args={"a": 1.0})
        return self._make(
            "ToolResultMessage",
            run_id,
            tool_call_id=f"call_{self.uuid()}",
            tool_name=self.some(["search", "书", "a/b"]),
            content=self._contents([self._text, self._image]),
            details=self.some([None, of_a_host, self.in_a_payload(), self.in_a_payload()]),
            is_error=self.likely(0.3),
        )

    def _make(self, name: str, run_id: str | None, **fields: Any) -> Any:
        """A message of that class, with those of the fields that this release's class has."""
        of_class = getattr(self._messages, name)
        # In the payload too, so that msgpack has to take it.
        metadata = self.json_object(wide=self._kind == "sqlite") if self.likely(0.6) else {}
        fields |= {
            "timestamp": self.moment(),
            "metadata": metadata,
            "run_id": run_id,
            "id": self.some(["", self.uuid()]),
        }
        return of_class(**{name: value for name, value in fields.items() if name in of_class.model_fields})

    def _contents(self, kinds: Sequence[Callable[[], Any]]) -> list[Any]:
        return [self.some(kinds)() for _ in range(self.some([0, 1, 1, 1, 2, 3]))]

    def _text(self) -> Any:
        text = "long " * 40_000 if self.likely(0.01) else self.text()
        return self._messages.TextContent(text=text)

    def _image(self) -> Any:
        return self._messages.ImageContent(source="data:" + self.uuid() * 20, media_type="image/png")

    def _thinking(self) -> Any:
        return self._messages.ThinkingContent(thinking=self.text())

    def _tool_call(self) -> Any:
        arguments = {self.some(KEYS): self.in_a_payload() for _ in range(self.random.randint(0, 3))}
        return self._messages.ToolCall(id=f"call_{self.uuid()}", name="search", arguments=arguments)

    # ---- human in the loop --------------------------------------------------------------------------------------

    def request(self, thread_id: str) -> Any:
        of = self._requests
        nul = self._kind != "postgresql"
        options = [of.Option(label=self.text(nul=nul), value="v", allow_input=self.likely(0.5))]
        question = of.Question(
            key="city",
            prompt=self.text(nul=nul),
            options=self.some([None, [], options]),
            multi_select=self.likely(0.5),
        )
        payloads = [
            of.ConfirmRequest(prompt=self.text(nul=nul), details=self.some([None, self.json_object()])),
            of.ApproveRequest(tool_name="book", tool_call_id=self.uuid(), args=self.json_object()),
            of.AskRequest(questions=[question] * self.random.randint(0, 2)),
        ]
        return of.HitlRequest(
            question_id=self.some([self.uuid(), f"question:{self.random.randint(1, 99)}"]),
            thread_id=self.some([None, thread_id]),
            payload=self.some(payloads),
            created_at=self.some([1.7e9, self.random.uniform(1.6e9, 1.8e9)]),
            timeout_seconds=self.some([None, 60.0, 0.5]),
        )

    def answer(self) -> Any:
        of_the_release = self._requests.ApproveAnswer(decision="deny", reason="too dear")
        return self.some([None, True, "yes", "", [], {}, of_the_release, *(self.in_a_json_column() for _ in range(4))])
