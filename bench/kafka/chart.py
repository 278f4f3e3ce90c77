"""The chart of docs/benchmarks.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.kafka.turns import CEILING, KAFKA, TUNED, Figures, contenders

CHARTED: Final = ("read", "write", "typed")
"""The parts whose figures are rates of rows."""


def digest(measures: Sequence[Figures]) -> str:
    """Return the digest of the chart's figures, which the chart contains."""
    charted = [each for each in measures if each["part"] in CHARTED]
    return hashlib.sha256(json.dumps(charted, sort_keys=True).encode()).hexdigest()


def draw(measures: Sequence[Figures], path: Path) -> None:
    """Bars of millions of rows a second, one group for each measurement."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    measured = [each for each in measures if each["part"] in CHARTED]
    names = contenders(measured)
    with mpl.rc_context({"svg.hashsalt": "isolog", "font.size": 9}):
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
        figure.savefig(path, metadata={"Date": None, "Source": digest(measures)})
