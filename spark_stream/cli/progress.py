"""A progress bar on standard error: only on a terminal, and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_AFTER_S: Final = 1.0


class Bar:
    """Shows how many records were moved, and their share of all."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._since = time.monotonic()
        self._records = 0
        self._shown: tuple[Progress, TaskID] | None = None

    def advance(self, records: int, part: float | None) -> None:
        """Add records; ``part`` of the whole (0 to 1) is done then, None if that is unknown."""
        self._records += records
        if time.monotonic() - self._since < _AFTER_S:
            return
        if self._shown is None:
            self._shown = self._begun()
        progress, task = self._shown
        progress.update(
            task,
            completed=part or 0.0,
            total=None if part is None else 1.0,
            records=f"{self._records:,} records",
        )

    def _begun(self) -> tuple[Progress, TaskID]:
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[records]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._title, total=1.0, records="")

    def end(self) -> None:
        """Remove the bar from the screen."""
        if self._shown is not None:
            self._shown[0].stop()


class _Hidden(Bar):
    """No bar: standard error is no terminal, or the records themselves go to the screen."""

    def advance(self, records: int, part: float | None) -> None:
        pass


@contextmanager
def bar(title: str, *, screen_is_free: bool = True) -> Iterator[Bar]:
    """Show a bar until the block ends."""
    shown = Bar(title) if screen_is_free and sys.stderr.isatty() else _Hidden(title)
    try:
        yield shown
    finally:
        shown.end()
