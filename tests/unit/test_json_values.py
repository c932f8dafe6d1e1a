"""Free-form JSON: what is accepted comes back as it went in, the rest is refused with the way to it."""

import datetime
import decimal
import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import UnstorableValueError
from threadkeep.json_values import MAX_DEPTH, MAX_DIGITS, checked, decode, encode
from threadkeep.testing.samples import STORABLE_VALUES, nested, same

LARGEST = 10**MAX_DIGITS - 1

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-LARGEST, LARGEST),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


class Grade(enum.IntEnum):
    GOOD = 1


class Name(str):
    pass


class Mapping(dict[str, int]):
    pass


UNSTORABLE: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    LARGEST + 1,
    -LARGEST - 1,
    "\ud800",
    "a\udfffb",
    (1, 2),
    {1, 2},
    frozenset({1}),
    b"bytes",
    bytearray(b"bytes"),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    datetime.date(2024, 1, 1),
    decimal.Decimal("1.5"),
    1j,
    Grade.GOOD,
    Name("text"),
    Mapping(a=1),
    object(),
    len,
]
KEYS: list[Any] = [1, 1.5, None, True, b"key", ("a",), Name("key"), Grade.GOOD]


@given(json_values)
def test_json_within_the_limits_comes_back_with_its_types(value: Any) -> None:
    assert checked(value, "extra") is value
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize("value", [*STORABLE_VALUES, LARGEST, -LARGEST, nested(MAX_DEPTH), 5e-324, -0.0])
def test_so_does_what_is_at_the_limits(value: Any) -> None:
    assert same(decode(encode(checked(value, "extra"))), value)


steps = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 3)), max_size=6)


def wrapped(value: Any, path: list[str | int]) -> Any:
    """The value at this path, with harmless neighbours, whose keys are longer than any step."""
    for step in reversed(path):
        value = {"before": 1, step: value, "afterwards": [1]} if isinstance(step, str) else [*range(step), value, None]
    return value


def written(path: list[str | int]) -> str:
    return "extra" + "".join(f".{s}" if isinstance(s, str) and s.isidentifier() else f"[{s!r}]" for s in path)


@pytest.mark.parametrize("bad", UNSTORABLE, ids=lambda bad: type(bad).__name__)
def test_anything_else_is_refused(bad: Any) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        checked(bad, "extra")
    assert caught.value.path == "extra"
    assert caught.value.reason


@given(steps, st.sampled_from(UNSTORABLE))
def test_it_is_refused_where_it_is(path: list[str | int], bad: Any) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        checked(wrapped(bad, path), "extra")
    assert caught.value.path == written(path)


@given(steps, st.sampled_from(KEYS))
def test_a_key_that_is_no_str_is_refused_where_its_dict_is(path: list[str | int], key: Any) -> None:
    with pytest.raises(UnstorableValueError, match="JSON keys are str") as caught:
        checked(wrapped({key: 1}, path), "extra")
    assert caught.value.path == written(path)


@given(steps)
def test_a_lone_surrogate_in_a_key_is_refused(path: list[str | int]) -> None:
    with pytest.raises(UnstorableValueError, match="lone surrogate") as caught:
        checked(wrapped({"\ud800": 1}, path), "extra")
    assert caught.value.path == f"{written(path)}['\\ud800']"


@pytest.mark.parametrize("deepest", [[], {}, [1], {"a": 1}])
def test_nesting_ends_at_a_hundred_levels(deepest: Any) -> None:
    """A container counts as a level; what it holds does not."""
    just_right = deepest
    for level in range(MAX_DEPTH - 1):
        just_right = [just_right] if level % 2 else {"a": just_right}
    assert same(decode(encode(checked(just_right, "extra"))), just_right)
    with pytest.raises(UnstorableValueError, match="more than 100 levels"):
        checked([just_right], "extra")


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnstorableValueError, match="levels deep"):
        checked(endless, "extra")


def test_a_very_deep_value_is_refused_and_not_a_recursion_error() -> None:
    with pytest.raises(UnstorableValueError, match="levels deep"):
        checked(nested(100_000), "extra")
