"""This working tree next to an earlier commit: ``python -m bench --against COMMIT``.

The bench of this tree measures both packages, so both have the same measurements. Parts that use
more of the package than its public face may not run with every commit, which is then reported. The
bench imports ``spark_stream``, because earlier commits have no package ``isolog``. Figures are
compared pair by pair (``bench.turns`` makes the pairs).
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.results import LESS_IS_BETTER, Figure, shown, write
from bench.turns import Bench

_HOME: Final = Path(__file__).parent.parent
_PACKAGE: Final = ("spark_stream", "pyspark_isolog.py")
_FALL_MOST: Final = 0.97

Pair = tuple[Figure, Figure]
"""The earlier commit's figure, and this tree's."""


@dataclass(frozen=True)
class Comparison:
    """One figure of both. A gain above 1 is better, in any unit."""

    name: str
    unit: str
    old: float
    new: float
    gain: float
    gain_least: float
    gain_most: float

    @property
    def verdict(self) -> str:
        """``fell``: more than 3 % worse in each pair. ``fell, within the spread``: in the median.

        Otherwise the text is empty.
        """
        if self.gain >= _FALL_MOST:
            return ""
        return "fell" if self.gain_most < _FALL_MOST else "fell, within the spread"


def run(commit: str, parts: Sequence[str], options: Sequence[str], pairs: int) -> Path:
    """Measure both ``pairs`` times, show the comparison, and write it to a file."""
    found: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="isolog-bench-") as folder:
        old = Path(folder)
        _check_out(commit, old)
        for part in parts:
            for number in range(pairs):
                print(f"-- {part}, {number + 1} of {pairs}", file=sys.stderr, flush=True)
                measured = _pairs_of(old, part, options, old_first=number % 2 == 0)
                if measured is None:
                    print(f"-- {part}: cannot be measured with both", file=sys.stderr)
                    break
                found += measured
    compared = compare(found)
    _show(commit, compared)
    return write(_HOME / "bench" / "results", [asdict(each) for each in compared])


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """The medians of each figure, and of its gains pair by pair."""
    by_name: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for old, new in pairs:
        values = (old["measured"], new["measured"])
        by_name.setdefault((new["name"], new["unit"]), []).append(values)
    compared = []
    for (name, unit), measured in by_name.items():
        less_is_better = unit in LESS_IS_BETTER
        gains = [old / new if less_is_better else new / old for old, new in measured]
        compared.append(
            Comparison(
                name,
                unit,
                old=statistics.median(old for old, _ in measured),
                new=statistics.median(new for _, new in measured),
                gain=statistics.median(gains),
                gain_least=min(gains),
                gain_most=max(gains),
            )
        )
    return compared


def _check_out(commit: str, folder: Path) -> None:
    """Put the commit's package into the folder, without a record in git."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit, *_PACKAGE],
        cwd=_HOME,
        stdout=subprocess.PIPE,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def _pairs_of(
    old: Path, part: str, options: Sequence[str], *, old_first: bool
) -> list[Pair] | None:
    """The part's figures, measured once, or None if one of the two cannot measure it."""
    found: list[Pair] = []
    with Bench(old, _HOME, part, options) as before, Bench(_HOME, _HOME, part, options) as now:
        order = (before, now) if old_first else (now, before)
        while before.works and now.works:
            figures = {bench: bench.next_figure() for bench in order}
            pair = (figures[before], figures[now])
            if pair[0] is None or pair[1] is None:
                break
            assert pair[0]["name"] == pair[1]["name"]
            found.append((pair[0], pair[1]))
        return found if before.works and now.works else None


def _show(commit: str, compared: Sequence[Comparison]) -> None:
    table = Table(title=f"isolog, next to {commit}")
    for column in ("what", "unit"):
        table.add_column(column)
    for column in ("old", "new", "gain", "least to most"):
        table.add_column(column, justify="right")
    table.add_column("")
    for each in compared:
        table.add_row(
            each.name,
            each.unit,
            shown(each.old, each.unit),
            shown(each.new, each.unit),
            f"{each.gain:.2f}",
            f"{each.gain_least:.2f} to {each.gain_most:.2f}",
            each.verdict,
        )
    Console(width=140).print(table)
