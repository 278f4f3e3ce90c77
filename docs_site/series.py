"""The series of brokers, lake workers and Kafka gateways, from their tables in the code."""

from __future__ import annotations

from collections.abc import Iterable

from docs_site.cells import row, table
from spark_stream.broker.metrics.series import TABLE
from spark_stream.figures import Series, Subject
from spark_stream.kafka.counts import GatewayFigures
from spark_stream.lake_worker.counts import WorkerFigures


def rendered() -> str:
    """Render the series, a table for each subject."""
    return "\n\n".join(
        f"**{subject.value}**\n\n" + _table(each for each in TABLE if each.subject is subject)
        for subject in Subject
        if subject not in (Subject.LAKE_WORKER, Subject.KAFKA_GATEWAY)
    )


def rendered_for_workers() -> str:
    """Render the series of a lake's worker."""
    return _table(WorkerFigures.series())


def rendered_for_gateways() -> str:
    """Render the series of a Kafka gateway."""
    return _table(GatewayFigures.series())


def _table(found: Iterable[Series]) -> str:
    return table("series", "labels", "meaning", rows=map(_row, found))


def _row(series: Series) -> str:
    name = f"`{series.name}`"
    if series.kind.value == "histogram":
        name += " (histogram)"
    meaning = series.meaning + ("; `/metrics/all` only" if series.detailed else "")
    return row(name, ", ".join(series.labels) or "-", meaning)
