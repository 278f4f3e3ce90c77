"""Typed topics for Kafka's clients: a value is the row as a JSON object.

The form of a value is that of ``isolog consume --format json``. A row has no key and no headers,
and its time is that of the append.
"""

from __future__ import annotations

from typing import Final

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
    """Return rows of a topic with the columns of :data:`COLUMNS`."""
    if TIMESTAMP.name not in rows.schema.names:
        return rows
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
    if not pc.all(pc.fill_null(pc.match_substring_regex(values, r"\S"), False)).as_py():
        raise InvalidRecords("a record of a typed topic needs a value, which is a JSON object")
    lines = pc.replace_substring(values, b"\n", b" ")  # only between the parts of an object
    block = b"\n".join(lines.to_pylist())
    return Fitting.of_topic(schema, text=True).fit(JsonBlocks(schema).parse(block, 1), 1)
