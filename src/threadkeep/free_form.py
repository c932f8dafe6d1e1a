"""Which parts of a typed value are free-form, and the walk that checks a whole message before it is encoded.

A typed field is pydantic's to encode, and pydantic reads back what it wrote. A field typed `Any`, `dict[str, Any]`
or a recursive JSON alias is free-form: whatever it holds must be exactly JSON, or it would come back as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, ForwardRef, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typing_extensions import is_typeddict

from threadkeep.json_values import Unstorable, check_float, check_int, check_json, check_text, refuse_kind

_BARE_CONTAINERS = (dict, list, Mapping, MutableMapping, Sequence, MutableSequence, Collection, Iterable)


def is_free_form(annotation: Any, _open_aliases: frozenset[int] = frozenset()) -> bool:
    """Whether values of this annotation may hold anything, at some depth."""
    arguments = get_args(annotation)
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return True
    if not arguments and (get_origin(annotation) or annotation) in _BARE_CONTAINERS:
        return True
    # An alias that comes back to itself, by its object or by its name, describes JSON-like data of any shape.
    if isinstance(annotation, (str, ForwardRef)):
        return bool(_open_aliases)
    if type(annotation).__name__ == "TypeAliasType":  # typing's from Python 3.12 on, and that of typing_extensions
        if id(annotation) in _open_aliases:
            return True
        return is_free_form(annotation.__value__, _open_aliases | {id(annotation)})
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    return any(is_free_form(argument, _open_aliases) for argument in arguments)


def takes_any_model(core_schema: Any) -> bool:
    """Whether a type takes just any pydantic model somewhere: its core schema names BaseModel itself."""
    if isinstance(core_schema, dict):
        return core_schema.get("cls") is BaseModel or any(map(takes_any_model, core_schema.values()))
    return isinstance(core_schema, (list, tuple)) and any(map(takes_any_model, core_schema))


def free_keys(annotation: Any) -> frozenset[str]:
    """The keys that are free-form in a TypedDict which this annotation reaches: its values are plain dicts."""
    keys: set[str] = set()
    seen: set[Any] = set()
    reached = [annotation]
    while reached:
        current = reached.pop()
        if is_typeddict(current) and current not in seen:
            seen.add(current)
            hints = get_type_hints(current, include_extras=True)
            keys.update(name for name, hint in hints.items() if is_free_form(hint))
            reached += hints.values()
        else:
            reached += get_args(current)
    return frozenset(keys)


def check_typed(value: Any, free: frozenset[str] = frozenset()) -> None:
    """Raise Unstorable for what pydantic would encode but not give back, free-form fields and keys included."""
    kind: Any = type(value)
    check = _check_of(kind)
    if check is not None:
        check(value, free)


@cache
def _check_of(kind: Any) -> Callable[[Any, frozenset[str]], None] | None:
    """How values of a class are checked: found out once, for every write waits for the walk through its message."""
    if kind is str:
        return lambda value, _: check_text(value)
    if kind is float:
        return lambda value, _: check_float(value)
    if kind is int:
        return lambda value, _: check_int(value)
    if issubclass(kind, BaseModel):
        return lambda value, _: _check_model(value, 0)
    if is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return lambda value, _: _check_fields(value, depth=1)
    if issubclass(kind, dict):
        return _check_items
    if issubclass(kind, (list, tuple, set, frozenset)):
        return _check_elements
    return None


def _check_items(value: Any, free: frozenset[str]) -> None:
    for key, item in value.items():
        _check_field(key, item, _Field(free=key in free, free_keys=free), depth=1)


def _check_elements(value: Any, free: frozenset[str]) -> None:
    for index, item in enumerate(value):
        try:
            check_typed(item, free)
        except Unstorable as trouble:
            raise trouble.under(index) from None


def check_model(value: Any, depth: int = 0) -> None:
    """Check a pydantic model, its extra fields included. Anything else is refused."""
    kind: Any = type(value)
    if not _is_model(kind):
        refuse_kind(value)
    _check_model(value, depth)


def _check_model(value: BaseModel, depth: int) -> None:
    _check_fields(value, depth + 1)
    extra = value.__pydantic_extra__
    if extra:
        declared = _fields_of(type(value))
        for name, item in extra.items():
            if name in declared:
                raise Unstorable("an extra field with the name of a declared one would come back as that").under(name)
            _check_field(name, item, _Field(free=True), depth + 1)


@cache
def _is_model(kind: Any) -> bool:
    return issubclass(kind, BaseModel)


class _Field(NamedTuple):
    """What the annotation of a field says."""

    free: bool
    free_keys: frozenset[str] = frozenset()


@cache
def _fields_of(kind: Any) -> dict[str, _Field]:
    """The fields of a model, or of whatever declares its own: a dataclass, a NamedTuple."""
    if issubclass(kind, BaseModel):
        annotations = {name: field.annotation for name, field in kind.model_fields.items()}
    else:
        annotations = get_type_hints(kind, include_extras=True)
    return {name: _Field(is_free_form(hint), free_keys(hint)) for name, hint in annotations.items()}


def _check_fields(value: Any, depth: int) -> None:
    kind: Any = type(value)
    for name, field in _fields_of(kind).items():
        item = getattr(value, name, None)
        # Most fields are plain text, or hold nothing: those are through without a call.
        if item is None or (type(item) is str and item.isascii()) or (type(item) is dict and not item):
            continue
        _check_field(name, item, field, depth)


def _check_field(step: str | int, item: Any, field: _Field, depth: int) -> None:
    try:
        if field.free:
            # A model is welcome where the annotation takes one: pydantic stores it as the JSON it dumps to.
            check_json(item, depth, otherwise=check_model)
        else:
            check_typed(item, field.free_keys)
    except Unstorable as trouble:
        raise trouble.under(step) from None
