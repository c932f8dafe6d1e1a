"""Messages and requests to bytes and back, for every kind of type a host may bring."""

# mypy: disable-error-code=misc
# It has no aliases that come back to themselves, as cubepi's do.

import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, SerializeAsAny, computed_field
from typing_extensions import TypeAliasType, TypedDict

from threadkeep import (
    CheckpointCorruptionError,
    InvalidIdError,
    Message,
    MessageTooLargeError,
    UnstorableValueError,
    UserMessage,
)
from threadkeep.codec import Codec
from threadkeep.records import FORMAT_JSON, FORMAT_MSGPACK, Mirror, StoredMessage
from threadkeep.testing.samples import REQUESTS, UNSTORABLE_VALUES, asking, one_of_each, said, same

# As in `cubepi.types`: JSON as an alias that comes back to itself, and the same with any model among it.
JsonValue = TypeAliasType("JsonValue", str | int | float | bool | list["JsonValue"] | dict[str, "JsonValue"] | None)
StructuredValue = TypeAliasType(
    "StructuredValue",
    str
    | int
    | float
    | bool
    | SerializeAsAny[BaseModel]
    | list["StructuredValue"]
    | dict[str, "StructuredValue"]
    | None,
)


class Human(BaseModel):
    role: Literal["human"] = "human"
    text: str = ""
    run_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class Machine(BaseModel):
    role: Literal["machine"] = "machine"
    parts: list[Human] = []
    anything: Any = None


class Shape(BaseModel):
    """Without a role: a union of these is told apart by what fits."""

    corners: int


class Colour(BaseModel):
    red: float
    blue: float = 0.0


@dataclass
class Note:
    text: str
    run_id: str | None = None
    anything: Any = None
    inner: Optional["Note"] = None


@dataclass
class Heading:
    role: Literal["heading"]
    level: int = 1


@dataclass
class Paragraph:
    role: Literal["paragraph"]
    words: list[str] = field(default_factory=list)


class Turn(TypedDict):
    role: str
    text: str
    when: datetime.datetime


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int = 0


class Details(BaseModel):
    plain: JsonValue = None
    structured: StructuredValue = None


class Level(enum.Enum):
    LOW = "low"


class Typed(BaseModel):
    """Fields that are pydantic's to encode, none of which JSON has."""

    pair: tuple[int, str] = (1, "a")
    numbers: set[int] = {1, 2}
    raw: bytes = b"abc"
    at: datetime.datetime = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=datetime.UTC)
    price: decimal.Decimal = decimal.Decimal("1.10")
    id: uuid.UUID = uuid.UUID(int=7)
    by_number: dict[int, str] = {1: "one"}
    level: Level = Level.LOW


class Derived(BaseModel):
    model_config = ConfigDict(extra="forbid")
    half: int = 2

    @computed_field
    @property
    def double(self) -> int:
        return self.half * 4


class Embedded(BaseModel):
    document: Json[dict[str, int]]


class Bag(RootModel[dict[str, Any]]):
    pass


