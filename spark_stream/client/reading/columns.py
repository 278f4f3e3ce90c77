"""The columns that a user sees, built from the columns that the leader sends.

A default-schema topic shows Kafka's columns. A typed topic shows its columns, and on request
``_topic``, ``_partition``, ``_offset`` and ``_timestamp``. The leader sends only stored columns.
Topic, partition and offset are added here, for whole batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_stream.batches import conformed, conforms
from spark_stream.errors import InternalError, InvalidOption, SchemaMismatch
from spark_stream.schema.arrays import integers
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    HEADERS_TYPE,
    METADATA,
    OFFSET,
    PARTITION,
    TOPIC,
    is_default,
    meant,
    of_topic,
)
from spark_stream.sql.filters import row_filter

_TIMESTAMP_TYPE_CREATE: Final = 0  # Kafka's CreateTime: the producer set it
_SHARED_ROWS: Final = 1 << 16  # constant columns of larger batches are not shared

KAFKA_COLUMNS: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", DEFAULT_SCHEMA.field("timestamp").type),
        pa.field("timestampType", pa.int32()),
    ]
)
_KAFKA_METADATA: Final = ("topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = pa.field("headers", HEADERS_TYPE)


def shown_schema(topic: pa.Schema, *, metadata: bool = False, headers: bool = False) -> pa.Schema:
    """Return the schema that a topic with this stored schema shows."""
    if is_default(topic):
        return KAFKA_COLUMNS.append(HEADERS) if headers else KAFKA_COLUMNS
    if metadata:
        return pa.schema([*topic.remove_metadata(), *METADATA])
    return topic.remove_metadata()


Spans = Sequence[tuple[int, int]]
"""Runs of offsets: (first, count) of each."""


def offsets_of(rows: int, base: int, spans: Spans | None = None) -> npt.NDArray[np.int64]:
    """Return the offset of each row, shape (rows,): from ``base`` on, or those in ``spans``."""
    if spans is None:
        return np.arange(base, base + rows, dtype=np.int64)
    firsts, counts = np.array(spans, np.int64).reshape(-1, 2).T
    if counts.sum() != rows:
        raise InternalError(f"{rows} rows came with the offsets of {counts.sum()}")
    before = np.cumsum(counts) - counts  # the number of rows before each run
    return np.repeat(firsts - before, counts) + np.arange(rows, dtype=np.int64)


def runs_of(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the runs of consecutive offsets: (first, count) of each."""
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = np.concatenate((offsets[:1], offsets[edges]))
    counts = np.diff(np.concatenate(([0], edges, [len(offsets)])))
    return list(zip(firsts.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class View:
    """The columns and the filter of a read of one topic.

    It has the columns to request from the leader, and adds the others. ``filter``: a predicate in
    SQL that selects records. ``with_offsets``: the offset of each record is needed, even if it is
    not shown.
    """

    topic: str
    schema: pa.Schema
    default: bool
    filter: str | None = None
    with_offsets: bool = False

    @classmethod
    def of(
        cls,
        topic: str,
        stored: pa.Schema,
        columns: Sequence[str] | None = None,
        *,
        metadata: bool = False,
        headers: bool = False,
        filter: str | None = None,
    ) -> View:
        """Return a view of these columns, by default all, of the records that match a filter.

        ``metadata`` and ``headers``: add those columns at the end, unless ``columns`` has them.

        Raises:
            InvalidOption: ``columns`` is a text, not a list.
            SchemaMismatch: The topic lacks a column. The error names it.
            InvalidFilter: The filter is invalid, or does not fit the topic's columns.
        """
        if filter is not None:
            row_filter(filter, topic, stored)
        shown = shown_schema(stored, metadata=metadata, headers=headers)
        if columns is None:
            return cls(topic, shown, is_default(stored), filter)
        if isinstance(columns, str):
            raise InvalidOption(
                f"columns takes a list of names, not {columns!r}", hint=f"Give [{columns!r}]."
            )
        everything = shown_schema(stored, metadata=True, headers=True)
        chosen = {*shown_schema(stored).names, *columns}
        if metadata and is_default(stored):  # without ``columns`` these are shown anyway
            chosen -= {*_KAFKA_METADATA} - {*columns}
        columns = [*columns, *(name for name in shown.names if name not in chosen)]
        for name in columns:
            if name not in everything.names:
                raise SchemaMismatch(
                    f"topic {topic!r} has no column {name!r}{meant(name, everything.names)}; it"
                    f" has {', '.join(everything.names)}",
                    hint="Choose among the topic's columns.",
                    column=name,
                )
        schema = pa.schema([everything.field(name) for name in columns])
        return cls(topic, schema, is_default(stored), filter)

    @property
    def requested(self) -> list[str]:
        """The columns that the leader must send.

        With a filter the offsets are requested too if needed, because matches are not consecutive.
        """
        made = _MADE_DEFAULT if self.default else _MADE_TYPED
        names = [name for name in self.schema.names if name not in made]
        shown = not {"offset", OFFSET.name}.isdisjoint(made & {*self.schema.names})
        needed = self.filter is not None and (shown or self.with_offsets)
        return [*names, OFFSET.name] if needed else names

    def decoding(self, sent: pa.Schema) -> pa.Schema:
        """Return the schema for decoding batches of schema ``sent``: this view's, if it fits."""
        fits = sent.names == self.schema.names and all(map(conforms, sent, self.schema))
        return self.schema if fits else sent

    @cached_property
    def _planned(self) -> pa.Schema:
        return self._fields(self.requested)

    def _fields(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([self.field(name) for name in names])

    def field(self, name: str) -> pa.Field:
        """Return a column that the leader sends, even if it is not shown."""
        place = self.schema.get_field_index(name)
        return OFFSET if place < 0 else self.schema.field(place)

    def of_chunk(
        self, batch: pa.RecordBatch, partition: int, base: int, spans: Spans | None = None
    ) -> pa.RecordBatch:
        """Return a chunk's rows, the first at offset ``base``, with exactly this view's columns.

        ``spans``: the runs of the rows' offsets, if there are several.
        """
        if batch.schema.equals(self.schema, check_metadata=True):
            return batch
        batch = self._as_planned(batch)
        sent = set(batch.schema.names)
        offsets = batch.column(OFFSET.name) if OFFSET.name in sent else None
        arrays = [
            batch.column(field.name)
            if field.name in sent
            else self._made(field, batch.num_rows, partition, base, spans, offsets)
            for field in self.schema
        ]
        if not arrays:
            return batch
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _as_planned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a received batch to the types that the topic had when the view was created.

        Raises:
            SchemaMismatch: A value does not fit them.
        """
        sent, planned = batch.schema, self._planned
        if sent.names != planned.names:
            planned = self._fields(sent.names)
        if all(map(conforms, sent, planned)):
            return batch
        with of_topic(self.topic):
            return conformed(batch, planned)

    def _made(
        self,
        field: pa.Field,
        rows: int,
        partition: int,
        base: int,
        spans: Spans | None,
        sent: pa.Array | None,
    ) -> pa.Array:
        if field.name in ("offset", OFFSET.name):
            if sent is not None:
                return sent
            return integers(offsets_of(rows, base, spans), pa.int64())
        if field.name in ("topic", TOPIC.name):
            return _repeated(self.topic, rows)
        of_partition = field.name in ("partition", PARTITION.name)
        return _repeated(partition if of_partition else _TIMESTAMP_TYPE_CREATE, rows)


def _repeated(value: str | int, rows: int) -> pa.Array:
    """Return a column that repeats one text or one int32.

    Batches with similar numbers of rows share the column's memory.
    """
    if rows > _SHARED_ROWS:
        return _all_alike(value, rows)
    return _shared(value, 1 << (rows - 1).bit_length() if rows else 0).slice(0, rows)


@lru_cache(maxsize=32)
def _shared(value: str | int, rows: int) -> pa.Array:
    return _all_alike(value, rows)


def _all_alike(value: str | int, rows: int) -> pa.Array:
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), rows)
    return integers(np.full(rows, value, np.int32), pa.int32())


_MADE_DEFAULT: Final = frozenset({"topic", "partition", "offset", "timestampType"})
_MADE_TYPED: Final = frozenset({TOPIC.name, PARTITION.name, OFFSET.name})
