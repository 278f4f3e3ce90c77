"""docs/benchmarks.md and its chart, from the results of a run: ``python -m bench.kafka.page``.

The results are beside the page as JSON. ``tests/house/test_bench_kafka.py`` checks that the figures
of the page are those of its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bench.kafka import chart
from bench.kafka.tuning import TUNED_WAIT
from bench.kafka.turns import CEILING, CONNECTION, ISOLOG, KAFKA, TUNED, Figures, contenders, gain
from bench.results import LESS_IS_BETTER, shown

DOCS: Final = Path(__file__).parent.parent.parent / "docs"

_PARTS: Final = {
    "read": "Reads into Spark, Kafka's columns",
    "write": "Writes from Spark, keyed rows",
    "typed": "20 typed columns against JSON",
    "small": "Small micro-batches",
    "latency": "How soon",
    "clients": "Python clients without Spark",
    "disk": "On the disk",
    "memory": "Memory",
}

_SHARED: Final = """
**Others used the machine at the same time.** The figures of single turns are noisy, and rates are
lower than on an otherwise idle machine. The processor time, further down, is less affected.
"""
_LESS: Final = "Less is better. A ratio to another contender is above 1 where isolog is better."
_TEMPLATE: Final = Path(__file__).parent / "page.md"


def write(facts: Mapping[str, Any], folder: Path = DOCS) -> None:
    """Write the results, the page and the chart to the folder."""
    (folder / "benchmarks.json").write_text(json.dumps(facts, indent=1) + "\n")
    (folder / "benchmarks.md").write_text(rendered(facts))
    chart.write(facts["measures"], folder / "benchmarks.svg")


def rendered(facts: Mapping[str, Any]) -> str:
    """The page."""
    settings, machine, versions = facts["settings"], facts["machine"], facts["versions"]
    return _TEMPLATE.read_text().format(
        day=f"{datetime.fromisoformat(facts['at']):%d %B %Y}",
        minutes=facts["minutes"],
        cores=machine["cores"],
        memory=machine["memory_gib"],
        system=f"{machine['system']}, {machine['architecture']}",
        shared=_SHARED if machine["shared"] else "",
        versions=", ".join(f"{name} {number}" for name, number in versions.items()),
        pyspark=versions["pyspark"],
        tables="\n".join([table(facts), *_processors(facts["measures"])]).strip(),
        kafka=KAFKA,
        tuned=TUNED,
        isolog=ISOLOG,
        flight=CONNECTION,
        heap=f"`{settings['heap of the kafka broker']}`",
        source=_options(settings["tuned source"]),
        sink=_options(settings["tuned sink"]),
        wait=_wait(facts["measures"]),
        **{name: settings[name] for name in ("rows", "partitions", "turns", "batches", "rounds")},
    )


def table(facts: Mapping[str, Any]) -> str:
    """The figures of each part, as a table."""
    lines: list[str] = []
    for part, title in _PARTS.items():
        measured = [each for each in facts["measures"] if each["part"] == part]
        if measured:
            lines += [f"## {title}", "", *_part(measured), ""]
    return "\n".join(lines)


def _part(measured: Sequence[Figures]) -> list[str]:
    names = contenders(measured)
    against = [
        (heading, over)
        for heading, over in (
            ("isolog to the ceiling", CEILING),
            ("to Kafka, defaults", KAFKA),
            ("to Kafka, tuned", TUNED),
        )
        if over in names
    ]
    heads = ["", "unit", *names, *(heading for heading, _ in against), "note"]
    lines = [_line(heads), _line(["---", "---", *["---:"] * (len(heads) - 3), "---"])]
    for each in measured:
        unit = each["unit"]
        figures = [
            _shown(each["median"][name], unit) if name in each["median"] else "" for name in names
        ]
        gains = [gain(each, ISOLOG, over) for _, over in against]
        cells = ["" if found is None else f"{found:.2f}" for found in gains]
        lines.append(_line([each["name"], unit, *figures, *cells, each["note"]]))
    if any(each["unit"] in LESS_IS_BETTER for each in measured) and against:
        lines += ["", _LESS]
    return lines


def _processors(measures: Sequence[Figures]) -> list[str]:
    """Processor time, which hardly depends on other load of the machine."""
    key = "processor_seconds_per_million_rows"
    measured = [each for each in measures if key in each]
    if not measured:
        return []
    names = contenders(measured)
    lines = [_line(["", *names]), _line(["---", *["---:"] * len(names)])]
    for each in measured:
        figures = [f"{each[key][name]:.2f}" if name in each[key] else "" for name in names]
        lines.append(_line([each["name"], *figures]))
    return [
        "## Processors' time",
        "",
        "Processor seconds per million rows, of all processes together: Spark's JVM, its Python",
        "workers and the brokers. Less is better.",
        "",
        *lines,
        "",
    ]


def _wait(measures: Sequence[Figures]) -> str:
    """The options of tuned low-latency queries, if they were measured."""
    measured = [each for each in measures if each["part"] == "latency" and TUNED in each["median"]]
    return f" (tuned: {_options(TUNED_WAIT)})" if measured else ""


def _shown(figure: float, unit: str) -> str:
    """Round small costs to three significant figures."""
    return f"{figure:.3g}" if unit in LESS_IS_BETTER and figure < 100 else shown(figure, unit)


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in options.items())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write(json.loads((DOCS / "benchmarks.json").read_text()))
