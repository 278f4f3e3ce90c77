"""The tables of options in the docs, made from the tables in the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from spark_stream.datasource.options.kafka import KAFKAS, KafkaOption
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
    head = "| option | for | default | meaning |\n|---|---|---|---|"
    return "\n".join([head, *map(_row, OPTIONS)])


def rendered_beside_kafkas() -> str:
    """Return every option of Spark's Kafka connector, and what takes its place."""
    head = "| Kafka's option | for | default | isolog's | default | what differs |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(_row_beside_kafkas, KAFKAS)])


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "options": rendered,
    "Kafka's options": rendered_beside_kafkas,
}
"""What renders each table, by the table's name in the marks around it."""


def begin(name: str) -> str:
    """Return the mark before a table."""
    return f"<!-- {name}: `make docs` writes what follows -->"


def end(name: str) -> str:
    """Return the mark after a table."""
    return f"<!-- {name}: end -->"


def with_tables(page: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """Return the page with its tables as they are now. ValueError if it lacks their marks."""
    found = [name for name in tables if begin(name) in page or end(name) in page]
    if not found:
        raise ValueError(f"the page lacks the marks of all tables: {', '.join(tables)}")
    for name in found:
        before, first, rest = page.partition(begin(name))
        _, last, after = rest.partition(end(name))
        if not (first and last):
            raise ValueError(f"the page lacks {begin(name)!r} or {end(name)!r}")
        page = f"{before}{first}\n\n{tables[name]()}\n\n{last}{after}"
    return page


def write_tables(path: Path, tables: Mapping[str, Callable[[], str]] = TABLES) -> bool:
    """Write the tables into the page. Return whether that changed it."""
    page = path.read_text(encoding="utf-8")
    written = with_tables(page, tables)
    path.write_text(written, encoding="utf-8")
    return written != page


def _row(option: Option) -> str:
    return f"| `{option.name}` | {_WHOM[option.uses]} | {_default(option)} | {option.meaning} |"


def _row_beside_kafkas(theirs: KafkaOption) -> str:
    side = {"source": Use.SOURCE, "sink": Use.SINK, "both": Use.ALL}[theirs.side]
    ours = [
        each for name in theirs.ours for each in OPTIONS if each.name == name and each.uses & side
    ]
    names = ", ".join(f"`{each.name}`" for each in ours)
    defaults = ", ".join(dict.fromkeys(_default(each) for each in ours))
    cells = (
        f"`{theirs.name}`",
        theirs.side,
        theirs.default,
        names or "-",
        defaults or "-",
        theirs.differs,
    )
    return f"| {' | '.join(cells)} |"


def _default(option: Option) -> str:
    return option.shown or ("-" if option.default is None else f"`{option.default}`")