TURN: Turn = {"role": "x", "text": "hi", "when": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)}
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "our own union": (Message, one_of_each("run")),
    "union discriminated by its host": (
        Annotated[Human | Machine, Field(discriminator="role")],
        [Human(text="hi"), Machine(parts=[Human()], anything={"a": [1, 1.0, True, None]})],
    ),
    "plain union with roles": (Human | Machine, [Machine(), Human(metadata={"n": 10**30}), Machine()]),
    "plain union without roles": (Shape | Colour, [Shape(corners=3), Colour(red=0.5), Shape(corners=4)]),
    "one model": (Human, [Human(text="a\0b 🙂"), Human()]),
    "one dataclass": (Note, [Note("a", anything={"x": [None]}), Note("b", inner=Note("c", "run"))]),
    "dataclasses with roles": (Heading | Paragraph, [Paragraph("paragraph", ["a"]), Heading("heading", 2)]),
    "model or dataclass": (Human | Note, [Note("a"), Human()]),
    "typed dict": (Turn, [TURN]),
    "dict": (dict, [{"role": "x", "deep": {"list": [1, 1.0, True, None, "\0"]}}, {}]),
    "dict of anything": (dict[str, Any], [{"role": "x", "n": 2**70}]),
    "anything": (Any, [{"role": "x"}, "text", 7, None, [1.0]]),
    "text": (str, ["", "hi"]),
    "extra fields": (Open, [Open(known=1, more={"a": [1]}, n=1.0), Open()]),  # type: ignore[call-arg] # they are extra
    "recursive aliases": (Details, [Details(plain={"a": [1, {"b": None}]}, structured=[True, {"c": 1.5}]), Details()]),
    "typed fields": (Typed, [Typed(), Typed(numbers=set(), raw=b"")]),
    "computed fields": (Derived, [Derived(half=3)]),
    "embedded JSON": (Embedded, [Embedded(document='{"a": 1}')]),  # type: ignore[arg-type] # it takes text
    "root model": (Bag, [Bag({"a": [1, None]})]),
}


def there_and_back(codec: Codec, messages: list[Any]) -> list[Any]:
    return codec.decode_messages("thread", stored(codec, messages))


