"""Names as cells of a table, and values as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from rich.markup import escape

from spark_stream.consistency.isolation import ReaderState
from spark_stream.errors import IsologError


def visible(text: str) -> str:
    """Return the text with ``\\x1b`` and the like for each character that cannot be seen.

    Names may have control characters, which a terminal takes as commands.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cell(text: str) -> str:
    """Return the text as a cell of a table: visible, and not taken as markup by ``rich``."""
    return escape(visible(text))


def state_text(state: ReaderState) -> str:
    """Return the state of a reader in words."""
    return "waiting at the LSO" if state is ReaderState.WAITING_AT_LSO else state.replace("_", " ")


def as_json(value: Any) -> Any:
    """Convert a value for ``json.dumps``, with every field, even if it has its default."""
    match value:
        case IsologError():
            return value.to_wire()
        case Struct():
            return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
    return value
