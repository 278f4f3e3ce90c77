"""The errors, and the metrics of queries."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from docs_site.cells import row, table
from spark_stream.datasource.watching import QueryMetrics
from spark_stream.errors import BY_CODE, IsologError


def rendered_errors() -> str:
    """Render every error: its code and class, why it is raised, and what to do."""
    rows = [
        row(
            f'<a id="{code.lower()}"></a>`{code}`<br>`{each.__name__}`',
            "yes" if each.retriable else "no",
            cause(each),
            each.hint,
        )
        for code, each in sorted(BY_CODE.items())
        if each is not IsologError
    ]
    return table("code, class", "retriable", "cause", "what to do", rows=rows)


def cause(error: type[IsologError]) -> str:
    """Return why an error is raised: its own docstring, on one line. ValueError if it has none."""
    text = error.__dict__.get("__doc__")
    if not text:
        raise ValueError(f"{error.__name__} has no docstring, which says why it is raised")
    return " ".join(inspect.cleandoc(text).replace("``", "`").split())


def rendered_metrics() -> str:
    """Render the metrics that ``LagListener`` serves, by what they register."""
    return table("metric", "type", "labels", "meaning", rows=_metrics())


def _metrics() -> Iterator[str]:
    registry = CollectorRegistry()
    for each in vars(QueryMetrics(registry)).values():
        describe = getattr(each, "describe", None)
        if describe is None:
            continue
        for family in describe():
            suffix = "_total" if family.type == "counter" else ""
            labels = ", ".join(f"`{name}`" for name in each._labelnames)
            yield row(f"`{family.name}{suffix}`", family.type, labels, family.documentation)
