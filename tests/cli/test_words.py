"""How messages and requests are put into a few words, and texts onto one line."""

from datetime import timedelta
from typing import Any

import pytest

from threadkeep.cli.summaries import request_text, role_of, text_of
from threadkeep.cli.terminal import printable, shortened
from threadkeep.cli.views import ago


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "text"}, "text"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a b"),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, "(thinking) hm"),
        ({"content": [{"type": "image", "source": "aGk=", "media_type": "image/png"}]}, "[image image/png]"),
        ({"content": [{"type": "image"}]}, "[image]"),
        ({"content": [{"type": "tool_call", "name": "f", "arguments": {"x": "1"}}]}, '→ f(x="1")'),
        ({"content": [{"type": "tool_use", "name": "f", "input": {}}]}, "→ f()"),
        ({"content": "9", "tool_name": "add"}, "add → 9"),
        ({"content": []}, '{"content": []}'),
        ({"content": [None, {"x": 1}]}, 'null {"x": 1}'),
        ({"content": {"odd": True}}, '{"content": {"odd": true}}'),
        ("bare", "bare"),
        ([1, None], "[1, null]"),
    ],
)
def test_the_text_of_a_message(message: Any, text: str) -> None:
    assert text_of(message) == text


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"payload": {"kind": "confirm", "prompt": "Go on?"}}, "Go on?"),
        ({"payload": {"kind": "approve", "tool_name": "pay", "args": {"sum": 5}}}, "may pay(sum=5) run?"),
        ({"payload": {"kind": "ask", "questions": [{"prompt": "a"}, {"prompt": "b"}]}}, "a / b"),
        ({"payload": {"questions": ["odd"]}}, '{"payload": {"questions": ["odd"]}}'),
        (["odd"], '["odd"]'),
    ],
)
def test_the_text_of_a_request(request_: Any, text: str) -> None:
    assert request_text(request_) == text


@pytest.mark.parametrize("message", [{}, {"role": None}, "bare", None, {"role": {"x": 1}}])
def test_a_message_may_have_no_role(message: Any) -> None:
    assert role_of(message) == ""


def test_a_terminal_gets_letters_and_escapes() -> None:
    assert printable("\x1b[2J\t\x7f\x9b\u200f\u2028\udcff") == r"\x1b[2J\t\x7f\x9b\u200f\u2028\udcff"
    family = "👩\u200d👧 café"
    assert printable(family) == family


def test_a_text_is_cut_to_one_line() -> None:
    assert shortened("two\r\n  lines ", 40) == "two lines"
    assert shortened("x" * 50, 40) == "x" * 40 + "… (50 characters)"
    assert shortened(" " * 20_000 + "end", 40) == "… (20,003 characters)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 seconds ago"),  # by the clock of another machine
        (1.9, "1 second ago"),
        (119, "119 seconds ago"),
        (120, "2 minutes ago"),
        (7_199, "119 minutes ago"),
        (7_200, "2 hours ago"),
        (200_000_000, "2,314 days ago"),
    ],
)
def test_an_age_is_told_in_one_unit(seconds: float, text: str) -> None:
    assert ago(timedelta(seconds=seconds)) == text
