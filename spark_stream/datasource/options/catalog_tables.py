"""The options of catalog tables and temporary views, which serve both source and sink.

The options of a table are those of ``CREATE TABLE … USING isolog OPTIONS (…)``. Spark passes a
table's OPTIONS only to ``schema()``, when the table is created without columns. Later readers and
writers get none of them. They do get the table's columns, though, with their comments
(``tests/spark/test_tables.py``). So the options are stored in the comment of the table's first
column (decision 24):

    isolog {"path": "/data/log", "subscribe": "numbers", "topic": "numbers"}

Spark never calls ``schema()`` for a table with declared columns: the author of such a table writes
that comment. Rows that already have the table's column names are inserted without its comments.
Such a query has to give the place (``WITH (path '…', topic '…')``).

Source and sink each use their part of the options. The table's ``isolation`` is the source's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pyspark.sql.types as st
from msgspec import Struct

from spark_stream.datasource.options.names import (
    TOPIC_SETTING,
    check_names,
    table_option_names,
    topic_settings,
)
from spark_stream.datasource.options.table import Use
from spark_stream.datasource.spark.place import Place
from spark_stream.errors import InvalidOption

_PREFIX: Final = "isolog "
_OPTION: Final = "option."
_SELECTING: Final = ("subscribe", "subscribepattern", "assign")
_WHERE: Final = ("path", "bootstrap", "profile", *_SELECTING, "topic")
_SECRET: Final = ("password", "token")


class TableOptions(Struct, frozen=True):
    """The OPTIONS of a table, by names in lower case."""

    given: Mapping[str, str]

    def at(self, place: Place) -> TableOptions:
        """Return the options with an absolute path: a table keeps its directory."""
        if "path" not in self.given or place.path is None:
            return self
        return TableOptions({**self.given, "path": place.path})

    def kept_in(self, schema: st.StructType) -> st.StructType:
        """Return the columns, with these options in the comment of the first."""
        first, *others = schema.fields
        comment = _PREFIX + json.dumps(dict(sorted(self.given.items())))
        metadata = {**(first.metadata or {}), "comment": comment}
        kept = st.StructField(first.name, first.dataType, first.nullable, metadata)
        return st.StructType([kept, *others])


def table_options(options: Mapping[str, str]) -> TableOptions | None:
    """Return the OPTIONS of the table that is being created, or None without a table.

    Spark passes them together with its own and the user's properties, and passes each but the path
    a second time with a prefix.

    Raises:
        InvalidOption: a secret is among them.
    """
    lower = {name.lower(): value for name, value in options.items()}
    if "provider" not in lower:
        return None
    given = {
        name.removeprefix(_OPTION): value
        for name, value in lower.items()
        if name.startswith(_OPTION)
    }
    for name in _SECRET:
        if name in given:
            raise InvalidOption(
                f"{name} in the OPTIONS of a table: a catalog shows them to all its users",
                option=name,
                hint="Give profile, or tokenFile, with the path of a file that contains it.",
            )
    if "path" in lower:
        given["path"] = lower["path"]
    return TableOptions(share_topic(given))


def share_topic(given: Mapping[str, str]) -> dict[str, str]:
    """Use the only named topic for reading and for writing, unless the options name both."""
    found = dict(given)
    if "topic" in found:
        if not any(name in found for name in _SELECTING):
            found["subscribe"] = found["topic"]
    elif "subscribe" in found and "," not in found["subscribe"]:
        found["topic"] = found["subscribe"]
    return found


def options_of_columns(options: Mapping[str, str], schema: st.StructType) -> TableOptions | None:
    """Return the options of the table that has these columns, or None if no table has.

    A query that names its place or topics has all its options. A comment that a DataFrame has from
    a table is then ignored.
    """
    if any(name.lower() in _WHERE for name in options):
        return None
    for field in schema.fields:
        comment = field.metadata.get("comment") if field.metadata else None
        if isinstance(comment, str) and comment.startswith(_PREFIX + "{"):
            return TableOptions(share_topic(_parsed(field.name, comment)))
    return None


def names_both_sides(options: Mapping[str, str]) -> bool:
    """Return whether these options are for source and sink together, as for a temporary view."""
    names = {name.lower() for name in options}
    return "topic" in names and any(name in names for name in _SELECTING)


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
    known = check_names(given, Use.ALL, "table")
    anybodys = table_option_names(Use.ALL)
    for name in known:
        if name not in anybodys and not kind & Use.SOURCE:
            raise InvalidOption(f"{name} is for one write, not for a table", option=name)
    mine = table_option_names(kind)
    return {name: value for name, value in known.items() if name in mine}


def _parsed(column: str, comment: str) -> dict[str, str]:
    try:
        found = json.loads(comment.removeprefix(_PREFIX))
    except ValueError as error:
        raise InvalidOption(
            f"the comment of column {column!r} starts with {_PREFIX!r}, but what follows is not a"
            f" JSON object: {error}",
            hint='Write it as: COMMENT \'isolog {"path": "/data/log", "topic": "numbers"}\'.',
        ) from None
    return {
        str(name).lower(): value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }
