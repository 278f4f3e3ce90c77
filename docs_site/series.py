"""The series of brokers, from their table in the code."""

from __future__ import annotations

from docs_site.cells import row, table
from spark_stream.broker.metrics.series import TABLE, Series, Subject


def rendered() -> str:
    """Render the series, a table for each subject."""
    return "\n\n".join(
        f"**{subject.value}**\n\n"
        + table(
            "series",
            "labels",
            "meaning",
            rows=(_row(each) for each in TABLE if each.subject is subject),
        )
        for subject in Subject
    )


def _row(series: Series) -> str:
    name = f"`{series.name}`"
    if series.kind.value == "histogram":
        name += " (histogram)"
    meaning = series.meaning + ("; `/metrics/all` only" if series.detailed else "")
    return row(name, ", ".join(series.labels) or "-", meaning)
