"""Typed topics for Kafka's clients: a value is the row as a JSON object.

The form of a value is that of ``isolog consume -o json``. A row has no key and no headers,
and its time is that of the append.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.kafka.refusals import InvalidRecords
from spark_stream.schema.fitting import Fitting
from spark_stream.schema.json_rows import JsonBlocks
from spark_stream.schema.schemas import DEFAULT_SCHEMA, TIMESTAMP, is_default
from spark_stream.schema.texts import json_lines

COLUMNS: Final = ["key", "value", "headers", "timestamp"]
"""The columns of a record for Kafka's clients."""


def read_columns(schema: pa.Schema) -> list[str]:
    """Return the columns to read of a topic."""
    return COLUMNS if is_default(schema) else [*schema.names, TIMESTAMP.name]


def as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a typed topic, and their times, with the columns of :data:`COLUMNS`."""
    values = json_lines(rows.drop_columns([TIMESTAMP.name]), utf8=False)
    nothing = [pa.nulls(len(rows), DEFAULT_SCHEMA.field(name).type) for name in ("key", "headers")]
    arrays = [nothing[0], values.cast(pa.binary()), nothing[1], rows.column(TIMESTAMP.name)]
    return pa.RecordBatch.from_arrays(arrays, names=COLUMNS)


def as_rows(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return records as rows of a topic. The key of a record only selects its partition.

    Raises:
        InvalidRecords: A record has headers, or no value.
        InvalidRecord: A value is no JSON object, or does not fit a column.
        SchemaMismatch: A value has an unknown column, or lacks one that is not nullable.
    """
    if is_default(schema):
        return records
    values = records.column("value")
    if records.column("headers").null_count < len(records):
        raise InvalidRecords("a typed topic has no headers")
    # Each value begins and ends as an object, so none continues in the next one.
    is_object = pc.match_substring_regex(values, r"(?s)^\s*\{.*\}\s*$")
    if (number := pc.index(pc.fill_null(is_object, False), False).as_py()) >= 0:
        raise InvalidRecords(f"record {number + 1}: the value of a typed topic is a JSON object")
    if pc.any(pc.match_substring_regex(values, r"[\r\n]")).as_py():
        values = pa.array(list(map(_on_one_line, values.to_pylist(), count(1))), pa.binary())
    rows = JsonBlocks(schema).parse(b"\n".join(values.to_pylist()), 1)
    if len(rows) != len(records):
        raise InvalidRecords("a value has several JSON objects, and a record is one row")
    return Fitting.of_topic(schema, text=True).fit(rows, 1)


def _on_one_line(value: bytes, number: int) -> bytes:
    """Return a JSON object without line breaks, which may only be between its parts."""
    try:
        return msgspec.json.format(value, indent=-1)
    except msgspec.DecodeError as error:
        raise InvalidRecords(f"record {number}: not JSON: {error}") from None
