"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def row(*cells: str) -> str:
    """Return a row. A bar within a cell is escaped."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def table(*heads: str, rows: Iterable[str]) -> str:
    """Return a table of rows that :func:`row` has made."""
    return "\n".join(["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", *rows])