def stored(codec: Codec, messages: list[Any]) -> list[StoredMessage]:
    rows = codec.encode_messages(messages)
    return [StoredMessage(seq, row.format, row.payload) for seq, row in enumerate(rows, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_back_as_they_were(kind: str) -> None:
    message_type, messages = KINDS[kind]
    again = there_and_back(Codec(message_type), messages)
    assert again == messages
    assert [type(message) for message in again] == [type(message) for message in messages]


@pytest.mark.parametrize("kind", KINDS)
def test_so_do_requests(kind: str) -> None:
    request_type, requests = KINDS[kind]
    codec = Codec(request_type=request_type)
    for request in requests:
        if request is not None:
            _, text = codec.encode_request(request)
            again = codec.decode_request("thread", text)
            assert again == request
            assert type(again) is type(request)


def test_our_own_requests_come_back_with_their_question_id() -> None:
    for request in REQUESTS:
        question_id, text = Codec().encode_request(request)
        assert question_id == request.question_id
        assert Codec().decode_request("thread", text) == request


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper)
    text: str = "the default"


class Renamed(BaseModel):
    text: str = Field("the default", serialization_alias="shown_as")


class ByEither(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    text: str = Field("the default", alias="words")


@pytest.mark.parametrize(
    "message",
    [Camel(TEXT="mine"), Renamed(text="mine"), ByEither(text="mine")],  # type: ignore[call-arg] # by its alias
    ids=lambda message: type(message).__name__,
)
def test_a_field_with_an_alias_keeps_its_value(message: Any) -> None:
    assert there_and_back(Codec(type(message)), [message]) == [message]


class Loose(TypedDict):
    role: str
    anything: Any


@pytest.mark.parametrize("value", [(1, 2), {1: "int key"}, datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)])
def test_the_free_form_part_of_a_typed_dict_must_be_json_too(value: Any) -> None:
    message: Loose = {"role": "x", "anything": value}
    with pytest.raises(UnstorableValueError) as caught:
        there_and_back(Codec(Loose), [message])
    assert caught.value.path == "messages[0].anything"


def test_any_model_is_welcome_where_the_alias_takes_one() -> None:
    """It is stored as the JSON it dumps to, as cubepi does it, and its free-form parts must be JSON."""
    codec = Codec(Details)
    (again,) = there_and_back(codec, [Details(structured={"by": Human(text="me")})])
    assert again.structured == {"by": Human(text="me").model_dump()}
    with pytest.raises(UnstorableValueError) as caught:
        codec.encode_messages([Details(structured=[Human(metadata={"a": {1, 2}})])])
    assert caught.value.path == "messages[0].structured[0].metadata.a"


FREE_FORM: dict[str, tuple[Any, Any, str]] = {
    "Any field": (Machine, lambda value: Machine(anything=value), ".anything"),
    "dict field": (Human, lambda value: Human(metadata={"k": value}), ".metadata.k"),
    "nested model": (Machine, lambda value: Machine(parts=[Human(metadata={"k": value})]), ".parts[0].metadata.k"),
    "dataclass": (Note, lambda value: Note("a", inner=Note("b", anything=value)), ".inner.anything"),
    "extra field": (Open, lambda value: Open.model_construct(more=value), ".more"),
    "dict": (dict[str, Any], lambda value: {"k": value}, ".k"),
    "anything": (Any, lambda value: [value], "[0]"),
    "recursive alias": (Details, lambda value: Details.model_construct(plain={"k": value}), ".plain.k"),
    "root model": (Bag, lambda value: Bag({"k": value}), ".root.k"),
}


@pytest.mark.parametrize("where", FREE_FORM)
@pytest.mark.parametrize(("bad", "path"), UNSTORABLE_VALUES[:-1])  # the last is too deep, and deeper here
def test_what_is_no_json_in_a_free_form_part_is_refused_with_its_path(where: str, bad: Any, path: str) -> None:
    message_type, wrapped, root = FREE_FORM[where]
    with pytest.raises(UnstorableValueError) as caught:
        Codec(message_type).encode_messages([wrapped(1), wrapped(bad)])
    assert caught.value.path == f"messages[1]{root}{path}"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_typed_number_that_json_cannot_say_is_refused(number: float) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        Codec(Shape | Colour).encode_messages([Colour(red=1, blue=number)])
    assert caught.value.path == "messages[0].blue"


def test_bytes_that_pydantic_cannot_encode_are_refused() -> None:
    with pytest.raises(UnstorableValueError, match=r"messages\[0\]"):
        Codec(Typed).encode_messages([Typed(raw=b"\xff")])


@pytest.mark.parametrize("wrong", ["text", 7, None, {"role": "nobody"}, Shape(corners=3), object()])
def test_what_the_type_does_not_describe_is_refused(wrong: Any) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        Codec(Human | Machine).encode_messages([Human(), wrong])
    assert caught.value.path.startswith("messages[1]")


def test_a_field_that_was_broken_after_validation_is_refused() -> None:
    message = Human()
    message.text = 7  # type: ignore[assignment] # on purpose
    with pytest.raises(UnstorableValueError) as caught:
        Codec(Human).encode_messages([message])
    assert caught.value.path.startswith("messages[0]")


def test_a_refused_message_is_named_in_any_chunk() -> None:
    messages: list[Any] = [said("x")] * 2_500
    messages[2_300] = {"role": "user"}
    with pytest.raises(UnstorableValueError) as caught:
        Codec().encode_messages(messages)
    assert caught.value.path.startswith("messages[2300]")


@given(st.lists(st.text(), max_size=5))
def test_any_text_comes_back(texts: list[str]) -> None:
    assert there_and_back(Codec(), [said(text) for text in texts]) == [said(text) for text in texts]


def test_thousands_of_messages_keep_their_order() -> None:
    messages = [said(str(number)) for number in range(2_345)]
    assert there_and_back(Codec(), messages) == messages


# ---- rows that do not decode --------------------------------------------------------------------------


CORRUPT = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'{"role": "user"}',
    b'{"role": "nobody", "content": []}',
    b'{"role": "user", "content": []} trailing',
    b"\xff\xfe",
    # More or less than one message: the number of all could still be right.
    b'{"role": "user", "content": []}, {"role": "user", "content": []}',
]


