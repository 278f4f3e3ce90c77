"""The topic's properties that a log needs, and a batch or a marker ready to be appended."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import conformed
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import UnknownSchema
from spark_stream.schema.values import takes_all_nulls
from spark_stream.storage.format.codec import Codec, EncodedBatch
from spark_stream.storage.format.min_max import RECORDS_MIN, Rows
from spark_stream.storage.settings import LogSettings

UNLIMITED: Final = 1 << 62
_FEW: Final = 16

_ROW_PART_MIN: Final = 16  # a batch must be this many times as large as its row of statistics


class PreparedBatch(Struct, frozen=True):
    """A batch ready to be appended: encoding and checksum are done outside the partition's lock.

    ``extremes``: the min/max statistics computed so far, or None if the batch is too small for
    them. ``schema``: the version of its schema.
    """

    records: int
    message: EncodedBatch
    crc: int
    timestamp: int
    extremes: Rows | None = None
    schema: int = 0

    def entry_at(self, place: Boundary, leader_epoch: LeaderEpoch, now: int, stamp: Stamp) -> Entry:
        """Build the batch's entry at this place. ``now``: microseconds since the epoch."""
        return Entry(
            entry_index=place.entry,
            base_offset=place.offset,
            timestamp=self.timestamp,
            appended=now,
            count=self.records,
            leader_epoch=leader_epoch,
            data_crc=self.crc,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=stamp.sequence,
            transaction=stamp.transaction,
            schema=self.schema,
        )


def marker_at(
    place: Boundary,
    kind: Kind,
    producer_id: int,
    epoch: int,
    transaction: int,
    leader_epoch: LeaderEpoch,
    now: int,
) -> Entry:
    """Build a marker's entry at this place of a log. ``now``: microseconds since the epoch."""
    if kind is Kind.DATA:
        raise ValueError("a marker is COMMIT or ABORT")
    return Entry(
        entry_index=place.entry,
        base_offset=place.offset,
        timestamp=now,
        appended=now,
        count=0,
        leader_epoch=leader_epoch,
        data_crc=0,
        kind=kind,
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction=transaction,
    )


@dataclass(frozen=True)
class LogFormat:
    """The topic's properties that the log of a partition needs.

    ``timestamp_column`` is the column with the records' timestamps. In a topic without one, a
    record's timestamp is the time of its append. ``earlier``: the topic's schemas before the
    present one, oldest first.
    """

    schema: pa.Schema
    settings: LogSettings = field(default_factory=LogSettings)
    timestamp_column: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    earlier: tuple[pa.Schema, ...] = ()

    @cached_property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs of all schemas of the topic, oldest first."""
        return tuple(
            Codec(schema, self.settings.compression, version)
            for version, schema in enumerate((*self.earlier, self.schema))
        )

    @property
    def codec(self) -> Codec:
        """The codec of the present schema."""
        return self.codecs[-1]

    def codec_of(self, version: int) -> Codec:
        """Return the codec of this schema version, or raise UnknownSchema."""
        if version >= len(self.codecs):
            topic = dict(self.facts).get("isolog.topic", "the topic")
            raise UnknownSchema(
                f"{topic}: a batch has schema {version}, but the latest schema known here is"
                f" {len(self.codecs) - 1}",
                schema=version,
            )
        return self.codecs[version]

    @cached_property
    def required(self) -> tuple[pa.Field, ...]:
        """The columns that take no nulls, or have a nested field that takes none."""
        return tuple(each for each in self.schema if not takes_all_nulls(each))

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a valid batch of an earlier schema to the present one. Keep other batches."""
        if not self.earlier or batch.schema.equals(self.schema):
            return batch
        if batch.schema.types == self.schema.types and batch.schema.names == self.schema.names:
            return batch
        return conformed(batch, self.schema)

    def prepare(self, batch: pa.RecordBatch, now: int) -> PreparedBatch:
        """Encode a batch of the topic's schema. ``now``: microseconds since the epoch."""
        if batch.num_rows == 0:
            raise ValueError("a batch has at least one record")
        message = self.codec.encode(batch)
        return PreparedBatch(
            batch.num_rows,
            message,
            message.crc(),
            self._greatest(batch, now),
            self._extremes(batch, message.size),
            self.codec.version,
        )

    def _extremes(self, batch: pa.RecordBatch, size: int) -> Rows | None:
        """Compute the cheap min/max statistics. A filtered read computes the rest."""
        layout = self.codec.layout
        worth = batch.num_rows >= RECORDS_MIN and size >= _ROW_PART_MIN * layout.row.itemsize
        return layout.described(batch, layout.quick) if worth and layout.quick else None

    def _greatest(self, batch: pa.RecordBatch, now: int) -> int:
        if self.timestamp_column is None:
            return now
        moments = batch.column(self.timestamp_column)
        # Not by to_numpy: it imports pandas, which costs a third of a second, and memory.
        values = memoryview(moments.buffers()[1])[8 * moments.offset :][: 8 * len(moments)]
        if len(moments) <= _FEW:  # for so few, a loop is faster than a call of NumPy
            return max(values.cast("q"))
        return int(np.frombuffer(values, np.int64).max())
