"""One set of options for a source and a sink together, as tables and views have it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_stream.datasource.options.checking import (
    TOPIC_SETTING,
    checked,
    counted_in_table,
    topic_settings,
)
from spark_stream.datasource.options.table import Use
from spark_stream.errors import InvalidOption


def source_part(given: Mapping[str, str], *, streaming: bool | None = None) -> dict[str, str]:
    """Return this kind of source's part of options for a source and a sink together."""
    kind = {None: Use.SOURCE, True: Use.STREAM_SOURCE, False: Use.BATCH_SOURCE}[streaming]
    _, given = topic_settings(given)
    return _part(given, kind)


def sink_part(given: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Return this kind of sink's part of options for a source and a sink together.

    ``isolation`` is the source's, which takes more levels than a sink.
    """
    settings, given = topic_settings(given)
    part = _part(given, Use.STREAM_SINK if streaming else Use.BATCH_SINK)
    return part | {f"{TOPIC_SETTING}{name}": value for name, value in settings.items()}


def _part(given: Mapping[str, str], kind: Use) -> dict[str, str]:
    known = checked(given, Use.ALL, "table")
    anybodys = counted_in_table(Use.ALL)
    for name in known:
        if name not in anybodys and not kind & Use.SOURCE:
            raise InvalidOption(f"{name} is for one write, not for a table", option=name)
    mine = counted_in_table(kind)
    return {name: value for name, value in known.items() if name in mine}
