"""Which messages are certain to come back as they went in, by nothing but the types of what they hold.

A message is proved before it is written: encoded, decoded again, compared. For a class that does nothing but hold
fields, whose every value is of the very type that decoding gives, there is nothing to prove. `exactness_of` reads
pydantic's description of a type, and knows a few kinds of it, plainly used. Whatever else it meets, a validator, a
constraint, a serializer or a setting, and it gives up: then each message is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from threadkeep.json_values import Unstorable, check_json

Exactness = Callable[[Any], bool]
"""Whether a value is certain to come back. If not, it may all the same."""
_Schema = dict[str, Any]

_DESCRIPTIONS = {"type", "metadata", "ref"}
_KNOWN = {
    "any": set[str](),
    "str": set[str](),
    "int": set[str](),
    "float": set[str](),
    "bool": set[str](),
    "none": set[str](),
    "literal": {"expected"},
    "nullable": {"schema"},
    "default": {"schema", "default", "default_factory", "default_factory_takes_data"},
    "list": {"items_schema"},
    "dict": {"keys_schema", "values_schema"},
    "model": {"schema", "cls", "config", "custom_init", "root_model"},
    "model-fields": {"fields", "model_name", "computed_fields"},
    "model-field": {"schema"},
    "tagged-union": {"choices", "discriminator", "from_attributes", "strict"},
    "definitions": {"schema", "definitions"},
    "definition-ref": {"schema_ref"},
}
"""What each kind may say of itself. More than that may change a value on its way."""
_SETTINGS = {"title", "extra_fields_behavior"}
_ANY = {"type": "any"}


class _Unknown(Exception):
    """A type that does more than hold values, or that is not known here."""


def exactness_of(schema: Any) -> Exactness | None:
    """How to see it for the type with this core schema; None if its values must be proved one by one."""
    try:
        return _Reader().read(schema)
    except _Unknown:
        return None


class _Reader:
    """Reads one schema, whose parts may refer to each other."""

    def __init__(self) -> None:
        self._definitions_by_ref: dict[Any, _Schema] = {}
        self._by_ref: dict[str, Exactness] = {}

    def read(self, schema: _Schema) -> Exactness:
        kind = _kind_of(schema)
        if kind in _PLAIN:
            return _PLAIN[kind]
        read: Callable[[_Schema], Exactness] = getattr(self, f"_{kind.replace('-', '_')}")
        return read(schema)

    def _literal(self, schema: _Schema) -> Exactness:
        expected = schema["expected"]
        if any(type(value) is not str for value in expected):
            raise _Unknown
        words = frozenset(expected)
        return lambda value: type(value) is str and value in words

    def _nullable(self, schema: _Schema) -> Exactness:
        is_exact = self.read(schema["schema"])
        return lambda value: value is None or is_exact(value)

    def _default(self, schema: _Schema) -> Exactness:
        return self.read(schema["schema"])  # every field is written, so no default is ever asked for

    def _list(self, schema: _Schema) -> Exactness:
        is_exact = self.read(schema.get("items_schema", _ANY))
        return lambda value: type(value) is list and all(map(is_exact, value))

    def _dict(self, schema: _Schema) -> Exactness:
        # Keys of any kind, says a bare `dict`: the walk takes none but str.
        keys, values = (schema.get(name, _ANY) for name in ("keys_schema", "values_schema"))
        if keys not in (_ANY, {"type": "str"}) or values != _ANY:
            raise _Unknown
        return lambda value: type(value) is dict and (not value or _is_json(value))

    def _model(self, schema: _Schema) -> Exactness:
        fields = schema["schema"]
        does_more = schema.get("custom_init") or schema.get("root_model") or schema.get("config", {}).keys() - _SETTINGS
        # A field of just any model brings back another one.
        if does_more or _kind_of(fields) != "model-fields" or schema["cls"] is BaseModel:
            raise _Unknown
        return self._fields_of(schema["cls"], fields)

    def _fields_of(self, cls: Any, schema: _Schema) -> Exactness:
        if schema.get("computed_fields"):
            raise _Unknown
        fields = [(name, _takes_none(field), self.read(field)) for name, field in schema["fields"].items()]
        count = len(fields)

        def is_exact(value: Any) -> bool:
            if type(value) is not cls or value.__pydantic_extra__:
                return False
            held = value.__dict__
            if len(held) != count:
                return False
            for name, takes_none, is_field_exact in fields:
                item = held.get(name, _MISSING)
                # Half of what messages hold is None, and is through without a call.
                if not (takes_none if item is None else is_field_exact(item)):
                    return False
            return True

        return is_exact

    def _model_field(self, schema: _Schema) -> Exactness:
        return self.read(schema["schema"])

    def _tagged_union(self, schema: _Schema) -> Exactness:
        # By the class: that its tag is the right one is said by the class itself, whose field takes no other.
        if type(schema["discriminator"]) is not str:
            raise _Unknown  # a function, which may say something else of the JSON than of the message
        by_class = {self._class_of(choice): self.read(choice) for choice in schema["choices"].values()}
        return lambda value: by_class.get(type(value), _never)(value)

    def _class_of(self, schema: _Schema) -> Any:
        described = self._definitions_by_ref.get(schema.get("schema_ref"), schema) if isinstance(schema, dict) else {}
        if described.get("type") != "model":
            raise _Unknown
        return described["cls"]

    def _definitions(self, schema: _Schema) -> Exactness:
        self._definitions_by_ref = {definition["ref"]: definition for definition in schema["definitions"]}
        for ref, definition in self._definitions_by_ref.items():
            self._by_ref[ref] = self.read(definition)
        return self.read(schema["schema"])

    def _definition_ref(self, schema: _Schema) -> Exactness:
        # Looked up when a value comes: definitions may name each other, and themselves.
        return lambda value: self._by_ref[schema["schema_ref"]](value)


_MISSING = object()


def _kind_of(schema: Any) -> str:
    """The kind, if it is known and says nothing that is not."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind not in _KNOWN or not schema.keys() <= _DESCRIPTIONS | _KNOWN[kind]:
        raise _Unknown
    return str(kind)


def _takes_none(schema: _Schema) -> bool:
    while schema["type"] in ("model-field", "default"):
        schema = schema["schema"]
    return schema["type"] in ("nullable", "none", "any")


def _never(value: Any) -> bool:
    return False


def _is_text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or _is_json(value))


def _is_json(value: Any) -> bool:
    try:
        check_json(value)
    except Unstorable:
        return False
    return True


_PLAIN: dict[str, Exactness] = {
    "any": lambda value: value is None or _is_json(value),
    "str": _is_text,
    "int": lambda value: type(value) is int and _is_json(value),
    "float": lambda value: type(value) is float and _is_json(value),
    "bool": lambda value: type(value) is bool,
    "none": lambda value: value is None,
}
