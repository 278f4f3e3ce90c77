"""Code that reads exactly the records which a page shows, for Spark and for Python."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct

from spark_stream.consistency.isolation import Isolation

CUT_REMARK = "# These offsets are below a cut that divides no transaction."


class ShownRange(Struct, frozen=True):
    """What a page shows: the offsets ``[start, end)`` of each partition, as a level sees them.

    ``connects``: how to connect beside the address, as options of Spark's source.
    """

    bootstrap: str
    topic: str
    ranges: Mapping[int, tuple[int, int]]
    isolation: Isolation
    filter: str | None = None
    is_typed: bool = True
    connects: tuple[tuple[str, str], ...] = ()

    @property
    def level(self) -> str:
        """The level to read with: below a cut everything is decided."""
        atomic = self.isolation is Isolation.READ_ATOMIC
        return str(Isolation.READ_COMMITTED if atomic else self.isolation)

    @property
    def remark(self) -> list[str]:
        """What to know about the level."""
        return [CUT_REMARK] if self.isolation is Isolation.READ_ATOMIC else []


def spark_snippet(shown: ShownRange) -> str:
    """Return a batch query of PySpark."""
    numbers = sorted(shown.ranges)
    starts = {str(number): shown.ranges[number][0] for number in numbers}
    ends = {str(number): shown.ranges[number][1] for number in numbers}
    options = [
        ("bootstrap", shown.bootstrap),
        ("assign", json.dumps({shown.topic: numbers})),
        ("isolation", shown.level),
        ("startingOffsets", json.dumps({shown.topic: starts})),
        ("endingOffsets", json.dumps({shown.topic: ends})),
    ]
    if shown.filter is not None:
        options.append(("filter", shown.filter))
    if shown.is_typed:
        options.append(("includeMetadata", "true"))
    options += shown.connects
    lines = [
        *shown.remark,
        "rows = (",
        '    spark.read.format("isolog")',
        *(f"    .option({_text(name)}, {_text(value)})" for name, value in options),
        "    .load()",
        ")",
    ]
    return "\n".join(lines) + "\n"


def python_snippet(shown: ShownRange) -> str:
    """Return a read by the Python client."""
    numbers = sorted(shown.ranges)
    login = "".join(f", {name.replace('.', '_')}={_text(value)}" for name, value in shown.connects)
    lines = [
        "import isolog",
        "",
        *shown.remark,
        f"with isolog.connect({_text(shown.bootstrap)}{login}) as log:",
        "    rows = log.read(",
        f"        {_text(shown.topic)},",
        f"        partitions={numbers!r},",
        f"        start={ {number: shown.ranges[number][0] for number in numbers}!r},",
        f"        end={ {number: shown.ranges[number][1] for number in numbers}!r},",
        f"        isolation={_text(shown.level)},",
        *([] if shown.filter is None else [f"        filter={_text(shown.filter)},"]),
        *(["        metadata=True,"] if shown.is_typed else []),
        "    )",
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Return a literal of Python, in double quotes where the text has none."""
    literal = repr(value)
    if literal[0] == "'" and '"' not in value:
        return '"' + literal[1:-1] + '"'
    return literal
