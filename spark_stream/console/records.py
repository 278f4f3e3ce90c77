"""Records for the page: those that a search finds, each with its state, and one record as a whole.

First a search finds the offsets of the records (``search``). Then their values are read, batch by
batch, and shortened at once. So the memory depends on the page, not on the length of the range or
on the size of the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_stream.client.options import level
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.ranges import read_range
from spark_stream.consistency.entries import RecordRun, RecordState
from spark_stream.consistency.isolation import Isolation
from spark_stream.console.client import ConsoleClient, columns_of
from spark_stream.console.search import Search, Searched, SearchRequest
from spark_stream.console.snippets import ShownRange, python_snippet, spark_snippet
from spark_stream.errors import InvalidOption, SchemaMismatch
from spark_stream.schema.schemas import is_default
from spark_stream.schema.texts import json_lines, shown
from spark_stream.wire.topic_messages import STATES_MAX, AskedTopic, TopicDescription

LIMIT_MAX: Final = 500
_TEXT_MAX: Final = 2_000
_PAGE_TEXT_MAX: Final = 4_000_000  # characters of all values of a page
_TEXT_LEAST: Final = 40
_WHOLE_MAX: Final = 1_000_000  # characters of a value of one record
COLUMNS_SHOWN: Final = 20
"""The columns of a page without a choice."""


def page(
    client: ConsoleClient,
    request: SearchRequest,
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
    own = _own_columns(topic.schema)
    columns = [
        each
        for each in columns_of(View.of(topic.name, topic.schema, headers=True).schema)
        if each["name"] not in own
    ]
    names = _chosen(request.columns, [each["name"] for each in columns], topic.name)
    search = Search(client, topic, request, chosen)
    found = search.run()
    range_ = ShownRange(
        bootstrap,
        topic.name,
        {
            each.partition: (each.start, each.end)
            for each in found
            if each.start < each.end or len(found) == 1
        },
        chosen,
        request.filter,
        is_typed=not is_default(topic.schema),
        connects=connects,
    )
    count = sum(len(each.found) for each in found) * len(names)
    most = max(_TEXT_LEAST, min(_TEXT_MAX, _PAGE_TEXT_MAX // max(1, count)))
    rows = [row for each in found for row in _rows(client, topic, search, each, names, most)]
    rows.sort(key=lambda row: (row["moment"], -row["partition"], row["offset"]), reverse=True)
    if request.oldest_first:
        rows.reverse()
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "columns": columns,
        "shown": names,
        "rows": rows,
        "ranges": {
            each.partition: {
                "start": each.start,
                "end": each.end,
                "least": each.least,
                "greatest": each.greatest,
                "origin": each.origin,
                "reached": each.near,
                "is_whole": each.near == each.limit,
            }
            for each in found
        },
        "is_full": sum(len(each.found) for each in found) >= request.limit,
        "spark": spark_snippet(range_),
        "python": python_snippet(range_),
    }


def record(client: ConsoleClient, topic_name: str, partition: int, offset: int) -> dict[str, Any]:
    """Return one record with all columns, independent of its state, as values for JSON.

    Raises:
        UnknownTopic, UnknownPartition, OffsetOutOfRange, OffsetEvicted: there is no such place.
        InvalidOption: the offset has no record, such as that of a marker.
        LeaderUnavailable, BrokerUnavailable, …: the leader does not answer.
    """
    request = SearchRequest(topic_name, partition)
    topic = client.topics.describe(topic_name)
    search = Search(client, topic, request, Isolation.READ_UNCOMMITTED)
    [place] = search.places()
    view = View.of(topic.name, topic.schema, metadata=True, headers=True)
    source = Source(client.topics.router, view, topic.id, partition, Isolation.READ_UNCOMMITTED)
    batches = [each.batch for each in read_range(source, offset, offset + 1) if each.batch.num_rows]
    if not batches:
        raise InvalidOption(
            f"partition {topic.name}/{partition} has no record at offset {offset}",
            hint="The offset of a transaction marker has no record. Choose another one.",
            option="offset",
        )
    runs = _states(client, topic, partition, [offset]) if place.stable is not None else []
    state, transaction, held = state_at(offset, runs, place.stable)
    default, own, batch = is_default(topic.schema), _own_columns(topic.schema), batches[0]
    values = batch.select([name for name in batch.schema.names if name not in own])
    fields = []
    for described, column in zip(columns_of(values.schema), values.columns, strict=True):
        text = shown(column, utf8=default)[0].as_py()
        fields.append(described | _whole(text, nested=pa.types.is_nested(column.type)))
    stamp = batch.column(batch.schema.get_field_index(own[-1 if not default else 3]))
    [line] = json_lines(batch, utf8=default).to_pylist()
    return {
        "topic": topic.name,
        "partition": partition,
        "offset": offset,
        "timestamp": shown(stamp, utf8=default)[0].as_py(),
        "moment": (stamp.cast(pa.int64())[0].as_py() or 0) // 1000,
        "state": state,
        "transaction": transaction,
        "held_back": held,
        "bytes": values.nbytes,
        "fields": fields,
        "json": formatted(line) if len(line) <= _WHOLE_MAX else None,
    }


def _whole(text: str | None, *, nested: bool) -> dict[str, Any]:
    """Return a value with formatted JSON, shortened if it is very long."""
    if text is None:
        return {"text": None, "is_json": False, "omitted": 0}
    omitted = max(0, len(text) - _WHOLE_MAX)
    found = None
    if not omitted and (nested or text[:1] in "{["):
        found = formatted(text)
    return {"text": found or text[:_WHOLE_MAX], "is_json": bool(found), "omitted": omitted}


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def formatted(text: str) -> str | None:
    """Return JSON with a line for each value, None if the text is not JSON.

    Numbers keep their digits, and objects their order and their duplicates.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return "".join(_pieces(_TOKEN.findall(text)))


