"""The table of options in the docs, as the table in the code says it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spark_stream.datasource.options.table import OPTIONS, Option, Use

BEGIN: Final = "<!-- options: `make docs` writes what follows -->"
END: Final = "<!-- options: end -->"

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
    """The table, and the options that are still to come."""
    rows = [_row(each) for each in OPTIONS if not each.later]
    later = ", ".join(f"`{each.name}`" for each in OPTIONS if each.later)
    head = "| option | for | default | meaning |\n|---|---|---|---|"
    table = "\n".join([head, *rows])
    return table if not later else f"{table}\n\nStill to come, and refused by name: {later}."


def with_table(page: str) -> str:
    """The page with the table between the two marks as it is now; ValueError without the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{rendered()}\n\n{END}{after}"


def write_table(path: Path) -> bool:
    """Writes the table into the page; whether that changed it."""
    page = path.read_text(encoding="utf-8")
    written = with_table(page)
    path.write_text(written, encoding="utf-8")
    return written != page


def _row(option: Option) -> str:
    default = option.shown or ("-" if option.default is None else f"`{option.default}`")
    return f"| `{option.name}` | {_WHOM[option.uses]} | {default} | {option.meaning} |"
