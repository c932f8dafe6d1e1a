"""The figures of `growth.py` as a picture: `python benchmarks/growth_plot.py growth.png FIGURES.json…`"""

import json
import math
import sys
from pathlib import Path
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
_DECADES = 3
"""What fills a sparkline: a thousand times the smallest value. So a value that grows by a third stays flat."""

_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}
_LOOKS = {
    # A family has a hue, and each of its operations a shade and a marker of its own.
    "append": ("#08306b", "o"),
    "claim_run": ("#2171b5", "s"),
    "mark_run_complete": ("#4a98d3", "^"),
    "save_extra": ("#8fbfe0", "D"),
    "context.load": ("#7f2704", "o"),
    "context.items": ("#b34a02", "s"),
    "messages.list": ("#e8740c", "^"),
    "messages.get": ("#f79b3e", "D"),
    "threads.list": ("#fcc27d", "v"),
    "resume": ("#006d2c", "o"),
    "load, per message": ("#41ab5d", "s"),
}
_GREY = "#555555"


def sparkline(values: list[float]) -> str:
    """The values in one line of text, by their logarithms."""
    least = min(values)
    heights = (math.log10(value / least) / _DECADES * len(_BARS) for value in values)
    return "".join(_BARS[min(int(height), len(_BARS) - 1)] for height in heights)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """A panel for each kind of database: what every operation takes, by the messages in its thread."""
    # Here, because who wants no picture needs no matplotlib.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        sharex=True,
        sharey=True,
        squeeze=False,
        figsize=(2.4 + 4 * columns, 1.1 + 3.9 * rows),
        layout="constrained",
    )
    panels = [panel for row in axes for panel in row]
    for panel, result in zip(panels, results, strict=False):
        for name, (colour, marker) in _LOOKS.items():
            _line(panel, name, result["by_size"][name], color=colour, marker=marker)
        panel.set(xscale="log", yscale="log")
        panel.set_title(_NAMES[result["kind"]], loc="left", fontsize=11, fontweight="bold")
        panel.set_xticks(result["sizes"])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda messages, _: f"{messages:,.0f}"))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda milliseconds, _: f"{milliseconds:,g}"))
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=_GREY, labelsize=9)
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right center", frameon=False, fontsize=9, handlelength=2.5, labelspacing=0.7
    )
    figure.suptitle(
        "What an operation takes, by the messages in its thread", x=0.01, ha="left", fontsize=12, fontweight="bold"
    )
    figure.supxlabel("messages in the thread", fontsize=10, color=_GREY)
    figure.supylabel("milliseconds (bands: half of the measurements)", fontsize=10, color=_GREY)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def _line(panel: Any, name: str, figures: dict[str, Any], **look: Any) -> None:
    sizes = [int(size) for size in figures["medians"]]
    lows, highs = zip(*figures["quartiles"].values(), strict=True)
    panel.fill_between(sizes, lows, highs, color=look["color"], alpha=0.15, linewidth=0)
    panel.plot(sizes, list(figures["medians"].values()), label=name, linewidth=1.5, markersize=4.5, **look)


def main() -> None:
    path, *files = map(Path, sys.argv[1:])
    draw([result for file in files for result in json.loads(file.read_text())], path)


if __name__ == "__main__":
    main()
