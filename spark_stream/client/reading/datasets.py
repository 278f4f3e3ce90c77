"""Topics as Arrow datasets, which DuckDB scans with the columns and the filter of a statement.

A scan streams its batches, so that no topic is in memory as a whole. Leaders and tables get the
part of the filter that isolog's filters have. Each batch is filtered again by the whole expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as pads

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.reading.columns import View, shown_schema
from spark_stream.client.reading.ranges import TopicSpan, read_partition, topic_spans
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import InvalidFilter, IsologError
from spark_stream.schema.schemas import is_default
from spark_stream.sql.filters import row_filter
from spark_stream.transport.lifetime import new_lock

_SIGNS: Final = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_COMPARISON: Final = re.compile(
    r"""\((?P<name>\w+)\ (?P<sign>==|!=|<=?|>=?)\ (?P<constant>-?\d+|"[^"'\\]*")\)""", re.VERBOSE
)
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|[^"()]+')


class TopicDatasets:
    """The topics that a statement reads. All are read up to the same ends, or to one cut.

    ``tables``: the source of records below the log start.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        isolation: Isolation,
        tables: LakeTables | None,
    ) -> None:
        self.topics = topics
        self.tables = tables
        self.isolation = isolation
        self.error: IsologError | None = None
        """The first error of a scan, which the reader of a stream sees only as a text."""
        self._connection = connection
        self._opened: dict[str, TopicDataset] = {}
        self._spans: dict[str, TopicSpan] = {}
        self._lock = new_lock(is_brief=False)

    def open(self, topic: str) -> TopicDataset:
        """Return a topic as a dataset. Raise UnknownTopic if there is no such topic."""
        schema = self.topics.describe(topic).schema
        return self._opened.setdefault(topic, TopicDataset(self, topic, schema))

    @property
    def are_default(self) -> bool:
        """Whether topics were opened, and all have Kafka's columns."""
        found = self._opened.values()
        return bool(found) and all(is_default(each.stored) for each in found)

    def span(self, topic: str) -> TopicSpan:
        """Return the offsets to read of a topic. The first call fixes those of all topics."""
        with self._lock:
            if topic not in self._spans:
                names = [each for each in self._opened if each not in self._spans]
                self._spans |= topic_spans(
                    self._connection,
                    self.topics,
                    names,
                    "earliest",
                    "latest",
                    self.isolation,
                    tables=self.tables,
                )
            return self._spans[topic]


class TopicDataset(pads.Dataset):
    """A topic as a dataset. It has Kafka's columns, or those of its schema and the metadata."""

    def __init__(self, datasets: TopicDatasets, topic: str, stored: pa.Schema) -> None:
        self.stored = stored
        self._datasets = datasets
        self._topic = topic
        self._schema = shown_schema(stored, metadata=True, headers=True)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the topic."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pads.Expression | None = None,
        **_: Any,
    ) -> TopicScan:
        """Return a scan of these columns, of the records that match the filter."""
        names = self._schema.names if columns is None else list(columns)
        read, pushed = names, None
        if filter is not None:
            pushed = pushed_filter(str(filter), self._topic, self.stored)
            needed = {*names, *re.findall(r"\w+", str(filter))}
            is_plain = all(each.isidentifier() for each in self._schema.names)
            read = [each for each in self._schema.names if each in needed or not is_plain]
        view = View.of(self._topic, self.stored, read, filter=pushed)
        return TopicScan(self._datasets, view, names, filter)


class TopicScan:
    """A scan of a topic, with the methods of a scanner that DuckDB calls."""

    def __init__(
        self,
        datasets: TopicDatasets,
        view: View,
        names: list[str],
        filter: pads.Expression | None,
    ) -> None:
        self.projected_schema = pa.schema([view.schema.field(each) for each in names])
        self._datasets = datasets
        self._view = view
        self._names = names
        self._filter = filter

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        found, view = self._datasets, self._view
        try:
            span = found.span(view.topic)
            for number in sorted(span.starts):
                for batch in read_partition(
                    found.topics.router, view, span, number, found.isolation, found.tables
                ):
                    rows = batch if self._filter is None else batch.filter(self._filter)
                    if rows.num_rows:
                        yield rows.select(self._names)
        except IsologError as error:
            found.error = found.error or error
            raise


def pushed_filter(expression: str, topic: str, stored: pa.Schema) -> str | None:
    """Return the part of an Arrow expression that leaders can apply, as isolog's SQL.

    It has the comparisons of whole numbers and strings that every row must match. None without any.
    """
    shown = shown_schema(stored, metadata=True)
    if not all(each.isidentifier() for each in shown.names):
        return None  # such a name may look like a part of the expression
    found = []
    for conjunct in _conjuncts(expression):
        match = _COMPARISON.fullmatch(conjunct)
        if match is None or match["name"] not in shown.names:
            continue
        kind, constant = shown.field(match["name"]).type, match["constant"]
        if pa.types.is_string(kind) and constant.startswith('"'):
            constant = f"'{constant[1:-1]}'"
        elif not pa.types.is_integer(kind) or constant.startswith('"'):
            continue
        text = f"`{match['name']}` {_SIGNS[match['sign']]} {constant}"
        try:
            row_filter(text, topic, stored)
        except InvalidFilter:
            continue
        found.append(text)
    return " and ".join(found) or None


def _conjuncts(expression: str) -> Iterator[str]:
    """Yield the parts of ``(a and (b and c))``. The depth of parentheses outside texts counts."""
    depth, parts, part = 0, [], ""
    for token in _TOKENS.findall(expression[1:-1]):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and token == " and ":
            parts.append(part)
            part = ""
        else:
            part += token
    if not parts:
        yield expression
        return
    for each in (*parts, part):
        yield from _conjuncts(each)
