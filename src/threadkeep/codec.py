"""Message and request classes to stored bytes and back. All encoding happens before a connection is taken."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, lru_cache, partial
from itertools import islice
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgpack
from pydantic import BaseModel, Discriminator, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json

from threadkeep import json_values, rules
from threadkeep.errors import CheckpointCorruptionError, UnstorableValueError
from threadkeep.exact_types import exactness_of
from threadkeep.fields import read_field, read_fields
from threadkeep.free_form import check_model, check_typed, free_keys, is_free_form, takes_any_model
from threadkeep.ids import check_id, check_optional_id, is_id
from threadkeep.json_values import Unstorable
from threadkeep.message_ids import check_given_id
from threadkeep.messages import HitlRequest, Message
from threadkeep.records import FORMAT_JSON, FORMAT_MSGPACK, MessageRow, StoredMessage
from threadkeep.rules import within
from threadkeep.searching import Searchable, search_text

T = TypeVar("T")

DEFAULT_MAX_VALUE_BYTES = 7 * 1024 * 1024

_CHUNK = 100
"""Rows decoded at once, also those that are only proved to be loadable. Few: a join of all would hold the data once
more, and what is small uses the same memory again and again, which is several times as fast."""

_MIRROR_BYTES = 32 * 1024
_MIRROR_DEPTH = 30
"""MySQL's JSON takes keys of 64 KiB, MariaDB's ends at depth 32. Nothing is ever read back from the mirror."""

_ROLE_LENGTH = 32


_OF_DICTS: TypeAdapter[list[Any]] = TypeAdapter(list[dict])  # type: ignore[type-arg] # as hosts write it
_PLAIN_DICTS = _OF_DICTS.core_schema


class Codec:
    """Encodes and decodes for one checkpointer, with the host's own types or with ours."""

    def __init__(
        self,
        message_type: Any = Message,
        request_type: Any = HitlRequest,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        searchable: Searchable = False,
    ) -> None:
        if max_value_bytes < 1:
            raise ValueError("max_value_bytes must be positive")
        if not isinstance(searchable, bool) and not callable(searchable):
            raise TypeError("searchable is True, False, or a function that gives a message's text or None")
        self.max_value_bytes = max_value_bytes
        self._searchable = searchable
        message_type = _told_apart_by_role(message_type)
        self._message: TypeAdapter[Any] = TypeAdapter(message_type)
        self._messages: TypeAdapter[list[Any]] = TypeAdapter(list[message_type])
        self._request: TypeAdapter[Any] = TypeAdapter(request_type)
        self._dump_message = _dumping_of(self._message)
        self._dump_request = _dumping_of(self._request)
        self._validate = _validation_of(self._messages)
        self._validate_request = _validation_of(self._request)
        self._check_message = _check_of(message_type)
        self._check_request = _check_of(request_type)
        self._is_exact = exactness_of(self._message.core_schema)
        self._dumping_of_class = _dumping_of_classes(self._dump_message)

    # ---- messages -------------------------------------------------------------------------------------------

    def encode_messages(
        self, messages: Sequence[Any], message_ids: Sequence[str | None] | None = None
    ) -> list[MessageRow]:
        """Encode all, or raise with the message's name: UnstorableValueError, InvalidIdError, MessageTooLargeError."""
        _require_several(messages)
        ids = message_ids if message_ids is not None else [None] * len(messages)
        if len(ids) != len(messages):
            raise ValueError(f"there are {len(messages)} messages and {len(ids)} message_ids")
        # Few messages leave none, and nearly every append is of one.
        with _no_garbage() if len(messages) > _CHUNK else nullcontext():
            doubtful: list[int] = []
            rows = [
                self._encode_message(message, index, given, doubtful)
                for index, (message, given) in enumerate(zip(messages, ids, strict=True))
            ]
            for start in range(0, len(doubtful), _CHUNK):
                self._prove_loadable(messages, rows, doubtful[start : start + _CHUNK])
        return rows

    def _encode_message(self, message: Any, index: int, given: str | None, doubtful: list[int]) -> MessageRow:
        name = f"messages[{index}]"
        own_id, run_id, role, metadata = read_fields(message)
        if given is None and own_id is not None:
            # A class may call it "" before there is one, or have a method of that name.
            given = None if own_id == "" or callable(own_id) else own_id
        message_id = None if given is None else check_given_id(f"{name}.message_id", given)
        run_id = None if run_id is None else check_id(f"{name}.run_id", run_id)
        payload = self._dump_exactly(message)
        if payload is None:
            doubtful.append(index)
            payload = _dump(self._dump_message, message, name, self._check_message)
        return MessageRow(
            within(payload, name, self.max_value_bytes),
            FORMAT_JSON,
            run_id,
            _role_mirror(role),
            _metadata_mirror(metadata) if metadata else "{}",
            message_id,
            search_text(self._searchable, message) if self._searchable else None,
        )

    def _dump_exactly(self, message: Any) -> bytes | None:
        """Encoded, if it is certain to come back; else None: then that must be proved, or it is said what is wrong."""
        try:
            if self._is_exact is None or not self._is_exact(message):
                return None
            return self._dumping_of_class(type(message))(message)
        except (RecursionError, PydanticSerializationError):
            return None

    def _prove_loadable(self, messages: Sequence[Any], rows: list[MessageRow], doubtful: list[int]) -> None:
        # A field assigned after validation, a class that is no message: both dump, and would never load again.
        try:
            decoded = self._validate(_joined([rows[index].payload for index in doubtful]))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place, *steps = first["loc"] or (0,)
            path = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in steps)
            raise UnstorableValueError(
                f"messages[{doubtful[int(place)]}]{path}",
                f"this is not what message_type describes and could not be loaded again: {first['msg']}",
            ) from None
        for index, again in zip(doubtful, decoded, strict=True):
            _require_the_same(self._message, again, messages[index], f"messages[{index}]")

    def decode_messages(self, thread_id: str, rows: Iterable[StoredMessage]) -> list[Any]:
        """The messages of these rows, in their order. One that does not decode raises CheckpointCorruptionError."""
        messages: list[Any] = []
        iterator = iter(rows)
        with _no_garbage():
            while chunk := list(islice(iterator, _CHUNK)):
                try:
                    decoded = self._decode_chunk(chunk)
                except ValueError:
                    decoded = [self._decode_message(thread_id, row) for row in chunk]
                messages += decoded
        return messages

    def _decode_chunk(self, rows: Sequence[StoredMessage]) -> list[Any]:
        decoded = self._validate(_joined([_json_of(row) for row in rows]))
        if len(decoded) != len(rows):
            raise ValueError("a payload holds more or less than one message")
        return decoded

    def _decode_message(self, thread_id: str, row: StoredMessage) -> Any:
        try:
            return self._decode_leniently(_json_of(row))
        except ValueError as error:
            table, number = ("cubepi_summaries", "number") if row.is_summary else ("cubepi_messages", "seq")
            raise CheckpointCorruptionError(
                table, {"thread_id": thread_id, number: row.seq}, _first_line(error)
            ) from error

    def _decode_leniently(self, payload: bytes) -> Any:
        """For one row: cubepi's SQLite files may hold what Python's own json module writes and pydantic's refuses."""
        try:
            (message,) = self._validate(_joined([payload]))
        except ValueError as strictly:
            try:
                plain = json_values.decode(payload.decode())
            except ValueError:
                raise strictly from None
            (message,) = self._messages.validate_python([plain], by_alias=False, by_name=True)
        return message

    # ---- requests -------------------------------------------------------------------------------------------

    def encode_request(self, request: Any) -> tuple[str | None, str]:
        """The request's question_id, if it has one, and its JSON text."""
        question_id = check_optional_id("request.question_id", read_field(request, "question_id"))
        payload = _dump(self._dump_request, request, "request", self._check_request)
        try:
            again = self._validate_request(payload)
        except ValidationError as error:
            reason = f"this is not what request_type describes and could not be loaded again: {_first_line(error)}"
            raise UnstorableValueError("request", reason) from None
        _require_the_same(self._request, again, request, "request")
        return question_id, within(payload, "request", self.max_value_bytes).decode()

    def decode_request(self, thread_id: str, text: str) -> Any:
        """The request that was encoded."""
        try:
            return self._validate_request(text)
        except ValueError as error:
            raise CheckpointCorruptionError("cubepi_pending", {"thread_id": thread_id}, _first_line(error)) from error

    # ---- free-form values -----------------------------------------------------------------------------------

    def encode_object(self, value: Any, name: str) -> str:
        """The JSON text of a dict."""
        if type(value) is not dict:
            raise UnstorableValueError(name, f"is a {type(value).__name__}, not a dict")
        json_values.checked(value, name)
        return within(json_values.encode(value), name, self.max_value_bytes)

    def encode_answer(self, answer: Any) -> str:
        """The JSON text of an answer. A pydantic model is stored as the JSON it dumps to."""
        json_values.checked(answer, "answer", otherwise=check_model)
        try:
            text = json_values.encode(answer)
        except (PydanticSerializationError, UnicodeError) as error:
            raise UnstorableValueError("answer", f"pydantic cannot encode it: {_first_line(error)}") from error
        return within(text, "answer", self.max_value_bytes)

    def decode_answer(self, thread_id: str, run_id: str, question_id: str, text: str) -> Any:
        """The answer that was encoded."""
        key = {"thread_id": thread_id, "run_id": run_id, "question_id": question_id}
        return _decode_json(text, "cubepi_hitl_answers", key)

    def encode_value(self, value: Any, name: str) -> str:
        """The JSON text of any free-form value."""
        return within(json_values.encode(json_values.checked(value, name)), name, self.max_value_bytes)

    def decode_value(self, text: str, table: str, key: dict[str, Any]) -> Any:
        """The value that was encoded, or CheckpointCorruptionError with its row."""
        return _decode_json(text, table, key)

    def make_message(self, fields: dict[str, Any]) -> Any:
        """A message of the host's type, of these fields. Raises ValidationError if its type has others."""
        return self._message.validate_python(fields, by_alias=False, by_name=True)

    def decode_extra(self, thread_id: str, text: str) -> dict[str, Any]:
        """The extra of a thread."""
        return rules.decoded_extra(thread_id, text)


