"""The tables in the docs that are generated: ``python -m docs_site.tables`` writes them.

A page has two marks for a table. ``make docs`` replaces the text between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from docs_site import calls, commands, options, others, series, settings

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"

TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "options": options.rendered,
    "Kafka's options": options.rendered_beside_kafkas,
    "settings of topics": settings.rendered_for_topics,
    "settings of brokers": settings.rendered_for_brokers,
    "commands": commands.rendered,
    "calls": calls.rendered,
    "messages": calls.rendered_messages,
    "errors": others.rendered_errors,
    "series": series.rendered,
    "series of workers": series.rendered_for_workers,
    "series of gateways": series.rendered_for_gateways,
    "metrics of queries": others.rendered_metrics,
}
"""The name of a table, in the marks around it → its renderer."""


def begin(name: str) -> str:
    """Return the mark before a table."""
    return f"<!-- {name}: `make docs` writes what follows -->"


def end(name: str) -> str:
    """Return the mark after a table."""
    return f"<!-- {name}: end -->"


def with_tables(page: str) -> str:
    """Return the page with its tables as they are now. ValueError if a mark has no other half."""
    for name, render in TABLES.items():
        if begin(name) not in page and end(name) not in page:
            continue
        before, first, rest = page.partition(begin(name))
        _, last, after = rest.partition(end(name))
        if not (first and last):
            raise ValueError(f"the page lacks {begin(name)!r} or {end(name)!r}")
        page = f"{before}{first}\n\n{render()}\n\n{last}{after}"
    return page


def pages(folder: Path = DOCS) -> Iterator[Path]:
    """Find the pages that have a table."""
    for path in sorted(folder.rglob("*.md")):
        if "`make docs` writes what follows -->" in path.read_text(encoding="utf-8"):
            yield path


def write_tables(folder: Path = DOCS) -> list[Path]:
    """Write the tables into all pages. Return the pages that have changed."""
    changed = []
    for path in pages(folder):
        page = path.read_text(encoding="utf-8")
        written = with_tables(page)
        if written != page:
            path.write_text(written, encoding="utf-8")
            changed.append(path)
    return changed


if __name__ == "__main__":
    for path in write_tables():
        print(f"{path.relative_to(DOCS.parent)} is changed")
