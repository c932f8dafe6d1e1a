"""When a periodic checkpoint is due."""

import pytest

from threadkeep import Cadence

NEVER, ALWAYS = 1e9, 1e-9
"""Seconds that do not pass in a test, and that always have."""


def test_every_so_many_turns() -> None:
    cadence = Cadence(turns=3)
    assert [cadence.is_due() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_every_so_many_seconds() -> None:
    assert [Cadence(seconds=NEVER).is_due(), Cadence(seconds=ALWAYS).is_due()] == [False, True]


def test_whichever_comes_first() -> None:
    assert Cadence(turns=100, seconds=ALWAYS).is_due()
    by_turns = Cadence(turns=2, seconds=NEVER)
    assert [by_turns.is_due() for _ in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("options", [{}, {"turns": 0}, {"seconds": 0}, {"turns": 1, "seconds": -1}])
def test_it_needs_a_period(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"turns|seconds"):
        Cadence(**options)
