"""``python -m tests.simulation``: runs seeds, and shows what they find."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.simulation.form import Form, draw
from tests.simulation.invariants import INVARIANTS
from tests.simulation.runs import Finding, run, search, shrink

_SHARE: Final = 50  # seeds per task of a process
_STORY_LINES: Final = 120


def search_side_by_side(
    seeds: range, processes: int, console: Console, histories: Path | None
) -> tuple[int, list[Form]]:
    """As :func:`search`, by several processes, with a line that shows how far they are."""
    shares = [seeds[at : at + _SHARE] for at in range(0, len(seeds), _SHARE)]
    events, failed = 0, []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as shown,
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
    ):
        bar = shown.add_task("runs", total=len(seeds))
        for share, (more, found) in zip(
            shares, pool.map(partial(search, histories=histories), shares), strict=True
        ):
            events += more
            failed += found
            findings = f", {len(failed)} findings" if failed else ""
            shown.update(bar, advance=len(share), description=f"{events:,} events{findings}")
    return events, failed


def show(finding: Finding, console: Console) -> None:
    """The violated invariant, the events, and the command that repeats the run."""
    rules = {each.__name__: each.__doc__ for each in INVARIANTS}
    console.rule(f"[bold red]seed {finding.form.seed}: {finding.broken}")
    if finding.broken in rules:
        console.print(f"[italic]{escape(rules[finding.broken] or '')}[/]\n")
    left_out = len(finding.story) - _STORY_LINES
    if left_out > 0:
        console.print(f"[dim]({left_out} sentences before)[/]")
    for line in finding.story[-_STORY_LINES:]:
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(f"\n[bold red]{escape(str(finding.error))}[/]", soft_wrap=True)
    console.print(f"\nAgain: [bold]{escape(finding.form.command())}[/]\n", soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """0: no violation was found."""
    asked = _parsed(arguments)
    console = Console()
    began = time.monotonic()
    if asked.runs == 1:
        form = replace(draw(asked.seed), order=asked.order)
        if asked.only:
            form = replace(form, actors=tuple(asked.only.split()))
        ran = run(form, histories=asked.histories)
        events, failed = ran.events, [form] if ran.finding else []
    else:
        seeds = range(asked.seed, asked.seed + asked.runs)
        events, failed = search_side_by_side(seeds, asked.processes, console, asked.histories)
    minutes = (time.monotonic() - began) / 60
    for form in failed[: asked.show]:
        finding = run(form, tells=True).finding
        if finding is not None:
            show(finding if asked.whole else shrink(finding), console)
    if len(failed) > asked.show:
        console.print("Seeds:", *(form.seed for form in failed))
    verdict = f"[bold red]{len(failed)} findings" if failed else "[bold green]nothing found"
    console.print(f"{asked.runs:,} runs, {events:,} events, {minutes:.1f} minutes: {verdict}")
    return 1 if failed else 0


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Runs brokers, clients and faults in one process, a seed a run.",
    )
    parser.add_argument("--runs", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--only", help="the clients and faults that take part (of one run)")
    parser.add_argument("--order", type=int, default=0, help="another order of events (of one run)")
    parser.add_argument("--processes", type=int, default=2, help="how many search side by side")
    parser.add_argument("--show", type=int, default=3, help="how many findings are shown")
    parser.add_argument("--histories", type=Path, help="a folder for what clients were told")
    parser.add_argument("--whole", action="store_true", help="show findings without shrinking them")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
