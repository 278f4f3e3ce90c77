"""A page of the records that an isolation level shows next to an offset, each with its state.

First only the offsets are read, window by window, until there are enough of them. With a filter, or
with many aborted records, the necessary range is unknown beforehand. Then the records of these
offsets are read. The cost of the records depends on the page, not on the length of the range.

A page also has code for Spark and for Python that reads exactly its records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.options import level
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.ranges import read_range
from spark_stream.client.topics import cut_of
from spark_stream.client.values import to_microseconds
from spark_stream.consistency.entries import RecordRun, RecordState
from spark_stream.consistency.isolation import Isolation
from spark_stream.console.client import ConsoleClient, columns_of
from spark_stream.errors import InvalidOption, LeaderUnavailable, UnknownPartition
from spark_stream.schema.schemas import is_default
from spark_stream.schema.texts import shown
from spark_stream.wire.topic_messages import (
    STATES_MAX,
    AskedTopic,
    PartitionOffset,
    TopicDescription,
)

LIMIT_MAX: Final = 500
_WINDOW_MAX: Final = 1 << 16
_LOOKED_MAX: Final = 1_000_000
_PATIENCE_S: Final = 4.0
_TEXT_MAX: Final = 2_000
_PARTITIONS_MAX: Final = 64
CUT_REMARK = "# These offsets are below a cut that divides no transaction."


class PageRequest(Struct, frozen=True):
    """A request for a page of records before or from an offset in each partition.

    ``partition``: None means all. ``before`` and ``after``: None for both means the latest records.
    ``since`` and ``until``: only records from and before these times.
    """

    topic: str
    partition: int | None = None
    isolation: str = str(Isolation.READ_UNCOMMITTED)
    filter: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: Mapping[int, int] | None = None
    after: Mapping[int, int] | None = None
    limit: int = 50


class Page(Struct, frozen=True):
    """The rows of one partition: all visible records of ``[start, end)``."""

    partition: int
    start: int
    end: int
    least: int
    """The first offset of all pages."""
    greatest: int
    """The end offset of all pages, exclusive."""
    rows: pa.Table
    offsets: tuple[int, ...]
    runs: Sequence[RecordRun]
    stable: int | None
    is_whole: bool
    """Whether the search reached the end of the offsets of all pages."""


def page(
    client: ConsoleClient,
    request: PageRequest,
    bootstrap: str,
    connects: tuple[tuple[str, str], ...] = (),
) -> dict[str, Any]:
    """Return the page as values for JSON. ``bootstrap`` and ``connects`` are for its snippets.

    Raises:
        UnknownTopic, UnknownPartition, InvalidOption, InvalidFilter: the request is invalid.
        LeaderUnavailable, BrokerUnavailable, …: a leader does not answer.
    """
    if not 1 <= request.limit <= LIMIT_MAX:
        raise InvalidOption(f"limit is 1 to {LIMIT_MAX}, not {request.limit}", option="limit")
    chosen = level(request.isolation)
    topic = client.topics.describe(request.topic)
    View.of(topic.name, topic.schema, filter=request.filter)  # checks the filter
    numbers = _numbers(topic, request.partition)
    reader = _PageReader(client, topic, request, chosen, numbers)
    pages = _trimmed(reader.pages(), request.limit, forward=request.after is not None)
    shown = {
        each.partition: (each.start, each.end)
        for each in pages
        if each.start < each.end or len(pages) == 1
    }
    range_ = ShownRange(
        bootstrap,
        topic.name,
        shown,
        chosen,
        request.filter,
        is_typed=not is_default(topic.schema),
        connects=connects,
    )
    rows = [row for each in pages for row in _rows(each, topic)]
    rows.sort(key=lambda row: (row["moment"], -row["partition"], row["offset"]), reverse=True)
    schema = View.of(topic.name, topic.schema, headers=True).schema
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "columns": [
            each for each in columns_of(schema) if each["name"] not in _own_columns(topic.schema)
        ],
        "rows": rows,
        "ranges": {
            each.partition: {
                "start": each.start,
                "end": each.end,
                "least": each.least,
                "greatest": each.greatest,
                "is_whole": each.is_whole,
            }
            for each in pages
        },
        "spark": spark_snippet(range_),
        "python": python_snippet(range_),
    }


def _numbers(topic: TopicDescription, partition: int | None) -> list[int]:
    count = len(topic.partitions)
    if partition is None:
        if count > _PARTITIONS_MAX:
            raise InvalidOption(
                f"topic {topic.name!r} has too many partitions for one page: {count}",
                hint="Choose one partition.",
                option="partition",
            )
        return list(range(count))
    if not 0 <= partition < count:
        raise UnknownPartition(
            f"topic {topic.name!r} has partitions 0 to {count - 1}, not {partition}",
            topic=topic.name,
            partition=partition,
        )
    return [partition]


class _PageReader:
    def __init__(
        self,
        client: ConsoleClient,
        topic: TopicDescription,
        request: PageRequest,
        chosen: Isolation,
        numbers: list[int],
    ) -> None:
        self._client = client
        self._topic = topic
        self._request = request
        self._chosen = chosen
        self._numbers = numbers
        self._each = -(-request.limit // len(numbers))
        self._deadline = time.monotonic() + _PATIENCE_S

    def pages(self) -> list[Page]:
        """Return the page of each partition."""
        now = self._offsets(facts=True)
        least = {number: each.log_start_offset for number, each in now.items()}
        greatest = self._bounds(now)
        if self._request.since is not None:
            for number, each in self._at(self._request.since).items():
                least[number] = max(least[number], each.offset)
        if self._request.until is not None:
            for number, each in self._at(self._request.until).items():
                greatest[number] = min(greatest[number], each.offset)
        return [
            self._page(number, min(least[number], greatest[number]), greatest[number], now[number])
            for number in self._numbers
        ]

    def _offsets(self, **fields: Any) -> Mapping[int, PartitionOffset]:
        request = AskedTopic.of(topic=self._topic.name, partitions=self._numbers, **fields)
        found = self._client.topics.look_up([request])
        for error in found.unknown.values():
            raise error
        return found.topics[self._topic.name].partitions

    def _at(self, moment: datetime) -> Mapping[int, PartitionOffset]:
        return self._offsets(timestamp=to_microseconds(moment))

    def _bounds(self, now: Mapping[int, PartitionOffset]) -> dict[int, int]:
        """Return the end offset of the level in each partition."""
        if self._chosen is Isolation.READ_UNCOMMITTED:
            return {number: each.log_end_offset for number, each in now.items()}
        if self._chosen is Isolation.READ_ATOMIC:
            cut = cut_of(self._client.connection, {self._topic.name: self._topic.id})
            return {number: cut[self._topic.name, number] for number in self._numbers}
        bounds = {}
        for number, each in now.items():
            assert each.facts is not None
            replicated = self._chosen is Isolation.READ_REPLICATED
            bound = each.facts.high_watermark if replicated else each.facts.last_stable_offset
            if bound is None:
                raise LeaderUnavailable(
                    f"{self._topic.name}/{number}: the new leader has not determined the high"
                    " watermark yet",
                    hint="Try again in a moment, or read with read_uncommitted.",
                )
            bounds[number] = bound
        return bounds

    def _page(self, number: int, least: int, greatest: int, now: PartitionOffset) -> Page:
        request = self._request
        forward = request.after is not None
        if request.after is not None:
            at = min(max(request.after.get(number, least), least), greatest)
        else:
            before = greatest if request.before is None else request.before.get(number, greatest)
            at = min(max(before, least), greatest)
        start, end, found = self._search(number, at, greatest if forward else least)
        rows = self._read(number, start, end, None)
        stable = None if now.facts is None else now.facts.last_stable_offset
        runs = self._states(number, found) if now.facts and stable is not None else []
        whole = end >= greatest if forward else start <= least
        return Page(number, start, end, least, greatest, rows, tuple(found), runs, stable, whole)

    def _search(self, number: int, at: int, limit: int) -> tuple[int, int, list[int]]:
        """Search from ``at`` towards ``limit`` for as many records as a page shows.

        Return the searched range, and the offsets of the records in it.
        """
        found: list[int] = []
        forward, near, size = limit > at, at, self._each
        while near != limit and abs(near - at) < _LOOKED_MAX:
            far = min(near + size, limit) if forward else max(near - size, limit)
            here = self._read(number, min(near, far), max(near, far), [self._offset_column])
            offsets = here.column(0).to_pylist()
            found = found + offsets if forward else offsets + found
            near = far
            if len(found) >= self._each or time.monotonic() > self._deadline:
                break
            size = min(2 * size, _WINDOW_MAX)
        if len(found) > self._each:
            found = found[: self._each] if forward else found[-self._each :]
            near = found[-1] + 1 if forward else found[0]
        return min(at, near), max(at, near), found

    @property
    def _offset_column(self) -> str:
        return "offset" if is_default(self._topic.schema) else "_offset"

    def _read(self, number: int, start: int, end: int, columns: list[str] | None) -> pa.Table:
        view = View.of(
            self._topic.name,
            self._topic.schema,
            columns,
            metadata=columns is None,
            headers=columns is None,
            filter=self._request.filter,
        )
        below_cut = self._chosen is Isolation.READ_ATOMIC
        isolation = Isolation.READ_COMMITTED if below_cut else self._chosen
        source = Source(self._client.topics.router, view, self._topic.id, number, isolation)
        batches = []
        if start < end:
            batches = [each.batch for each in read_range(source, start, end)]
        return pa.Table.from_batches([each for each in batches if each.num_rows], view.schema)

    def _states(self, number: int, offsets: Sequence[int]) -> list[RecordRun]:
        """Request the states of these records, in as few calls as possible."""
        runs: list[RecordRun] = []
        at = 0
        while at < len(offsets):
            start = offsets[at]
            following = int(np.searchsorted(offsets, start + STATES_MAX))
            request = AskedTopic(
                topic=self._topic.name,
                partitions=[number],
                states={number: (start, offsets[following - 1] + 1)},
            )
            found = self._client.topics.look_up([request]).topics[self._topic.name]
            runs += found.partitions[number].states
            at = following
        return runs


def _trimmed(pages: Sequence[Page], limit: int, *, forward: bool) -> list[Page]:
    """Return the pages without surplus rows, which the next page shows.

    Rows are removed at the far end: the latest rows of a forward search, else the oldest.
    """
    found = list(pages)
    for _ in range(sum(len(each.offsets) for each in pages) - limit):
        last = -1 if forward else 0
        moments = {at: _moment(each, last) for at, each in enumerate(found) if each.offsets}
        at = (max if forward else min)(moments, key=moments.__getitem__)
        page_, offset = found[at], found[at].offsets[last]
        count = len(page_.offsets) - 1
        found[at] = replace(
            page_,
            start=page_.start if forward else offset + 1,
            end=offset if forward else page_.end,
            rows=page_.rows.slice(0 if forward else 1, count),
            offsets=page_.offsets[:-1] if forward else page_.offsets[1:],
            is_whole=False,
        )
    return found


def _moment(found: Page, at: int) -> int:
    names = found.rows.column_names
    column = found.rows.column("_timestamp" if "_timestamp" in names else "timestamp")
    return column[at].value or 0


# -- rows ------------------------------------------------------------------------------------------


def state_at(
    offset: int, runs: Sequence[RecordRun], stable: int | None
) -> tuple[RecordState | None, int | None, bool]:
    """Return the state of a record, its transaction, and whether it is held back.

    A committed record is held back if an earlier open transaction hides it from read_committed. The
    state is None while a new leader has not determined it.
    """
    for run in runs:
        if run.first <= offset < run.end:
            committed = run.state is RecordState.COMMITTED
            held = committed and stable is not None and offset >= stable
            return run.state, run.transaction, held
    return None, None, False


def _own_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that are not values of the record."""
    if is_default(schema):
        return ("topic", "partition", "offset", "timestamp", "timestampType")
    return ("_topic", "_partition", "_offset", "_timestamp")


