"""Rows to topics and partitions: what a sink does with a DataFrame's columns, for whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.client.writing.batches import completed, fitted_to
from spark_stream.client.writing.pending import split
from spark_stream.errors import SchemaMismatch, UnknownPartition
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    HEADERS_TYPE,
    empty_batch,
    fitted,
    is_default,
    of_topic,
)
from spark_stream.schema.type_names import type_name
from spark_stream.wire.topic_messages import TopicDescription

TOPIC_COLUMN: Final = "topic"
PARTITION_COLUMN: Final = "partition"
_ROUTING: Final = (TOPIC_COLUMN, PARTITION_COLUMN)
_READ: Final = ("offset", "timestampType")  # the source adds them, if a topic has Kafka's columns


def looks_default(schema: pa.Schema) -> bool:
    """Return whether a DataFrame has only Kafka's columns, and a value of text or binary."""
    names = {*DEFAULT_SCHEMA.names, *_ROUTING}
    if "value" not in schema.names or not set(schema.names) <= names:
        return False
    return _is_bytes(schema.field("value").type)


def topic_schema(schema: pa.Schema, *, by_column: bool) -> pa.Schema:
    """Return the schema of a topic made for this DataFrame; ``by_column``: its topic column routes.

    Raises:
        SchemaMismatch: the columns are those of records that were read: a topic with these would
            look in Spark like one with Kafka's columns, without being one.
    """
    if looks_default(schema):
        return DEFAULT_SCHEMA
    if "value" in schema.names and set(_READ) <= set(schema.names):
        raise SchemaMismatch(
            f"columns {', '.join(map(repr, _READ))} belong to records that were read; a new topic"
            " cannot have them",
            column=_READ[0],
            hint="Select the new topic's columns, such as 'key' and 'value'.",
        )
    return pa.schema([field for field in schema if not (by_column and field.name == TOPIC_COLUMN)])


def check_routing(schema: pa.Schema, topic: str | None) -> None:
    """Raise SchemaMismatch if there is neither a topic nor a text column that names it."""
    if topic is not None:
        return
    if TOPIC_COLUMN not in schema.names:
        raise SchemaMismatch(
            "which topic? There is neither the option topic nor a column 'topic'",
            column=TOPIC_COLUMN,
            hint="Give .option('topic', name), or a string column 'topic'.",
        )
    kind = schema.field(TOPIC_COLUMN).type
    if not pt.is_string(kind):
        raise SchemaMismatch(
            f"column 'topic': expected string, got {type_name(kind)}",
            column=TOPIC_COLUMN,
            expected="string",
            got=str(kind),
        )


def check_fits(schema: pa.Schema, known: TopicDescription, *, by_column: bool) -> None:
    """Raise SchemaMismatch (column, expected, got) if the DataFrame does not fit the topic."""
    wanted = topic_schema_of(schema, known.schema, by_column=by_column)
    if is_default(known.schema):
        with of_topic(known.name):
            _check_default(wanted)
        return
    fitted_to(empty_batch(wanted), known)


def topic_schema_of(schema: pa.Schema, stored: pa.Schema, *, by_column: bool) -> pa.Schema:
    """Return the DataFrame's columns that are for the topic itself."""
    if is_default(stored) or (by_column and TOPIC_COLUMN not in stored.names):
        return pa.schema([field for field in schema if field.name != TOPIC_COLUMN])
    return schema


_DEFAULT_TAKES: Final = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "partition": "int",
}


def _check_default(schema: pa.Schema) -> None:
    if "value" not in schema.names:
        raise SchemaMismatch("column 'value' (binary or string) is missing", column="value")
    for field in schema:
        expected = _DEFAULT_TAKES.get(field.name)
        if expected is None:
            raise SchemaMismatch(
                f"column {field.name!r} is not one that a topic with Kafka's columns takes"
                f" ({', '.join(_DEFAULT_TAKES)}, topic)",
                column=field.name,
                hint="Select those to be written; make one value of columns of your own (to_json,"
                " to_avro), or use a typed topic.",
            )
        if not _DEFAULT_FITS[field.name](field.type):
            raise SchemaMismatch(
                f"column {field.name!r}: expected {expected}, got {type_name(field.type)}",
                column=field.name,
                expected=expected,
                got=str(field.type),
            )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_string(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not pt.is_list(kind) or not pt.is_struct(kind.value_type):
        return False
    item = kind.value_type
    names = [item.field(index).name for index in range(item.num_fields)]
    return (
        names == ["key", "value"]
        and pt.is_string(item.field(0).type)
        and _is_bytes(item.field(1).type)
    )


_DEFAULT_FITS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "key": _is_bytes,
    "value": _is_bytes,
    "headers": _is_headers,
    "timestamp": lambda kind: pt.is_timestamp(kind) and kind.tz is not None,
    "partition": lambda kind: pt.is_int32(kind) or pt.is_int16(kind) or pt.is_int8(kind),
}


class Routed(Struct, frozen=True):
    """Rows for one topic; ``partition`` is None where their keys, or the turn, decide."""

    topic: str
    partition: int | None
    batch: pa.RecordBatch


def by_topic(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows by topic: the option's, or what the column ``topic`` says; None if it is null.

    A name that is not UTF-8 has surrogates, so that it is refused as the name of a topic.
    """
    if topic is not None:
        yield topic, batch
        return
    names = batch.column(TOPIC_COLUMN).cast(pa.binary()).dictionary_encode()
    places = pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    for place, rows, _ in split(batch, places):
        name = None if place < 0 else names.dictionary[place].as_py()
        yield (None if name is None else name.decode(errors="surrogateescape")), rows


def routed(
    topic: str, stored: pa.Schema, batch: pa.RecordBatch, partitions: int, *, by_column: bool
) -> Iterator[Routed]:
    """Yield one topic's rows with the columns that it stores, by partition where rows name one.

    Raises:
        UnknownPartition: the column ``partition`` names one that the topic does not have.
    """
    fields = topic_schema_of(batch.schema, stored, by_column=by_column)
    batch = batch.select(fields.names)
    if not is_default(stored):
        yield Routed(topic, None, batch)
        return
    places = batch.column(PARTITION_COLUMN) if PARTITION_COLUMN in fields.names else None
    batch = _stored(batch)
    if places is None or places.null_count == len(places):
        yield Routed(topic, None, batch)
        return
    numbers = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    for place, rows, _ in split(batch, numbers):
        if place >= partitions or (place < 0 and not places.null_count) or place < -1:
            raise UnknownPartition(
                f"topic {topic!r} has partitions 0 to {partitions - 1}, not {place}",
                topic=topic,
                partition=place,
            )
        yield Routed(topic, None if place < 0 else place, rows)


def as_stored(batch: pa.RecordBatch, known: TopicDescription, *, by_column: bool) -> pa.RecordBatch:
    """Return one topic's rows as they are stored there.

    Raises:
        SchemaMismatch: a value, or a column, does not fit the topic.
    """
    fields = topic_schema_of(batch.schema, known.schema, by_column=by_column)
    batch = batch.select(fields.names)
    if not is_default(known.schema):
        return fitted_to(batch, known)
    with of_topic(known.name):
        return fitted(completed(_stored(batch)), known.schema)


def _stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert text to bytes, and headers to the type that they are stored in."""
    names = [name for name in batch.schema.names if name != PARTITION_COLUMN]
    arrays = []
    for name in names:
        column = batch.column(name)
        if name in ("key", "value") and pt.is_string(column.type):
            column = column.cast(pa.binary())
        elif name == "headers":
            column = column.cast(HEADERS_TYPE)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=names)
