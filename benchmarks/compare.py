"""Threadkeep beside its peers, and beside the bare driver.

    nox -s benchmark -- --rounds 5 sqlite postgresql mysql mariadb

Each scenario is played by everybody in turns, so that a noisy machine is noisy for all, and what is told are the
medians of operations per second and their ratios. Afterwards it is counted whether all that was written is there.
"""

import argparse
import json
import logging
import sys
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import comparison_tables
import pytest
from comparisons import Verdict, verdict
from rich.console import Console
from rich.progress import Progress
from rounds import LeftOut, Plan, Result, measure
from scenarios import SCENARIOS
from subjects.lineup import FLOOR, OURS, PACKAGES, PEERS

import servers

KINDS = ("sqlite", "postgresql", "mysql", "mariadb")
SECONDS = 0.5

console = Console(width=None if sys.stdout.isatty() else 160)


def main() -> None:
    given = read_arguments()
    # asyncmy logs what the server warns of while tables are made.
    logging.getLogger("asyncmy").setLevel(logging.ERROR)
    results = []
    try:
        for kind in given.kinds or KINDS:
            try:
                results.append(measured(kind, given))
            except pytest.skip.Exception as why:
                console.print(f"{kind}: {why}")
                continue
            show(results[-1])
    finally:
        servers.stop()
    verdicts = [verdict(result.kind, name, rates) for result in results for name, rates in result.rates.items()]
    conclude(verdicts)
    if given.json:
        given.json.write_text(json.dumps(as_json(results, verdicts), indent=2) + "\n")
    if given.png:
        # Not installed where nobody asks for a picture.
        from plots import draw

        draw(results, given.png)
    ours = [out for result in results for out in result.left_out if out.subject in (OURS, FLOOR)]
    if ours:
        sys.exit(f"{ours[0].subject} has failed: {ours[0].reason}")
    if given.strict and not all(figure.is_met for found in verdicts for figure in found.judged):
        sys.exit("a target was missed")


def read_arguments() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--scale", type=float, default=1.0, help=f"how many times {SECONDS} s each takes in a round")
    arguments.add_argument(
        "--only", nargs="+", metavar="SCENARIO", choices=SCENARIOS, help=f"of {', '.join(map(repr, SCENARIOS))}"
    )
    arguments.add_argument("--no-peers", action="store_true", help="Threadkeep and the floor alone")
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments.add_argument("--png", type=Path, metavar="FILE", help="draw them there, with matplotlib")
    arguments.add_argument("--strict", action="store_true", help="end with an error if a target is missed")
    given = arguments.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        arguments.error(f"no such kind: {', '.join(sorted(unknown))}")
    if given.rounds < 1 or given.scale <= 0:
        arguments.error("--rounds and --scale must be positive")
    if given.png and find_spec("matplotlib") is None:
        arguments.error("--png needs matplotlib")
    return given


def measured(kind: str, given: argparse.Namespace) -> Result:
    """The figures of one kind of database, with a line for everybody who takes no part."""
    scenarios = [scenario for scenario in SCENARIOS.values() if not given.only or scenario.name in given.only]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(kind, total=len(scenarios) * (given.rounds + 1))

        def tell(out: LeftOut) -> None:
            where = f" of {out.scenario}" if out.scenario else ""
            console.print(f"{kind}: {out.subject} is left out{where}: {out.reason}", markup=False, highlight=False)

        names = [OURS, *(() if given.no_peers else PEERS), FLOOR]
        plan = Plan(names, scenarios, given.rounds, SECONDS * given.scale, tell, lambda: progress.advance(task))
        return measure(kind, plan)


def show(result: Result) -> None:
    for name, settings in result.settings.items():
        # The floor has asked the server itself.
        console.print(f"{result.kind}, {name}: {settings}", markup=False, highlight=False, style="dim")
    console.print(comparison_tables.figures(result))
    console.print(comparison_tables.ratios(result))


def conclude(verdicts: list[Verdict]) -> None:
    judged = [figure for found in verdicts for figure in found.judged]
    if not judged:
        return
    if any(found.best_peer for found in verdicts):
        console.print(comparison_tables.bars(verdicts))
    console.print(comparison_tables.summary(verdicts))
    console.print(f"{sum(bool(figure.is_met) for figure in judged)} of {len(judged)} targets met", highlight=False)


def as_json(results: list[Result], verdicts: list[Verdict]) -> dict[str, Any]:
    took_part = {name for result in results for rates in result.rates.values() for name in rates}
    return {
        "versions": {package: version(package) for name, package in PACKAGES.items() if name in took_part},
        "results": [asdict(result) for result in results],
        "verdicts": [
            {"kind": found.kind, "scenario": found.scenario}
            | {"best_peer": found.best_peer._asdict() if found.best_peer else None}
            | {
                name: figure._asdict() if figure else None
                for name, figure in (
                    ("beside_best", found.beside_best),
                    ("beside_cubepi", found.beside_cubepi),
                    ("time_beside_floor", found.beside_floor),
                )
            }
            for found in verdicts
        ],
    }


if __name__ == "__main__":
    main()