def _rows(found: Page, topic: TopicDescription) -> list[dict[str, Any]]:
    default = is_default(topic.schema)
    table, own = found.rows.combine_chunks(), _own_columns(topic.schema)
    if not table.num_rows:
        return []
    columns = {
        name: shown(_one_chunk(table.column(name)), utf8=default).to_pylist()
        for name in table.column_names
    }
    moments = table.column("timestamp" if default else "_timestamp")
    micros = moments.cast(pa.int64()).to_pylist()
    offsets = table.column("offset" if default else "_offset").to_pylist()
    values = [name for name in table.column_names if name not in own]
    stamps = columns["timestamp" if default else "_timestamp"]
    rows = []
    for at, offset in enumerate(offsets):
        state, transaction, held = state_at(offset, found.runs, found.stable)
        rows.append(
            {
                "partition": found.partition,
                "offset": offset,
                "moment": (micros[at] or 0) // 1000,
                "timestamp": stamps[at],
                "state": state,
                "transaction": transaction,
                "held_back": held,
                "values": {name: _short(columns[name][at]) for name in values},
            }
        )
    return rows


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _short(text: str | None) -> str | None:
    """Shorten a text for a page, with the number of the other characters."""
    if text is None or len(text) <= _TEXT_MAX:
        return text
    return f"{text[:_TEXT_MAX]}… ({len(text) - _TEXT_MAX:,} more characters)"


