"""Contenders take turns. In each turn all are measured once. Each turn begins with another one.

So a slow phase of the machine that is longer than a turn affects all of them. A measurement starts
only when the other processes are idle: a broker that deletes a topic, or writes to its disk, would
slow the next contender. Beside the wall's time, the processor time of all processes is recorded:
Spark's JVM, its Python workers and the brokers.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from bench.results import LESS_IS_BETTER, shown

CEILING: Final = "ceiling"
KAFKA: Final = "Kafka, defaults"
TUNED: Final = "Kafka, tuned"
ISOLOG: Final = "isolog"
CONNECTION: Final = "isolog, by connection"
AT_LEAST_ONCE: Final = "isolog, at least once"
BATCHES: Final = "isolog, Arrow batches"
CONTENDERS: Final = (CEILING, KAFKA, TUNED, ISOLOG, CONNECTION, AT_LEAST_ONCE, BATCHES)
"""All contenders, in the order of the table's columns."""

_QUIET_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.3
_QUIET_PART: Final = 0.1
"""The share of a processor that idle brokers and Spark use."""

Figures = dict[str, Any]
"""The result of one measurement, as in the JSON."""


@dataclass
class Turns:
    """The measurements of a run. Each contender is measured ``turns`` times, after a warm-up."""

    turns: int
    measured: list[Figures] = field(default_factory=list)

    def take(
        self,
        part: str,
        name: str,
        unit: str,
        contenders: Mapping[str, Callable[[], float]],
        *,
        rows: int | None = None,
        note: str = "",
    ) -> None:
        """Measure all contenders in turns. ``rows``: of one measurement, for the processor time."""
        for run in contenders.values():
            run()
        found: dict[str, list[float]] = {each: [] for each in contenders}
        spent: dict[str, list[float]] = {each: [] for each in contenders}
        for turn in range(self.turns):
            for each in rotated(list(contenders), turn):
                _await_quiet()
                before = _processor_seconds()
                found[each].append(contenders[each]())
                spent[each].append(_processor_seconds() - before)
        self.add(part, name, unit, found, note=note)
        if rows is not None:
            self.measured[-1]["processor_seconds_per_million_rows"] = {
                each: round(statistics.median(seconds) / rows * 1e6, 3)
                for each, seconds in spent.items()
            }

    def add(
        self,
        part: str,
        name: str,
        unit: str,
        found: Mapping[str, Sequence[float]],
        *,
        note: str = "",
    ) -> None:
        """Store figures, one of each contender for each turn."""
        medians = {each: statistics.median(figures) for each, figures in found.items()}
        self.measured.append(
            {
                "part": part,
                "name": name,
                "unit": unit,
                "note": note,
                "median": {each: _rounded(figure) for each, figure in medians.items()},
                "turns": {
                    each: [_rounded(figure) for figure in figures]
                    for each, figures in found.items()
                },
            }
        )
        said = ", ".join(f"{each} {shown(figure, unit)}" for each, figure in medians.items())
        print(f"{time.strftime('%H:%M:%S')} {name} ({unit}): {said}", file=sys.stderr, flush=True)


def _await_quiet() -> None:
    """Wait until all processes are idle, for some seconds at most."""
    deadline = time.monotonic() + _QUIET_WITHIN_S
    while time.monotonic() < deadline:
        before = _processor_seconds()
        time.sleep(_LOOK_S)
        if _processor_seconds() - before < _QUIET_PART * _LOOK_S:
            return


def gain(figures: Figures, contender: str, over: str) -> float | None:
    """The gain, turn by turn. Above 1 is better, in any unit. None: unknown."""
    ours, theirs = figures["turns"].get(contender), figures["turns"].get(over)
    if not ours or not theirs:
        return None
    if figures["unit"] in LESS_IS_BETTER:
        ours, theirs = theirs, ours
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def contenders(measured: Sequence[Figures]) -> list[str]:
    """The contenders, in a fixed order. Unknown ones come last."""
    there = {name for each in measured for name in each["median"]}
    return [*(name for name in CONTENDERS if name in there), *sorted(there - {*CONTENDERS})]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: each contender is first once, and has another predecessor in each turn.

    A contender suffers from the remains of its predecessor, such as garbage in Spark's JVM. So the
    predecessors are balanced (a Williams design).
    """
    count = len(names)
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    side = -1 if turn % 2 else 1
    return [names[(turn + side * step) % count] for step in steps]


def _rounded(figure: float) -> float:
    return float(f"{figure:.5g}")


def _processor_seconds() -> float:
    """The processor time of this process and its descendants, ended ones included."""
    this = psutil.Process()
    spent = 0.0
    for each in (this, *this.children(recursive=True)):
        try:
            spent += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return spent
