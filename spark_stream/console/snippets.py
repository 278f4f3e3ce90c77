"""Code for Spark and for Python that reads exactly the records of a page."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct

from spark_stream.consistency.isolation import Isolation

CUT_REMARK = "# These offsets are below a cut that divides no transaction."


class ShownRange(Struct, frozen=True):
    """The range of a page: offsets ``[start, end)`` of each partition under an isolation level.

    ``connects``: further options of the connection, with the names of Spark's options.
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
        """The level of the snippets. Below a cut all transactions are decided."""
        atomic = self.isolation is Isolation.READ_ATOMIC
        return str(Isolation.READ_COMMITTED if atomic else self.isolation)

    @property
    def remark(self) -> list[str]:
        """A comment about the level."""
        return [CUT_REMARK] if self.isolation is Isolation.READ_ATOMIC else []


def spark_snippet(shown: ShownRange) -> str:
    """Return the code of a batch query for PySpark."""
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
    """Return the code of a read with the Python client."""
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
    """Return a literal of Python, in double quotes unless the text contains them."""
    literal = repr(value)
    if literal[0] == "'" and '"' not in value:
        return '"' + literal[1:-1] + '"'
    return literal
