"""The curves of docs/scale.md: ``python -m bench.growth_chart [RESULTS]`` draws them.

``RESULTS`` is a file of ``make bench BENCH_ARGS=growth``, which then replaces ``docs/growth.json``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bench.charts import STYLE, save, shows
from bench.results import Figure as Cost

DOCS: Final = Path(__file__).parent.parent / "docs"
FACTS: Final = DOCS / "growth.json"

_NAME: Final = re.compile(r"(.+), ([\d,]+) (.+)")
_COLUMNS: Final = 2
_UNCHARTED: Final = frozenset({"creation of the missing ones", "open files"})

Curves = Mapping[str, Mapping[str, list[tuple[int, float, str]]]]
"""Dimension → cost → its sizes, figures and units."""


def curves(measures: Sequence[Cost]) -> Curves:
    """Return the curves of a run, in its order."""
    found: dict[str, dict[str, list[tuple[int, float, str]]]] = {}
    for each in measures:
        named = _NAME.fullmatch(each["name"])
        if named is None or named[1] in _UNCHARTED:
            continue
        point = int(named[2].replace(",", "")), each["measured"], each["unit"]
        found.setdefault(named[3], {}).setdefault(named[1], []).append(point)
    return found


def draw(measures: Sequence[Cost], path: Path) -> None:
    """Draw a panel for each dimension. Each curve begins at 1: its cost at the smallest size."""
    found = curves(measures)
    rows = -(-len(found) // _COLUMNS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 2.7 * rows), layout="constrained")
        panels = list(figure.subplots(rows, _COLUMNS, sharey=True).flat)
        for panel in panels[len(found) :]:
            panel.remove()
        for panel, (dimension, costs) in zip(panels, found.items(), strict=False):
            panel.set(title=dimension, xscale="log", yscale="log", ylim=(0.3, 1_000))
            panel.spines[["top", "right"]].set_visible(False)
            panel.axhline(1, color="0.8", linewidth=0.8)
            for name, points in costs.items():
                sizes, figures, units = zip(*points, strict=True)
                label = f"{name}: {_shown(figures[0])} to {_shown(figures[-1])} {units[0]}"
                relative = [each / figures[0] for each in figures]
                panel.plot(sizes, relative, marker="o", markersize=3, label=label)
            panel.set_xticks(sizes, [f"{each:,}" for each in sizes])
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.legend(fontsize=7, frameon=False, loc="upper left")
        figure.supylabel("cost, relative to the smallest size")
        save(figure, path, measures)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}"


def write(facts: Mapping[str, Any], folder: Path = DOCS) -> None:
    """Write the results and their chart to the folder."""
    (folder / FACTS.name).write_text(json.dumps(facts, indent=1) + "\n")
    chart = folder / "growth.svg"
    if not shows(chart, facts["measures"]):
        draw(facts["measures"], chart)


if __name__ == "__main__":
    given = Path(sys.argv[1]) if sys.argv[1:] else FACTS
    write(json.loads(given.read_text()))
