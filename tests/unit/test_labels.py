"""Labels: one for each key and value, whatever they are. That threads are found by them is the kit's to prove."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.json_values import digest
from threadkeep.labels import label, labels_of
from threadkeep.testing.samples import STORABLE_VALUES, nested, same

keys = st.text(max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
values: st.SearchStrategy[Any] = st.recursive(
    # Of what is often mistaken for one another, more than chance would bring.
    scalars | st.sampled_from([0, 0.0, -0.0, False, "", "0", None, "null", 1, 1.0, True, "1", "true", [], {}, [[]]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(keys, values, keys, values)
@example("a", 1, "a", 1.0)
@example("a", 1, "a", True)
@example("a", 1.0, "a", True)
@example("a", 0.0, "a", -0.0)
@example("a", "b", "b", "a")
@example('a","b', "", "a", ["b", ""])
@example("\u00e9", 1, "e\u0301", 1)
@example("", {}, "", [])
@example("a", {"b": {"c": 1}}, "a", {"b": 1, "c": 1})
@example("a", 2**53, "a", 2**53 + 1)
@example("a", 2**53, "a", float(2**53))
def test_two_labels_are_equal_exactly_when_key_and_value_are(key: str, value: Any, other_key: str, other: Any) -> None:
    assert (label(key, value) == label(other_key, other)) == (key == other_key and same(value, other))


@given(keys, values)
def test_the_same_json_gives_the_same_label(key: str, value: Any) -> None:
    again = json.loads(json.dumps(value))
    assert label(key, value) == label(key, again)
    assert label(key, _reversed(value)) == label(key, value)
    assert len(label(key, value)) == 64


def _reversed(value: Any) -> Any:
    """The same, with the keys of every dict the other way round."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(keys, values, max_size=5))
def test_metadata_has_a_label_for_each_of_its_keys(metadata: dict[str, Any]) -> None:
    labels = labels_of(metadata)
    assert len(set(labels)) == len(labels) == len(metadata)
    assert set(labels) == {label(key, value) for key, value in metadata.items()}
    assert labels == labels_of(_reversed(metadata))


def test_whatever_can_be_stored_has_a_label() -> None:
    odd = [*STORABLE_VALUES, nested(99), {"k" * 100_000: "v"}, "\ud800"]
    assert len({label("value", value) for value in odd}) == len(odd)


def test_a_digest_never_changes() -> None:
    """It is a key in databases."""
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert label("user", {"b": 1, "a": "é"}) == digest('["user",{"a":"\\u00e9","b":1}]')
