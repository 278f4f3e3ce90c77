"""The tables of options in the docs, made from the tables in the code."""

from __future__ import annotations

from typing import Any, Final

from docs_site.cells import row, table
from spark_stream.datasource.options.names import KAFKAS, KafkaOption
from spark_stream.datasource.options.table import OPTIONS, Option, Use

_WHOM: Final = {
    Use.ALL: "both",
    Use.SOURCE: "source",
    Use.SINK: "sink",
    Use.BATCH_SOURCE: "batch source",
    Use.STREAM_SOURCE: "stream source",
    Use.BATCH_SINK: "batch sink",
    Use.STREAM_SINK: "stream sink",
}


def rendered() -> str:
    """Render the table."""
    return table("option", "for", "default", "meaning", rows=map(_row, OPTIONS))


def rendered_beside_kafkas() -> str:
    """Return every option of Spark's Kafka connector, and its replacement."""
    heads = ("Kafka's option", "for", "default", "isolog's", "default", "what differs")
    return table(*heads, rows=map(_row_beside_kafkas, KAFKAS))


def _row(option: Option[Any]) -> str:
    return row(f"`{option.name}`", _WHOM[option.uses], _default(option), option.meaning)


def _row_beside_kafkas(theirs: KafkaOption) -> str:
    side = {"source": Use.SOURCE, "sink": Use.SINK, "both": Use.ALL}[theirs.side]
    ours = [
        each for name in theirs.ours for each in OPTIONS if each.name == name and each.uses & side
    ]
    names = ", ".join(f"`{each.name}`" for each in ours)
    defaults = ", ".join(dict.fromkeys(_default(each) for each in ours))
    return row(
        f"`{theirs.name}`",
        theirs.side,
        theirs.default,
        names or "-",
        defaults or "-",
        theirs.differs,
    )


def _default(option: Option[Any]) -> str:
    return option.shown or ("-" if option.default is None else f"`{option.default}`")