def _require_several(messages: Any) -> None:
    """Raise TypeError for what is no list of messages: a string or a dict, for one, would be taken apart."""
    if type(messages) is not list and (isinstance(messages, str | bytes) or not isinstance(messages, Sequence)):
        raise TypeError(f"messages is a {type(messages).__name__}: pass a list of messages, also for a single one")


def _require_the_same(adapter: TypeAdapter[Any], again: Any, value: Any, name: str) -> None:
    """Raise UnstorableValueError for a value that would come back as something else."""
    with suppress(Exception):  # a host's own __eq__ may do anything, and pydantic's does not know its base class
        if again == value:
            return
    # Another of a union: somebody has changed the field that tells them apart.
    is_another = isinstance(value, BaseModel) and isinstance(again, BaseModel) and not isinstance(value, type(again))
    with suppress(Exception):
        if not is_another and _plain(adapter, again) == _plain(adapter, value):
            return
    if type(again) is type(value):
        raise UnstorableValueError(name, "it would come back as something else: its type does not describe all it has")
    raise UnstorableValueError(
        name,
        f"it is a {type(value).__name__} and would come back as something else, a {type(again).__name__}: store one of"
        f" those, or describe it by {'request_type' if name == 'request' else 'message_type'}",
    )


def _plain(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Without models: one in a free-form field is not equal to the dict it comes back as.

    With all that a value has, also where its class has more fields than the one that was declared.
    """
    return _without_models(adapter.dump_python(value, warnings="none", round_trip=True, serialize_as_any=True))


def _without_models(value: Any) -> Any:
    """What was dumped, whole: pydantic 2.11 leaves models in it, where a type takes any."""
    if isinstance(value, BaseModel):
        return _without_models(value.model_dump(round_trip=True))
    if type(value) is dict:
        return {key: _without_models(item) for key, item in value.items()}
    if type(value) is list:
        return [_without_models(item) for item in value]
    return value


def used_up(rows: list[T]) -> Iterator[T]:
    """The rows, each gone from the list once it is taken: else a long thread would be there twice while it decodes."""
    rows.reverse()
    while rows:
        yield rows.pop()


def _told_apart_by_role(message_type: Any) -> Any:
    """The same type, as a union discriminated by role where it allows that: several times faster to load."""
    members = get_args(message_type) if get_origin(message_type) in (Union, UnionType) else ()
    # Models always write their role; a TypedDict may leave it out.
    if not members or not all(isinstance(member, type) and issubclass(member, BaseModel) for member in members):
        return message_type
    by_role = Annotated[message_type, Discriminator("role")]
    try:
        TypeAdapter(by_role)
    except (PydanticUserError, TypeError):
        return message_type
    return by_role


def _validation_of(adapter: TypeAdapter[T]) -> Callable[[bytes | str], T]:
    """How JSON becomes messages or a request: by pydantic's JSON mode, which reads what its JSON mode wrote.

    Unless the type takes any model at all, as cubepi's `details` does: JSON mode makes every object an empty one there,
    where Python mode, given the decoded JSON, sees a dict.
    """
    if adapter.core_schema == _PLAIN_DICTS:
        return _plain_dicts  # type: ignore[return-value] # T is a list of dicts here
    if takes_any_model(adapter.core_schema):
        return lambda text: adapter.validate_python(from_json(text), by_alias=False, by_name=True)
    return partial(adapter.validator.validate_json, by_alias=False, by_name=True)


def _plain_dicts(text: bytes | str) -> list[Any]:
    """Messages that are just dicts. Their keys share memory, of which validation would take twice as much, and time."""
    decoded: list[Any] = from_json(text, cache_strings="keys")
    if not all(type(message) is dict for message in decoded):
        _OF_DICTS.validate_python(decoded)  # tells which one, and why
    return decoded


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Without collecting garbage: messages are made by the thousand here, none is any, and all would be looked at."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_of(annotation: Any) -> Callable[[Any], None]:
    """The walk that a value of this type goes through before it is encoded."""
    if is_free_form(annotation):
        return partial(json_values.check_json, otherwise=check_model)
    return partial(check_typed, free=free_keys(annotation))


def _dumping_of(adapter: TypeAdapter[Any]) -> Callable[[Any], bytes]:
    """How a message or a request becomes JSON.

    By the fields' own names, which no alias can make unreadable. What the type does not describe is refused by loading
    it again, with a better message than a warning's.
    """
    # False, because "none" says the same and takes twice as long.
    return partial(adapter.serializer.to_json, by_alias=False, warnings=False, round_trip=True)


def _dumping_of_classes(otherwise: Callable[[Any], bytes]) -> Callable[[Any], Callable[[Any], bytes]]:
    """How a message of exactly one class is dumped that is certain to come back.

    Its own serializer need not find out which of a union it is; and a class that does nothing but hold fields has no
    alias, and nothing else that its serializer would have to be asked about.
    """

    @cache
    def dumping_of(kind: Any) -> Callable[[Any], bytes]:
        if not issubclass(kind, BaseModel):
            return otherwise
        serializer: Any = kind.__pydantic_serializer__
        dump: Callable[[Any], bytes] = serializer.to_json
        return dump

    return dumping_of


def _dump(dump: Callable[[Any], bytes], value: Any, name: str, check: Callable[[Any], None]) -> bytes:
    try:
        check(value)
        return dump(value)
    except Unstorable as trouble:
        raise trouble.located(name) from None
    except RecursionError:
        raise UnstorableValueError(name, "it is nested too deep") from None
    except (PydanticSerializationError, UnicodeError) as error:
        raise UnstorableValueError(name, f"pydantic cannot encode it: {_first_line(error)}") from error


def _json_of(row: StoredMessage) -> bytes:
    """The row's message as JSON, however it is stored."""
    if row.format == FORMAT_JSON:
        return row.payload
    if row.format != FORMAT_MSGPACK:
        raise ValueError(f"its format is {row.format}, which this release cannot read")
    message = msgpack.unpackb(row.payload)
    if not isinstance(message, dict):
        raise ValueError("it is not an object")
    if row.mirror is not None:
        message["metadata"] = row.mirror.metadata
        if row.mirror.run_id is not None and not is_id(message.get("run_id")):  # the run has been renamed since
            message["run_id"] = row.mirror.run_id
    return to_json(message)


def _joined(payloads: list[bytes]) -> bytes:
    """One JSON array of these, which are some."""
    # In one copy, not in three.
    payloads[0] = b"[" + payloads[0]
    payloads[-1] += b"]"
    return b",".join(payloads)


def _role_mirror(role: Any) -> str:
    return _fitting_role(role if type(role) is str else str.__str__(role)) if isinstance(role, str) else ""


@lru_cache(maxsize=100)  # there are few
def _fitting_role(role: str) -> str:
    return role if len(role) <= _ROLE_LENGTH and role.isprintable() else ""


def _metadata_mirror(metadata: Any) -> str:
    """A copy for the queryable column, or nothing where some server would refuse it."""
    try:
        text = json_values.encode(metadata)
    except (PydanticSerializationError, UnicodeError):
        return "{}"
    mirror = json_values.decode(text)
    fits = len(text.encode()) <= _MIRROR_BYTES and isinstance(mirror, dict) and _can_be_mirrored(mirror, _MIRROR_DEPTH)
    return text if fits else "{}"


def _can_be_mirrored(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, dict):
        return depth > 0 and all("\0" not in key and _can_be_mirrored(item, depth - 1) for key, item in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_can_be_mirrored(item, depth - 1) for item in value)
    return True


def _decode_json(text: str, table: str, key: dict[str, Any]) -> Any:
    try:
        return json_values.decode(text)
    except ValueError as error:
        raise CheckpointCorruptionError(table, key, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}"
    return str(error).partition("\n")[0]
