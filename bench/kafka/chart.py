"""The chart of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.charts import STYLE, save, shows
from bench.kafka.turns import CEILING, KAFKA, TUNED, Figures, contenders

CHARTED: Final = ("read", "write", "typed")
"""The parts whose figures are rates of rows."""


def charted(measures: Sequence[Figures]) -> list[Figures]:
    """Return the figures of the chart."""
    return [each for each in measures if each["part"] in CHARTED]


def write(measures: Sequence[Figures], path: Path) -> None:
    """Draw bars of millions of rows a second, one group for each measurement.

    A chart of the same figures stays.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    measured = charted(measures)
    if shows(path, measured):
        return
    names = contenders(measured)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.75 * len(measured) + 1), layout="constrained")
        axes = figure.subplots()
        height = 0.8 / len(names)
        for number, name in enumerate(names):
            places = [group + number * height for group in range(len(measured))]
            rates = [each["median"].get(name, 0) / 1e6 for each in measured]
            color = {CEILING: "0.8", KAFKA: "#c0504d", TUNED: "#e0a09e"}.get(name)
            axes.barh(places, rates, height, label=name, color=color)
        axes.set_yticks(
            [group + 0.4 - height / 2 for group in range(len(measured))],
            [each["name"] for each in measured],
        )
        axes.invert_yaxis()
        axes.set_xlabel("million rows a second")
        axes.legend()
        axes.spines[["top", "right"]].set_visible(False)
        save(figure, path, measured)
