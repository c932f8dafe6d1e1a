"""Which messages need no proof, because their types alone say that they come back as they went in."""

import datetime
import decimal
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    RootModel,
    Tag,
    TypeAdapter,
    computed_field,
)
from pydantic import model_validator as validating

from threadkeep import AssistantMessage, Message, TextContent, UserMessage
from threadkeep.codec import Codec
from threadkeep.exact_types import exactness_of
from threadkeep.messages import ToolCall
from threadkeep.records import FORMAT_JSON, StoredMessage
from threadkeep.testing.samples import UNSTORABLE_VALUES, one_of_each, said, same


class Leaf(BaseModel):
    kind: Literal["leaf", "flower"] = "leaf"
    size: float = 1.0


class Root(BaseModel):
    kind: Literal["root"] = "root"
    depth: int = 0
    below: Optional["Root"] = None


class Plain(BaseModel):
    """A field of every kind that is known."""

    text: str = ""
    number: int = 0
    size: float = 0.0
    flag: bool = False
    nothing: None = None
    perhaps: str | None = None
    word: Literal["a", "b"] = "a"
    anything: Any = None
    names: list[str] = []
    things: list[Any] = []
    free: dict[str, Any] = {}
    bare: dict = {}  # type: ignore[type-arg] # as hosts write it
    leaf: Leaf = Leaf()
    either: Annotated[Leaf | Root, Field(discriminator="kind")] = Leaf()


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class LargerLeaf(Leaf):
    shade: str = "green"


class SameLeaf(Leaf):
    pass


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


ODD_VALUES = [
    *(value for value, *_ in UNSTORABLE_VALUES),
    *(None, True, 0, 1, 1.0, -0.0, 1e308, 2**70, 10**999, 10**1000, float("nan"), float("inf")),
    *("", "a", "c", "é\0🙂", "\ud800", Text("a"), Word.A, Number.ONE, b"a", decimal.Decimal("1.5")),
    *(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.date(2026, 1, 1), datetime.timedelta(1)),
    *([], ["a"], [1, Leaf()], ("a",), {"a"}, frozenset("a"), nested(99), nested(100), nested(101)),
    *({}, {"a": 1}, {1: "a"}, {"a": Leaf()}, {"\ud800": 1}, {"kind": "leaf", "size": 1.0}),
    *(
        Leaf(),
        Leaf(kind="flower"),
        Leaf.model_construct(kind="tree"),
        Leaf.model_construct(size=1),
        LargerLeaf(),
        SameLeaf(),
    ),
    *(Root(), Root(below=Root()), Root.model_construct(below=Leaf()), Root.model_construct(kind="leaf")),
    object(),
]


def exactness(message_type: Any) -> Callable[[Any], bool]:
    found = exactness_of(TypeAdapter(message_type).core_schema)
    assert found is not None
    return found


def is_proved(message_type: Any, message: Any) -> bool:
    """Whether it comes back as it went in."""
    adapter: TypeAdapter[Any] = TypeAdapter(message_type)
    payload = adapter.dump_json(message, by_alias=False, round_trip=True)
    again = adapter.validate_json(payload, by_alias=False, by_name=True)
    return same(opened(again), opened(message))


def opened(value: Any) -> Any:
    """With models as dicts that tell their classes, so that what they hold is compared with its types."""
    if isinstance(value, BaseModel):
        return {"class": type(value).__name__, **{name: opened(item) for name, item in vars(value).items()}}
    if type(value) is dict:
        return {key: opened(item) for key, item in value.items()}
    return [*map(opened, value)] if type(value) is list else value


@pytest.mark.parametrize("name", Plain.model_fields)
def test_what_is_taken_for_exact_comes_back(name: str) -> None:
    is_exact = exactness(Plain)
    taken = 0
    for value in ODD_VALUES:
        message = Plain()
        setattr(message, name, value)
        if is_exact(message):
            taken += 1
            assert is_proved(Plain, message), value
    assert taken > 0
    assert taken < len(ODD_VALUES)


@pytest.mark.parametrize("name", Plain.model_fields)
def test_what_lacks_a_field_is_not_exact(name: str) -> None:
    message = Plain()
    assert exactness(Plain)(message)
    delattr(message, name)
    assert not exactness(Plain)(message)
    message.__dict__["other"] = None
    assert not exactness(Plain)(message)