@pytest.mark.parametrize("payload", CORRUPT)
@pytest.mark.parametrize("count", [1, 2_500])
def test_a_row_that_does_not_decode_is_named(payload: bytes, count: int) -> None:
    codec = Codec()
    rows = stored(codec, [said("x")] * count)
    seq = count - count // 10
    rows[seq - 1] = StoredMessage(seq, FORMAT_JSON, payload)
    with pytest.raises(CheckpointCorruptionError) as caught:
        codec.decode_messages("thread", rows)
    assert caught.value.table == "cubepi_messages"
    assert caught.value.key == {"thread_id": "thread", "seq": seq}
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [2, 7, -1, 32767])
def test_a_format_of_a_newer_release_is_named(number: int) -> None:
    codec = Codec()
    rows = stored(codec, [said("x")] * 3)
    rows[1] = rows[1]._replace(format=number)
    with pytest.raises(CheckpointCorruptionError, match=f"format is {number}") as caught:
        codec.decode_messages("thread", rows)
    assert caught.value.key == {"thread_id": "thread", "seq": 2}


def test_other_rows_that_do_not_decode_are_named() -> None:
    codec = Codec()
    with pytest.raises(CheckpointCorruptionError) as caught:
        codec.decode_request("thread", '{"question_id": 1}')
    assert (caught.value.table, caught.value.key) == ("cubepi_pending", {"thread_id": "thread"})
    with pytest.raises(CheckpointCorruptionError) as caught:
        codec.decode_answer("thread", "run", "question", "{")
    assert caught.value.table == "cubepi_hitl_answers"
    assert caught.value.key == {"thread_id": "thread", "run_id": "run", "question_id": "question"}
    for text in ("{", "[]", "7"):
        with pytest.raises(CheckpointCorruptionError) as caught:
            codec.decode_extra("thread", text)
        assert (caught.value.table, caught.value.key) == ("cubepi_threads", {"thread_id": "thread"})


# ---- what is stored beside the payload ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("message_type", "message"),
    [
        (Human, Human(run_id="run", metadata={"a": 1})),
        (dict[str, Any], {"role": "human", "run_id": "run", "metadata": {"a": 1}}),
    ],
)
def test_run_role_and_metadata_are_read_as_attributes_or_keys(message_type: Any, message: Any) -> None:
    (row,) = Codec(message_type).encode_messages([message])
    assert (row.run_id, row.role, row.metadata) == ("run", "human", '{"a":1}')


@pytest.mark.parametrize(("message_type", "message"), [(Shape, Shape(corners=3)), (str, "text"), (dict, {})])
def test_a_type_that_has_none_of_them_stores_none(message_type: Any, message: Any) -> None:
    (row,) = Codec(message_type).encode_messages([message])
    assert (row.run_id, row.role, row.metadata) == (None, "", "{}")


@pytest.mark.parametrize("bad", ["", " edge", "a" * 256, 7])
def test_a_bad_run_id_is_refused_and_named(bad: Any) -> None:
    with pytest.raises(InvalidIdError) as caught:
        Codec(dict).encode_messages([{}, {"run_id": bad}])
    assert caught.value.name == "messages[1].run_id"
    with pytest.raises(InvalidIdError) as caught:
        Codec(request_type=dict).encode_request({"question_id": bad})
    assert caught.value.name == "request.question_id"


@pytest.mark.parametrize(
    "metadata",
    [
        {"n": "\0"},
        {"\0": 1},
        {"n": 2**63},
        {"n": [[-(2**63) - 1]]},
        {"n": "x" * 70_000},
        {"n": [[[[[[[[1]]]]]]]] * 9_999},
    ],
)
def test_metadata_that_some_server_would_refuse_is_not_mirrored_but_kept(metadata: dict[str, Any]) -> None:
    codec = Codec()
    (row,) = codec.encode_messages([UserMessage(content=[], metadata=metadata)])
    assert row.metadata == "{}"
    (again,) = codec.decode_messages("thread", [StoredMessage(1, row.format, row.payload)])
    assert same(again.metadata, metadata)


# ---- limits -------------------------------------------------------------------------------------------


