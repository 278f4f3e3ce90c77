"""The settings of topics and of brokers.

``conf/broker.toml`` has the meaning of each setting, and a test compares it with the code. Defaults
and allowed values come from the code itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from docs_site.cells import row, table
from spark_stream.broker.config import BrokerConfig
from spark_stream.storage.settings import SETTINGS, AllowedRange, LogSettings, shown_settings

_FILE: Final = Path(__file__).resolve().parents[1] / "conf" / "broker.toml"
_NAME: Final = re.compile(r'#?"?([a-z][\w.]*)"? = ')
_BOUNDS: Final = (("ge", "at least {}"), ("gt", "more than {}"), ("le", "at most {}"))
_IDENTIFIER: Final = re.compile(
    r"\b(?:ISOLOG_\w+|[a-z]+(?:_[a-z]+)+|[a-z.]+\.\*|"
    + "|".join(re.escape(name) for name in SETTINGS if "." in name)
    + r")(?!\w)"
)


class Explained(NamedTuple):
    """Settings that one comment of the file explains."""

    names: list[str]
    comment: str


def explained(text: str) -> Iterator[Explained]:
    """Read the paragraphs of the file: comments, and the settings below them."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        names = [found[1] for line in lines if (found := _NAME.match(line))]
        words = [line.removeprefix("#").strip() for line in lines if line.startswith("# ")]
        if names:
            yield Explained(names, " ".join(words))


def rendered_for_topics() -> str:
    """Render the settings of a topic."""
    defaults = shown_settings(LogSettings())
    hints = get_type_hints(LogSettings, include_extras=True)
    rows = []
    for names, comment in explained(_FILE.read_text().partition("\n[topic]\n")[2]):
        rows.append(
            row(
                _lines(f"`{name}`" for name in names),
                _lines(f"`{defaults[name]}`" if defaults[name] else "none" for name in names),
                _lines(_values(hints[SETTINGS[name]]) for name in names),
                _linked(comment),
            )
        )
    return table("setting", "default", "values", "meaning", rows=rows)


def rendered_for_brokers() -> str:
    """Render the settings of a broker."""
    rows = []
    for names, comment in explained(_FILE.read_text().partition("\n[topic]\n")[0]):
        rows.append(
            row(
                _lines(f"`{name}`" for name in names),
                _lines(map(_default, names)),
                _lines(map(_bounds, names)),
                _linked(comment),
            )
        )
    return table("setting", "default", "values", "meaning", rows=rows)


def _lines(cells: Any) -> str:
    return "<br>".join(cells)


def _linked(comment: str) -> str:
    """Return a comment as Markdown: pages that it names become links, quotes become code."""
    text = comment.replace("<", "&lt;")
    parts = re.sub(r'"([^"]*)"', r"`\1`", text).split("`")
    parts[::2] = [_IDENTIFIER.sub(r"`\g<0>`", each) for each in parts[::2]]  # not within code
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", "`".join(parts))


def _values(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{each}`" for each in kind)
    if kind is bool:
        return "`true`, `false`"
    for each in getattr(kind, "__metadata__", ()):
        if isinstance(each, AllowedRange):
            return f"{each.low} to {each.high}" + (", or -1: no limit" if each.unlimited else "")
    return "names of columns"


def _default(name: str) -> str:
    field = BrokerConfig.model_fields[name]
    if field.is_required() or field.default is None:
        return "none"
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"
    return f"`{value}`" if isinstance(value, str) and value else "none"


def _bounds(name: str) -> str:
    field = BrokerConfig.model_fields[name]
    found = [
        text.format(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}")
        for attribute, text in _BOUNDS
        for each in field.metadata
        if (bound := getattr(each, attribute, None)) is not None
    ]
    if found:
        return ", ".join(found)
    kinds = get_args(field.annotation) or (field.annotation,)
    return "`true`, `false`" if bool in kinds else ""
