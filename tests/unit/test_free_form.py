"""Which parts of a typed value are free-form."""

# mypy: disable-error-code=misc
# It has no aliases that come back to themselves.

import datetime
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from threadkeep.free_form import check_typed, is_free_form
from threadkeep.json_values import Unstorable

Recursive = TypeAliasType("Recursive", str | list["Recursive"] | dict[str, "Recursive"] | None)
Plain = TypeAliasType("Plain", str | int)
Holding = TypeAliasType("Holding", int | Any)


class Model(BaseModel):
    text: str = ""
    anything: Any = None


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        dict,
        list,
        typing.Dict,  # noqa: UP006 - the old name, which hosts still write
        Mapping,
        Sequence,
        TypeVar("T"),
        dict[str, Any],
        list[Any],
        list[dict[str, list[Any]]],
        Any | None,
        int | Any,
        Annotated[dict[str, Any], Field(default_factory=dict)],
        Annotated[Any, "a note"],
        Mapping[str, Any],
        Sequence[object],
        Recursive,
        dict[str, Recursive],
        Recursive | None,
        Holding,
    ],
)
def test_whatever_may_hold_anything_is_free_form(annotation: Any) -> None:
    assert is_free_form(annotation)


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int,
        None,
        datetime.datetime,
        list[str],
        dict[str, int],
        tuple[int, ...],
        # What they are comes back with them: a tuple read into a field that says tuple is one again.
        tuple,
        set,
        str | None,
        Literal["dict", "Any"],
        Annotated[str, Any],
        Model,
        list[Model],
        Plain,
        dict[str, Plain],
    ],
)
def test_what_is_typed_is_not(annotation: Any) -> None:
    assert not is_free_form(annotation)


@dataclass
class Node:
    value: Any = None
    children: tuple["Node", ...] = ()
    by_name: dict[str, Model] | None = None


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (Node(value={"a": (1,)}), ["value", "a"]),
        (Node(children=(Node(), Node(value={1}))), ["children", 1, "value"]),
        (Node(by_name={"x": Model(anything=[b"bytes"])}), ["by_name", "x", "anything", 0]),
        ([Model(), Model(text="\ud800")], [1, "text"]),
        ({"n": float("nan")}, ["n"]),
        ((1, 10**1000), [1]),
    ],
)
def test_the_walk_finds_what_is_wrong_at_any_depth(value: Any, steps: list[str | int]) -> None:
    with pytest.raises(Unstorable) as caught:
        check_typed(value)
    assert caught.value.steps[::-1] == steps


@pytest.mark.parametrize(
    "value",
    [
        Node(value=[1, None, {"a": 1.5}], children=(Node(), Node())),
        {1: datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "b": b"bytes"},
        Model(anything=Model(anything={"a": [True]})),
        None,
    ],
)
def test_what_is_fine_passes(value: Any) -> None:
    check_typed(value)