def test_the_limit_is_in_bytes_and_inclusive() -> None:
    codec = Codec(str, max_value_bytes=10)
    assert codec.encode_messages(["é" * 4])[0].payload == b'"' + "é".encode() * 4 + b'"'
    with pytest.raises(MessageTooLargeError) as caught:
        codec.encode_messages(["a", "é" * 4 + "a"])
    assert (caught.value.what, caught.value.size, caught.value.limit) == ("messages[1]", 11, 10)
    for call, what in (
        (lambda: codec.encode_request(asking()), "request"),
        (lambda: codec.encode_answer("x" * 9), "answer"),
        (lambda: codec.encode_object({"a": "x" * 9}, "extra"), "extra"),
    ):
        with pytest.raises(MessageTooLargeError) as caught:
            call()
        assert caught.value.what == what


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Codec(max_value_bytes=limit)


@pytest.mark.parametrize("value", [None, [], "text", 7, (("a", 1),), Open()])
def test_extra_is_a_dict(value: Any) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        Codec().encode_object(value, "extra")
    assert caught.value.path == "extra"


def test_an_answer_may_be_a_model() -> None:
    codec = Codec()
    text = codec.encode_answer({"by": Human(text="me"), "all": [Shape(corners=3)]})
    assert codec.decode_answer("t", "r", "q", text) == {
        "by": Human(text="me").model_dump(),
        "all": [{"corners": 3}],
    }
    with pytest.raises(UnstorableValueError) as caught:
        codec.encode_answer([Human(metadata={"a": (1,)})])
    assert caught.value.path == "answer[0].metadata.a"


# ---- rows that cubepi wrote ---------------------------------------------------------------------------


def by_cubepi(seq: int, message: Any, metadata: Any = None, run_id: str | None = None) -> StoredMessage:
    return StoredMessage(seq, FORMAT_MSGPACK, msgpack.packb(message), Mirror(metadata or {}, run_id))


def test_msgpack_and_json_may_follow_each_other() -> None:
    codec = Codec()
    messages = [said(str(number)) for number in range(2_100)]
    rows = stored(codec, messages)
    for seq in range(1, len(rows) + 1, 3):
        rows[seq - 1] = by_cubepi(seq, messages[seq - 1].model_dump(mode="json"))
    assert codec.decode_messages("thread", rows) == messages


def test_beside_msgpack_the_columns_are_the_truth() -> None:
    payload = {**said("x").model_dump(mode="json"), "metadata": {"old": 1}, "run_id": "renamed since "}
    (message,) = Codec().decode_messages("thread", [by_cubepi(1, payload, {"new": [1, 1.5, None]}, "run")])
    assert message.metadata == {"new": [1, 1.5, None]}
    assert message.run_id == "run"
    (message,) = Codec().decode_messages("thread", [by_cubepi(1, payload)])
    assert message.metadata == {}
    assert message.run_id == "renamed since "


def test_beside_msgpack_a_run_that_is_spelled_in_another_way_stays_so() -> None:
    """cubepi on MySQL took both for one, and read the payload's."""
    payload = {**said("x").model_dump(mode="json"), "run_id": "Run"}
    (message,) = Codec().decode_messages("thread", [by_cubepi(1, payload, {}, "run")])
    assert message.run_id == "Run"


def test_cubepis_messages_come_as_plain_dicts_too() -> None:
    payload = {"role": "user", "content": [], "float": 1.0, "int": 2**63 - 1, "text": "\0 🙂"}
    (message,) = Codec(message_type=dict[str, Any]).decode_messages("thread", [by_cubepi(1, payload)])
    assert same(message, {**payload, "metadata": {}})


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", msgpack.packb([]), msgpack.packb({"role": "user"})])
def test_msgpack_that_does_not_decode_is_named(payload: bytes) -> None:
    rows = stored(Codec(), [said("x")] * 3)
    rows[1] = StoredMessage(2, FORMAT_MSGPACK, payload, Mirror({}, None))
    with pytest.raises(CheckpointCorruptionError) as caught:
        Codec().decode_messages("thread", rows)
    assert caught.value.key == {"thread_id": "thread", "seq": 2}


