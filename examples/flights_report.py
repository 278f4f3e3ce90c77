"""What the flights demo shows: progress while it runs, then tables, counts and a chart."""

from __future__ import annotations

from calendar import month_abbr
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from rich import box, progress
from rich.console import Console
from rich.table import Table

RAIN = ("no report", "dry", "up to 0.05 inch", "up to 0.25 inch", "more")

console = Console(highlight=False)
if not console.is_terminal:
    console = Console(highlight=False, width=100)


class Progress:
    """A line for every micro-batch, and on a terminal two bars below them."""

    def __init__(self, flights: int, isolation: str) -> None:
        self._flights = flights
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(24),
            progress.TextColumn("{task.completed:>7,} of {task.total:,}"),
            progress.TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._written = self._bars.add_task("written", total=flights, note="")
        self._read = self._bars.add_task(f"read ({isolation})", total=flights, note="")
        self._isolation = isolation
        self._end = 0
        self._behind = 0

    def wrote(self, batch: int, rows: int, seconds: float, *, total: int) -> None:
        """The writing job finished a micro-batch."""
        console.print(self._line("write", batch, rows, seconds, f"written {total:>7,}"))
        self._bars.update(self._written, completed=total)

    def read(self, batch: int, rows: int, seconds: float, *, total: int) -> None:
        """The reading job finished a micro-batch."""
        line = self._line("read", batch, rows, seconds, f"   read {total:>7,}")
        console.print(f"[cyan]{line}")
        self._bars.update(self._read, completed=total)

    def behind(self, backlog: int) -> None:
        """How far the reading job is behind the log's end."""
        self._bars.update(self._read, note=f"backlog {backlog:,}")

    @staticmethod
    def _line(job: str, batch: int, rows: int, seconds: float, total: str) -> str:
        return f"{job:>5}  micro-batch {batch:>2} {rows:>8,} rows {seconds:>5.2f} s   {total}"

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
