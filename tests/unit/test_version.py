"""How versions compare."""

from importlib.metadata import version

import pytest

import threadkeep
from threadkeep.version import as_numbers


def test_it_is_the_installed_one() -> None:
    assert threadkeep.__version__ == version("threadkeep")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1.2.3", (1, 2, 3)),
        ("0.1.0", (0, 1)),
        ("10.0", (10,)),
        ("1.2.3rc1", (1, 2, 3)),
        ("1.2.dev4", (1, 2)),
        ("1.2+local.7", (1, 2)),
        ("0", ()),
        ("", ()),
        ("nonsense", ()),
    ],
)
def test_only_the_numbers_count(text: str, numbers: tuple[int, ...]) -> None:
    assert as_numbers(text) == numbers


@pytest.mark.parametrize(("older", "newer"), [("0.9", "0.10"), ("1.2", "1.2.1"), ("0.1.9", "0.2"), ("2.9.9", "10.0")])
def test_they_compare_as_numbers(older: str, newer: str) -> None:
    assert as_numbers(older) < as_numbers(newer)


def test_zeros_at_the_end_make_no_difference() -> None:
    assert as_numbers("1.0") == as_numbers("1.0.0")
