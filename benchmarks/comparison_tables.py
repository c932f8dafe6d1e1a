"""The comparison as tables and bars in a terminal."""

import statistics
from collections.abc import Sequence

from comparisons import Judged, Verdict, best_peer, peers_in, ratio, time_beside_floor
from rich.table import Table
from rich.text import Text
from rounds import Result
from subjects.lineup import FLOOR, OURS, PEERS

_PER_TIMES = 10
"""Characters of a bar for each time of the best peer's speed."""
_LONGEST = 6
"""Times that a bar can show."""


def figures(result: Result) -> Table:
    """Medians and spreads of everybody, on one kind of database."""
    names = [name for name in (OURS, *PEERS, FLOOR) if any(rates.get(name) for rates in result.rates.values())]
    title = f"{result.kind}, per second: messages, or turns; the median of the rounds, their lowest and highest"
    table = Table(title=title, title_justify="left")
    table.add_column("scenario", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for scenario, rates in result.rates.items():
        table.add_row(scenario, *(_spread(rates.get(name)) for name in names))
    return table


def _spread(rates: Sequence[float] | None) -> str:
    if not rates:
        return ""
    return f"{_short(statistics.median(rates))} [dim]({_short(min(rates))}-{_short(max(rates))})[/dim]"


def _short(rate: float) -> str:
    if rate < 100:
        return f"{rate:.1f}"
    return f"{rate:,.0f}" if rate < 10_000 else f"{rate / 1_000:,.1f}k"


def ratios(result: Result) -> Table:
    """Threadkeep beside each of the others, on one kind of database."""
    peers = [name for name in PEERS if any(name in peers_in(rates) for rates in result.rates.values())]
    table = Table(title=f"{result.kind}: how many times as fast Threadkeep is", title_justify="left")
    table.add_column("scenario")
    for peer in peers:
        table.add_column(f"as {peer}", justify="right")
    table.add_column("as the best peer", justify="right")
    table.add_column("time / floor's time", justify="right")
    for scenario, rates in result.rates.items():
        best = best_peer(rates)
        table.add_row(
            scenario,
            *(_times(ratio(rates, OURS, peer)) for peer in peers),
            f"{best.ratio:.2f} [dim]{best.peer}[/dim]" if best else "",
            _times(time_beside_floor(rates)),
        )
    return table


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def summary(verdicts: Sequence[Verdict]) -> Table:
    """Every figure that has a target, met or missed."""
    table = Table(title="Targets: Threadkeep's speed beside peers', its time beside the floor's", title_justify="left")
    table.add_column("")
    table.add_column("scenario")
    for column in ("beside the best peer", "beside cubepi", "time beside the floor"):
        table.add_column(column, justify="right")
    for number, found in enumerate(verdicts):
        is_last = number + 1 == len(verdicts) or verdicts[number + 1].kind != found.kind
        table.add_row(
            found.kind,
            found.scenario,
            _judgement(found.beside_best, ">="),
            _judgement(found.beside_cubepi, ">="),
            _judgement(found.beside_floor, "<="),
            end_section=is_last,
        )
    return table


def _judgement(figure: Judged | None, bound: str) -> Text:
    if figure is None:
        return Text("")
    if figure.target is None:
        return Text(f"{figure.measured:.2f}" + " " * 14)
    word, colour = ("met   ", "green") if figure.is_met else ("missed", "bold red")
    return Text(f"{figure.measured:.2f} {bound} {figure.target:<3g} {word}", style=colour)


def bars(verdicts: Sequence[Verdict]) -> Text:
    """A bar for each scenario: Threadkeep's speed in times of the best peer's, which ends at the line."""
    text = Text("Speed in times of the best peer's, which is the line\n", style="bold")
    kind = None
    for found in verdicts:
        if found.best_peer is None:
            continue
        if found.kind != kind:
            kind = found.kind
            text.append(f"{kind}\n", style="bold")
        times = found.best_peer.ratio
        text.append(f"  {found.scenario:<11}")
        text.append_text(_bar(times))
        text.append(f" {times:.2f}", style="bold")
        text.append(f" x {found.best_peer.peer}\n", style="dim")
    return text


def _bar(times: float) -> Text:
    length = max(1, round(min(times, _LONGEST) * _PER_TIMES))
    filled = "█" * length
    # The line at 1 is seen through the bar, and beside one that ends before it.
    before, after = filled[:_PER_TIMES].ljust(_PER_TIMES), filled[_PER_TIMES:]
    colour = "green" if times >= 1 else "red"
    bar = Text(before, style=colour)
    bar.append("│", style="bold")
    bar.append(after + ("▶" if times > _LONGEST else ""), style=colour)
    return bar
