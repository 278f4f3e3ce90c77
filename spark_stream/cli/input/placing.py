"""The partitions of input records.

A record of the input may name its partition in a column that ``consume`` adds: ``partition``, or
``_partition`` in a typed topic. Null leaves the choice to the key. The new log sets the other
metadata columns (topic, offset, timestamp of the append), so their input is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from spark_stream.client.reading.columns import KAFKA_COLUMNS
from spark_stream.client.writing.partitioner import split
from spark_stream.errors import UnknownPartition
from spark_stream.schema.fitting import Fitting
from spark_stream.schema.schemas import METADATA, PARTITION, is_default
from spark_stream.wire.topic_messages import TopicDescription

_ANYWHERE: Final = -1


def metadata_of(stored: pa.Schema) -> pa.Schema:
    """Return the metadata columns of a topic, which are shown with its records but not stored."""
    if is_default(stored):
        return pa.schema([each for each in KAFKA_COLUMNS if each.name not in stored.names])
    return pa.schema(METADATA)


def stored_columns(columns: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the ``columns`` that are not metadata for a topic of the schema ``stored``."""
    metadata = metadata_of(stored).names
    return pa.schema([each for each in columns if each.name not in metadata])


class Placing(Struct, frozen=True):
    """The partition of each input record. ``partition`` overrides the column of the records."""

    topic: TopicDescription
    partition: int | None
    text: bool

    def separate(self, batch: pa.RecordBatch, first: int) -> tuple[pa.RecordBatch, pa.Array | None]:
        """Separate the metadata from a batch. Return the batch, and the partitions if it has any.

        Raises:
            InvalidRecord: a partition is not a number.
            UnknownPartition: the topic does not have the partition.
        """
        metadata = metadata_of(self.topic.schema)
        found = [name for name in batch.schema.names if name in metadata.names]
        places = None
        name = PARTITION.name if PARTITION.name in metadata.names else "partition"
        if self.partition is None and name in found:
            field = pa.field(name, pa.int32())
            fitting = Fitting(pa.schema([field]), self.text)
            places = fitting.fit(batch.select([name]), first).column(0)
            self._check(places, name, first)
        return batch.drop_columns(found), places

    def _check(self, places: pa.Array, name: str, first: int) -> None:
        count = len(self.topic.partitions)
        invalid = pc.or_(pc.less(places, 0), pc.greater_equal(places, count))
        if not pc.any(invalid).as_py():
            return
        row = int(pc.index(invalid, True).as_py())
        raise UnknownPartition(
            f"record {first + row}: column {name!r} is {places[row].as_py()}, and topic"
            f" {self.topic.name!r} has partitions 0 to {count - 1}",
            hint=f"Give --partition N, or leave the column {name!r} out.",
            topic=self.topic.name,
        )

    def split(
        self, batch: pa.RecordBatch, places: pa.Array | None
    ) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """Split the records by partition. Records without a partition have None."""
        if places is None or batch.num_rows == 0:
            yield self.partition, batch
            return
        numbers = places.fill_null(_ANYWHERE).to_numpy(zero_copy_only=False).astype(np.int32)
        for number, rows, _ in split(batch, numbers):
            yield None if number == _ANYWHERE else number, rows
