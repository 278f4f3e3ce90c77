"""Contenders take turns: in each turn everyone once, and the next begins with another one.

So what slows the machine for longer than a turn slows all of them. Nobody is measured before the
others are quiet: a broker that deletes a topic, or writes to its disk, would slow who comes next.
Beside the wall's time stands
the processors' time of everybody who takes part: Spark's JVM, its Python workers and the brokers.
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
"""Everyone there is, in the order of the table's columns."""

_QUIET_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.3
_QUIET_PART: Final = 0.1
"""Of one processor; what brokers and Spark take while they wait."""

Figures = dict[str, Any]
"""What one measurement gave, as it is in the JSON."""


@dataclass
class Turns:
    """The measurements of a run; each contender is measured ``turns`` times, after a first time
    for warming up."""

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
        """Measures everyone in turns; ``rows``: of one measurement, to give processors' time."""
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
        """Keeps figures; each contender has as many as there were turns."""
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
    """Wait until all who take part leave the processors alone, some seconds at most."""
    deadline = time.monotonic() + _QUIET_WITHIN_S
    while time.monotonic() < deadline:
        before = _processor_seconds()
        time.sleep(_LOOK_S)
        if _processor_seconds() - before < _QUIET_PART * _LOOK_S:
            return


def gain(figures: Figures, contender: str, over: str) -> float | None:
    """How many times better, turn by turn; above 1 is better whatever the unit. None: unknown."""
    ours, theirs = figures["turns"].get(contender), figures["turns"].get(over)
    if not ours or not theirs:
        return None
    if figures["unit"] in LESS_IS_BETTER:
        ours, theirs = theirs, ours
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def contenders(measured: Sequence[Figures]) -> list[str]:
    """Those who took part, in one order; ways that came later stand at the end."""
    there = {name for each in measured for name in each["median"]}
    return [*(name for name in CONTENDERS if name in there), *sorted(there - {*CONTENDERS})]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: everyone comes first in his turn, and after another one each time.

    Who comes next pays for what is left behind, such as garbage in Spark's JVM. So nobody comes
    after the same one always (a Williams design).
    """
    count = len(names)
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    side = -1 if turn % 2 else 1
    return [names[(turn + side * step) % count] for step in steps]


def _rounded(figure: float) -> float:
    return float(f"{figure:.5g}")


def _processor_seconds() -> float:
    """What this process, those below it, and those that they have outlived have used."""
    this = psutil.Process()
    spent = 0.0
    for each in (this, *this.children(recursive=True)):
        try:
            spent += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return spent
