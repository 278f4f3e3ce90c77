"""Results: a table of ratios for people, JSON for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Figure = dict[str, Any]
"""One figure as it is in a file of results."""

LESS_IS_BETTER = frozenset(
    {"ns a row", "us", "ms", "s", "MiB", "KiB", "files", "% of a core", "switches", "calls"}
)
"""Units of costs. The other units are rates."""


@dataclass(frozen=True)
class Measure:
    """One figure, and the ceiling that was measured next to it."""

    name: str
    unit: str
    measured: float
    ceiling: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.measured / self.ceiling if self.ceiling else None


@dataclass
class Results:
    """All figures of a run. ``tell`` is called with each."""

    tell: Callable[[Measure], None] = lambda _: None
    measures: list[Measure] = field(default_factory=list)

    def add(
        self,
        name: str,
        unit: str,
        *,
        measured: float,
        ceiling: float | None = None,
        note: str = "",
    ) -> None:
        measure = Measure(name, unit, measured, ceiling, note)
        self.measures.append(measure)
        ratio = f", ratio {measure.ratio:.2f}" if measure.ratio else ""
        Console(stderr=True).print(f"{name}: {shown(measured, unit)} {unit}{ratio} {note}")
        self.tell(measure)

    def write(self, folder: Path) -> Path:
        return write(folder, [asdict(each) | {"ratio": each.ratio} for each in self.measures])

    def show(self) -> None:
        table = Table(title="isolog, next to its ceilings")
        for column in ("what", "unit"):
            table.add_column(column)
        for column in ("measured", "ceiling", "ratio"):
            table.add_column(column, justify="right")
        table.add_column("note")
        for each in self.measures:
            table.add_row(
                each.name,
                each.unit,
                shown(each.measured, each.unit),
                shown(each.ceiling, each.unit) if each.ceiling else "",
                f"{each.ratio:.2f}" if each.ratio else "",
                each.note,
            )
        Console(width=140).print(table)


def write(folder: Path, measures: list[Figure]) -> Path:
    """Write the figures, with time and place of the measurement, to a new file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"{now:%Y%m%dT%H%M%S.%fZ}.json"
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    facts = {"at": now.isoformat(), "machine": machine, "measures": measures}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    return path


def shown(value: float, unit: str) -> str:
    fraction = unit in LESS_IS_BETTER and unit != "files" and value < 100
    return f"{value:,.3f}" if fraction else f"{value:,.0f}"