def _pieces(tokens: Sequence[str]) -> Iterator[str]:
    depth, before = 0, ""
    for token in tokens:
        closes = token in ("}", "]")
        depth -= closes
        is_first = before in ("{", "[")
        if (is_first and not closes) or before == "," or (closes and not is_first):
            yield "\n" + "  " * depth
        yield ": " if token == ":" else token
        depth += token in ("{", "[")
        before = token


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


def _chosen(wanted: Sequence[str], names: Sequence[str], topic: str) -> list[str]:
    for name in wanted:
        if name not in names:
            raise SchemaMismatch(
                f"topic {topic!r} has no column {name!r}",
                hint="Choose among the topic's columns.",
                column=name,
            )
    return [name for name in names if name in wanted] if wanted else list(names[:COLUMNS_SHOWN])


def _states(
    client: ConsoleClient, topic: TopicDescription, number: int, offsets: Sequence[int]
) -> list[RecordRun]:
    """Request the states of these records, in as few calls as possible."""
    runs: list[RecordRun] = []
    at = 0
    while at < len(offsets):
        start = offsets[at]
        following = int(np.searchsorted(offsets, start + STATES_MAX))
        request = AskedTopic(
            topic=topic.name,
            partitions=[number],
            states={number: (start, offsets[following - 1] + 1)},
        )
        found = client.topics.look_up([request]).topics[topic.name]
        runs += found.partitions[number].states
        at = following
    return runs


def _rows(
    client: ConsoleClient,
    topic: TopicDescription,
    search: Search,
    found: Searched,
    names: Sequence[str],
    most: int,
) -> Iterator[dict[str, Any]]:
    """Read the found records of a partition. ``most``: the characters of a value."""
    if not found.found:
        return
    offsets = [offset for offset, _ in found.found]
    runs = _states(client, topic, found.partition, offsets) if found.stable is not None else []
    default, wanted = is_default(topic.schema), set(offsets)
    offset_name, time_name = search.own_columns
    source = search.source(search.view([*names, offset_name, time_name]), found.partition)
    for fetched in read_range(source, offsets[0], offsets[-1] + 1):
        batch = fetched.batch
        columns = {
            name: [_short(text, most) for text in shown(column, utf8=default).to_pylist()]
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        moments = batch.column(batch.schema.get_field_index(time_name)).cast(pa.int64())
        own = batch.column(batch.schema.get_field_index(offset_name)).to_pylist()
        for at, (offset, moment) in enumerate(zip(own, moments.to_pylist(), strict=True)):
            if offset not in wanted:
                continue
            state, transaction, held = state_at(offset, runs, found.stable)
            yield {
                "partition": found.partition,
                "offset": offset,
                "moment": (moment or 0) // 1000,
                "timestamp": columns[time_name][at],
                "state": state,
                "transaction": transaction,
                "held_back": held,
                "values": {name: columns[name][at] for name in names},
            }


def _short(text: str | None, most: int) -> str | None:
    """Shorten a text for a page, with the number of the other characters."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"