@pytest.mark.parametrize(
    "arguments", ['{"a": NaN}', '{"a": -Infinity}', '{"a": "\\ud800"}', '{"a": ' + "[" * 300 + "]" * 300 + "}"]
)
def test_what_pythons_json_wrote_and_ours_would_refuse_is_read(arguments: str) -> None:
    """cubepi's SQLite files have it; nothing of ours does."""
    call = f'{{"type": "tool_call", "id": "1", "name": "f", "arguments": {arguments}}}'
    payload = f'{{"role": "assistant", "content": [{call}], "stop_reason": "stop"}}'.encode()
    (message,) = Codec().decode_messages("thread", [StoredMessage(1, FORMAT_JSON, payload)])
    assert repr(message.content[0].arguments) == repr(json.loads(arguments))


# ---- what would come back as something else --------------------------------------------------------------


class Priced(Human):
    cost: float = 0.0


class Nothing(Human):
    """A class of its own, with nothing of its own."""


class Texts(TypedDict):
    text: str


@dataclass
class Remark:
    text: str = ""


@dataclass
class PricedRemark(Remark):
    cost: float = 0.0


class Holder(BaseModel):
    details: BaseModel


class Chain(BaseModel):
    child: Optional["Chain"] = None


class Shadowed(BaseModel, extra="allow"):
    id: int = Field(alias="_id")


def chain_of(length: int) -> Chain:
    chain = Chain()
    for _ in range(length):
        chain = Chain.model_construct(child=chain)
    return chain


def in_a_circle() -> Chain:
    chain = Chain()
    chain.child = chain
    return chain


def changed_tag() -> Machine:
    message = Machine()
    message.role = "human"  # type: ignore[assignment] # on purpose: nothing keeps a host from it
    return message


@pytest.mark.parametrize(
    ("message_type", "message", "reason"),
    [
        (Human, Priced(cost=4.2), "something else"),
        (Human | Machine, Priced(cost=4.2), "something else"),
        (Machine, Machine(parts=[Priced(cost=4.2)]), "something else"),
        (Remark, PricedRemark(cost=4.2), "something else"),
        (Texts, {"text": "", "cost": 4.2}, "something else"),
        (Human | Machine, changed_tag(), "something else"),
        (Holder, Holder(details=Human()), "something else"),
        (Shadowed, Shadowed.model_validate({"_id": 1, "id": 5}), "name of a declared one"),
        (Chain, chain_of(300), "nested too deep"),
        (Chain, chain_of(2_000), "nested too deep"),
        (Chain, in_a_circle(), "nested too deep"),
    ],
    ids=[
        "subclass",
        "union-subclass",
        "inner-subclass",
        "dataclass",
        "typeddict",
        "tag",
        "any-model",
        "extra-like-a-field",
        "long",
        "longer",
        "circle",
    ],
)
def test_what_would_lose_something_is_refused(message_type: Any, message: Any, reason: str) -> None:
    """As a message, or as a request."""
    with pytest.raises(UnstorableValueError, match=reason):
        Codec(message_type).encode_messages([message])
    with pytest.raises(UnstorableValueError, match=reason):
        Codec(request_type=message_type).encode_request(message)


def test_a_subclass_that_has_nothing_more_is_stored_as_what_was_declared() -> None:
    codec = Codec(Human | Machine)
    messages = [Nothing(text="a"), Machine(parts=[Nothing(text="b")])]
    rows = codec.encode_messages(messages)
    stored = [StoredMessage(number, row.format, row.payload) for number, row in enumerate(rows, 1)]
    assert codec.decode_messages("thread", stored) == [Human(text="a"), Machine(parts=[Human(text="b")])]