def test_what_has_more_than_its_fields_is_not_exact() -> None:
    message = said("hello")
    assert exactness(Message)(message)
    message.__pydantic_extra__["role"] = "assistant"  # type: ignore[index] # it has one
    assert not exactness(Message)(message)
    other = Plain()
    other.__dict__["cached"] = 1
    assert not exactness(Plain)(other)


@pytest.mark.parametrize("message", one_of_each("run"), ids=lambda message: message.role)
def test_our_own_classes_are_exact(message: Any) -> None:
    assert exactness(Message)(message)
    assert is_proved(Message, message)


@pytest.mark.parametrize("message", one_of_each("run"), ids=lambda message: message.role)
def test_they_are_written_as_any_other(message: Any) -> None:
    """A class's own serializer writes what that of the whole union does."""
    (row,) = Codec().encode_messages([message])
    assert row.payload == TypeAdapter(Message).dump_json(message, by_alias=False, round_trip=True)


def test_plain_dicts_are_exact_if_they_are_json() -> None:
    is_exact = exactness(dict)
    assert is_exact({"role": "user", "content": [{"text": "é", "numbers": [1, 1.0, True, None]}]})
    assert not any(map(is_exact, ({1: 2}, {"a": (1,)}, {"a": Leaf()}, {"a": float("nan")}, [], "a", None)))


class Recursive(BaseModel):
    inside: list["Recursive"] = []


def test_types_may_refer_to_themselves() -> None:
    message = Recursive(inside=[Recursive(), Recursive(inside=[Recursive()])])
    assert exactness(Recursive)(message)
    message.inside[1].inside.append(Leaf())  # type: ignore[arg-type] # on purpose
    assert not exactness(Recursive)(message)


# By a function, which looks at the JSON of a Leaf and sees a Root.
Misread = Annotated[
    Annotated[Leaf, Tag("leaf")] | Annotated[Root, Tag("root")],
    Discriminator(lambda value: "leaf" if isinstance(value, Leaf) else "root"),
]


def upper(text: str) -> str:
    return text.upper()


class Checked(BaseModel):
    text: Annotated[str, AfterValidator(upper)] = ""


class Serialized(BaseModel):
    text: Annotated[str, PlainSerializer(upper)] = ""


class Short(BaseModel):
    text: str = Field("", max_length=3)


class Hidden(BaseModel):
    text: str = Field("", exclude=True)


class Renamed(BaseModel):
    text: str = Field("", alias="words")


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    text: str = ""


class Derived(BaseModel):
    text: str = ""

    @computed_field  # type: ignore[prop-decorator] # as pydantic's documentation has it
    @property
    def length(self) -> int:
        return len(self.text)


class Initialised(BaseModel):
    text: str = ""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{**values, "text": "other"})


class Late(BaseModel):
    text: str = ""

    def model_post_init(self, context: Any) -> None:
        self.text += "."


class Validated(BaseModel):
    text: str = ""

    @validating(mode="after")
    def change(self) -> "Validated":
        self.text += "."
        return self


class Inside(BaseModel):
    parts: list[Validated] = []


@pytest.mark.parametrize(
    "message_type",
    [
        *(Checked, Serialized, Short, Hidden, Renamed, Stripped, Derived, Initialised, Late, Validated, Inside),
        *(
            RootModel[str],
            BaseModel,
            Misread,
            Leaf | Root,
            tuple[str],
            set[str],
            datetime.datetime,
            dict[int, str],
            list[bytes],
        ),
    ],
)
def test_types_that_do_more_than_hold_values_are_proved(message_type: Any) -> None:
    assert exactness_of(TypeAdapter(message_type).core_schema) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), values, st.dictionaries(st.text(), values, max_size=3), st.floats(allow_nan=False))
def test_whatever_is_said_in_them(text: str, value: Any, free: dict[str, Any], time: float) -> None:
    messages: list[Any] = [
        UserMessage(content=[TextContent(text=text)], metadata=free),
        AssistantMessage(content=[ToolCall(id="a", name=text, arguments={"x": value})], metadata=free, timestamp=time),
    ]
    is_exact, codec = exactness(Message), Codec()
    exact = [message for message in messages if is_exact(message)]
    rows = codec.encode_messages(exact)
    stored = [StoredMessage(seq, FORMAT_JSON, row.payload) for seq, row in enumerate(rows, 1)]
    assert same(codec.decode_messages("thread", stored), exact)
