"""What the figures say: ratios between medians, and which targets they meet."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from subjects.lineup import FLOOR, OURS

Rates = Mapping[str, Sequence[float]]
"""Of one scenario: each subject's units per second, round by round."""

_SQLITE_CUBEPI = {"append": 2.0, "append x32": 4.0, "turn": 2.0, "turn x32": 4.0, "load": 1.5, "bulk": 5.0}
_POSTGRESQL_CUBEPI = {"append": 1.5, "append x32": 2.5, "turn": 1.5, "turn x32": 2.5, "load": 1.5, "bulk": 2.0}
_MYSQL_CUBEPI = {"append": 1.1, "append x32": 1.3, "turn": 1.1, "load": 1.5, "fork": 2.0, "bulk": 2.0}

AT_LEAST_BEST_PEER = 1.0
AT_LEAST_CUBEPI: Mapping[str, Mapping[str, float]] = {
    "sqlite": _SQLITE_CUBEPI,
    "postgresql": _POSTGRESQL_CUBEPI,
    "mysql": _MYSQL_CUBEPI,
}
AT_MOST_FLOOR = {"sqlite": 2.5, "postgresql": 1.8, "mysql": 1.3}
AT_MOST_GROUPED_FLOOR = 5.0
"""On SQLite the floor of what happens at once has one commit for all of it."""


class Best(NamedTuple):
    """The fastest of the peers, and how many times as fast Threadkeep is."""

    peer: str
    ratio: float


class Judged(NamedTuple):
    """A figure beside its target; without one, there is none to meet."""

    measured: float
    target: float | None
    is_met: bool | None


class Verdict(NamedTuple):
    """How Threadkeep does in one scenario on one kind of database. None: there was nothing to compare with."""

    kind: str
    scenario: str
    best_peer: Best | None
    beside_best: Judged | None
    beside_cubepi: Judged | None
    beside_floor: Judged | None

    @property
    def judged(self) -> list[Judged]:
        """All that has a target."""
        figures = (self.beside_best, self.beside_cubepi, self.beside_floor)
        return [figure for figure in figures if figure is not None and figure.is_met is not None]


def median(rates: Rates, subject: str) -> float | None:
    """The subject's median, or None if it took no part."""
    return statistics.median(rates[subject]) if rates.get(subject) else None


def peers_in(rates: Rates) -> list[str]:
    return [subject for subject in rates if subject not in (OURS, FLOOR) and rates[subject]]


def ratio(rates: Rates, subject: str, to: str) -> float | None:
    """How many times as fast the one is as the other."""
    one, other = median(rates, subject), median(rates, to)
    return None if one is None or other is None else one / other


def best_peer(rates: Rates) -> Best | None:
    ours = median(rates, OURS)
    speeds = {peer: statistics.median(rates[peer]) for peer in peers_in(rates)}
    if ours is None or not speeds:
        return None
    best = max(speeds, key=speeds.__getitem__)
    return Best(best, ours / speeds[best])


def time_beside_floor(rates: Rates) -> float | None:
    """How many times the floor's time Threadkeep takes."""
    return ratio(rates, FLOOR, OURS)


def floor_target(kind: str, scenario: str) -> float | None:
    """How many times the floor's time is allowed."""
    if kind == "sqlite" and scenario.endswith("x32"):
        return AT_MOST_GROUPED_FLOOR
    return AT_MOST_FLOOR.get(kind)


def verdict(kind: str, scenario: str, rates: Rates) -> Verdict:
    """All figures of this scenario beside their targets."""
    best = best_peer(rates)
    return Verdict(
        kind,
        scenario,
        best,
        _at_least(best.ratio if best else None, AT_LEAST_BEST_PEER),
        _at_least(ratio(rates, OURS, "cubepi"), AT_LEAST_CUBEPI.get(kind, {}).get(scenario)),
        _at_most(time_beside_floor(rates), floor_target(kind, scenario)),
    )


def _at_least(measured: float | None, target: float | None) -> Judged | None:
    return None if measured is None else Judged(measured, target, None if target is None else measured >= target)


def _at_most(measured: float | None, target: float | None) -> Judged | None:
    return None if measured is None else Judged(measured, target, None if target is None else measured <= target)
