"""What an id may be. That every method of every backend asks is the conformance kit's to prove."""

import unicodedata
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.errors import InvalidIdError
from threadkeep.ids import MAX_ID_BYTES, check_id, check_optional_id

WHITE_SPACE = [character for character in map(chr, range(0x11000)) if character.isspace()]
CONTROLS = [character for character in map(chr, range(0x110000)) if unicodedata.category(character) == "Cc"]

# Every plane of Unicode, with more of what is at stake than chance would bring.
characters = st.one_of(
    st.characters(), st.characters(categories=["Cs"]), st.sampled_from([*WHITE_SPACE, *CONTROLS, "\u200b", "\ufeff"])
)
texts = st.one_of(
    st.text(characters, max_size=20),
    st.builds(lambda unit, count: unit * count, st.sampled_from(["a", "é", "日", "\U0001d54f"]), st.integers(60, 260)),
)


def may_be_an_id(text: str) -> bool:
    """The contract's own words: 1 to 255 bytes of UTF-8, no control characters, no white space at the edges."""
    try:
        size = len(text.encode("utf-8", "strict"))
    except UnicodeEncodeError:
        return False
    return (
        1 <= size <= 255
        and not any(unicodedata.category(character) == "Cc" for character in text)
        and not text[0].isspace()
        and not text[-1].isspace()
    )


@given(texts)
@example("a" * 255)
@example("a" * 256)
@example("é" * 127 + "a")
@example("é" * 128)
@example("x\x85x")
@example("x\u2028x")
@example("\u3000x")
def test_exactly_what_the_contract_allows_is_accepted(text: str) -> None:
    if may_be_an_id(text):
        assert check_id("thread_id", text) is text
    else:
        with pytest.raises(InvalidIdError) as caught:
            check_id("thread_id", text)
        assert (caught.value.name, caught.value.value) == ("thread_id", text)
        assert caught.value.reason


@pytest.mark.parametrize("control", CONTROLS)
def test_no_control_character_passes_anywhere(control: str) -> None:
    for text in (control, f"{control}x", f"x{control}x", f"x{control}", f"é{control}é"):
        with pytest.raises(InvalidIdError):
            check_id("run_id", text)


@pytest.mark.parametrize("value", [None, 7, 1.5, b"bytes", ["list"], object()])
def test_what_is_no_str_is_refused(value: object) -> None:
    with pytest.raises(InvalidIdError, match="not a str"):
        check_id("thread_id", value)


def test_a_subclass_of_str_is_stored_as_the_text_it_holds() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Loud(str):
        def __str__(self) -> str:
            return self.upper()

    for value in (Colour.RED, Loud("red")):
        checked = check_id("thread_id", value)
        assert (type(checked), checked) == (str, "red")


def test_an_optional_id_may_be_none_but_not_empty() -> None:
    assert check_optional_id("run_id", None) is None
    assert check_optional_id("run_id", "run") == "run"
    with pytest.raises(InvalidIdError):
        check_optional_id("run_id", "")


def test_the_limit_counts_bytes() -> None:
    assert MAX_ID_BYTES == 255
    with pytest.raises(InvalidIdError, match="256 bytes"):
        check_id("thread_id", "é" * 128)
