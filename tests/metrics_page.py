"""The table of series in docs/operations.md: ``python -m tests.metrics_page`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spark_stream.broker.metrics.table import TABLE, Series, Subject
from spark_stream.datasource.options.page import write_tables

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "operations.md"


def rendered() -> str:
    """The series, a table for each subject."""
    return "\n\n".join(
        "\n".join(
            [
                f"**{subject.value}**\n",
                "| series | labels | meaning |\n|---|---|---|",
                *(_row(each) for each in TABLE if each.subject is subject),
            ]
        )
        for subject in Subject
    )


def _row(series: Series) -> str:
    name = f"`{series.name}`"
    if series.kind.value == "histogram":
        name += " (histogram)"
    meaning = series.meaning + ("; `/metrics/all` only" if series.detailed else "")
    return f"| {name} | {', '.join(series.labels) or '-'} | {meaning} |"


TABLES: Final = {"series": rendered}

if __name__ == "__main__":
    print(PAGE.name, "is changed" if write_tables(PAGE, TABLES) else "is as it should be")
