"""The comparison as a picture: a panel for each kind of database, a group of bars for each scenario."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparisons import Rates, best_peer, median, peers_in
from matplotlib.figure import Figure
from rounds import Result
from subjects.lineup import FLOOR, OURS, PEERS

# Okabe and Ito's colours, which all eyes tell apart; hatches tell them apart in print.
_LOOKS: dict[str, dict[str, Any]] = {
    OURS: {"color": "#0072B2"},
    "cubepi": {"color": "#E69F00", "hatch": "//"},
    "cubepi (WAL)": {"color": "#F0E442", "hatch": "\\\\"},
    "OpenAI SDK": {"color": "#009E73", "hatch": ".."},
    "LangGraph": {"color": "#CC79A7", "hatch": "xx"},
}
_BAR = 0.17
_PANEL_INCHES = (8.5, 4.2)
_LEGEND_INCHES = 0.5
_FLOOR_LABEL = "bare driver (floor)"
_UPRIGHT: dict[str, Any] = {
    "textcoords": "offset points",
    "ha": "center",
    "rotation": 90,
    "color": "white",
    "fontsize": 8.5,
    "fontweight": "bold",
}
_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}


def draw(results: Sequence[Result], file: Path) -> None:
    """Write the picture. Scenarios in which no peer took part are not in it."""
    results = [result for result in results if _scenarios(result)]
    if not results:
        return
    columns = min(2, len(results))
    rows = math.ceil(len(results) / columns)
    height = _PANEL_INCHES[1] * rows + _LEGEND_INCHES
    figure = Figure(figsize=(_PANEL_INCHES[0] * columns, height))
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel, result in zip(panels.flat, results, strict=False):
        _draw_panel(panel, result)
    for panel in panels.flat[len(results) :]:
        panel.set_visible(False)
    for row in panels:
        row[0].set_ylabel("times the best peer's speed")
    figure.suptitle("Speed beside the best peer of each scenario: more is better", fontsize=14)
    figure.legend(**_legend(panels.flat), loc="lower center", ncols=7, frameon=False)
    figure.tight_layout(rect=(0, _LEGEND_INCHES / height, 1, 1))
    figure.savefig(file, dpi=130)


def _scenarios(result: Result) -> list[str]:
    return [scenario for scenario, rates in result.rates.items() if best_peer(rates)]


def _draw_panel(panel: Any, result: Result) -> None:
    scenarios = _scenarios(result)
    for place, scenario in enumerate(scenarios):
        _draw_group(panel, place, result.rates[scenario])
    panel.axhline(1, color="black", linewidth=1, linestyle="--", label="best peer", zorder=0)
    # Square roots: a floor that is nine times as fast leaves room to see that 0.8 is less than 1.
    panel.set_yscale("function", functions=(lambda value: abs(value) ** 0.5, lambda value: value**2))
    top = panel.dataLim.ymax * 1.15
    panel.set_ylim(0, top)
    panel.set_yticks([tick for tick in (0, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 15, 20, 30) if tick <= top])
    panel.set_yticks([], minor=True)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_xticks(range(len(scenarios)), scenarios)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
    panel.set_title(_NAMES[result.kind], loc="left", fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)


def _draw_group(panel: Any, place: int, rates: Rates) -> None:
    best = max(median(rates, peer) or 0 for peer in peers_in(rates))
    names = [name for name in (OURS, *PEERS) if rates.get(name)]
    for number, name in enumerate(names):
        times = (median(rates, name) or 0) / best
        middle = place + (number - (len(names) - 1) / 2) * _BAR
        panel.bar(middle, times, _BAR * 0.92, label=name, edgecolor="white", linewidth=0.5, **_LOOKS[name])
        if name == OURS:
            # Inside, where no line crosses it.
            panel.annotate(f"{times:.2f}", (middle, 0), (0.5, 4), **_UPRIGHT)
    if floor := median(rates, FLOOR):
        half = len(names) / 2 * _BAR + 0.04
        panel.hlines(floor / best, place - half, place + half, colors="black", linewidth=2, label=_FLOOR_LABEL)


def _legend(panels: Any) -> dict[str, list[Any]]:
    """Each name once, however many panels it is in."""
    found: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    order = [name for name in (OURS, *PEERS) if name in found]
    order += [name for name in found if name not in order]
    return {"handles": [found[name] for name in order], "labels": order}