class ShownRange(Struct, frozen=True):
    """The range of a page: offsets ``[start, end)`` of each partition under an isolation level.

    ``connects``: further options of the connection, with the names of Spark's options.
    """

    bootstrap: str
    topic: str
    ranges: Mapping[int, tuple[int, int]]
    isolation: Isolation
    filter: str | None = None
    is_typed: bool = True
    connects: tuple[tuple[str, str], ...] = ()

    @property
    def level(self) -> str:
        """The level of the snippets. Below a cut all transactions are decided."""
        atomic = self.isolation is Isolation.READ_ATOMIC
        return str(Isolation.READ_COMMITTED if atomic else self.isolation)

    @property
    def remark(self) -> list[str]:
        """A comment about the level."""
        return [CUT_REMARK] if self.isolation is Isolation.READ_ATOMIC else []


def spark_snippet(shown: ShownRange) -> str:
    """Return the code of a batch query for PySpark."""
    numbers = sorted(shown.ranges)
    starts = {str(number): shown.ranges[number][0] for number in numbers}
    ends = {str(number): shown.ranges[number][1] for number in numbers}
    options = [
        ("bootstrap", shown.bootstrap),
        ("assign", json.dumps({shown.topic: numbers})),
        ("isolation", shown.level),
        ("startingOffsets", json.dumps({shown.topic: starts})),
        ("endingOffsets", json.dumps({shown.topic: ends})),
    ]
    if shown.filter is not None:
        options.append(("filter", shown.filter))
    if shown.is_typed:
        options.append(("includeMetadata", "true"))
    options += shown.connects
    lines = [
        *shown.remark,
        "rows = (",
        '    spark.read.format("isolog")',
        *(f"    .option({_text(name)}, {_text(value)})" for name, value in options),
        "    .load()",
        ")",
    ]
    return "\n".join(lines) + "\n"


def python_snippet(shown: ShownRange) -> str:
    """Return the code of a read with the Python client."""
    numbers = sorted(shown.ranges)
    login = "".join(f", {name.replace('.', '_')}={_text(value)}" for name, value in shown.connects)
    lines = [
        "import isolog",
        "",
        *shown.remark,
        f"with isolog.connect({_text(shown.bootstrap)}{login}) as log:",
        "    rows = log.read(",
        f"        {_text(shown.topic)},",
        f"        partitions={numbers!r},",
        f"        start={ {number: shown.ranges[number][0] for number in numbers}!r},",
        f"        end={ {number: shown.ranges[number][1] for number in numbers}!r},",
        f"        isolation={_text(shown.level)},",
        *([] if shown.filter is None else [f"        filter={_text(shown.filter)},"]),
        *(["        metadata=True,"] if shown.is_typed else []),
        "    )",
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Return a literal of Python, in double quotes unless the text contains them."""
    literal = repr(value)
    if literal[0] == "'" and '"' not in value:
        return '"' + literal[1:-1] + '"'
    return literal
