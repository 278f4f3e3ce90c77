"""What to read, what was fetched, and how a leader's answer is decoded.

A reader's position is an offset and its lineage
(:mod:`spark_stream.consistency.replication.epochs`): a leader that lacks records below it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, structs

from spark_stream.batches import decode_one, decode_run
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.reading.columns import Spans, View, offsets_of
from spark_stream.client.reading.mapping import (
    MappedFile,
    OtherBytes,
    mapped_batches,
    placed,
)
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.replication.epochs import NOTHING_KNOWN, Lineage
from spark_stream.protocol import Bytes
from spark_stream.schema.schemas import OFFSET, empty_batch
from spark_stream.wire.stream_messages import ChunkFacts, EndFacts, FetchRange, PlacesFacts

CREDIT: Final = 8 << 20
"""How many bytes a broker may send on a fetch before they are read."""


class Fetched(Struct, frozen=True):
    """Rows with the view's columns; the first has offset ``base``; ``next`` comes after them.

    ``spans``: (first, count) of each run of rows, if offsets are missing in between. For filtered
    rows ``scattered`` has the offset of each instead, if they were requested.
    ``lineage``: that of ``next``.
    ``partitions`` and ``bounds``, at the end of a fetch: how many partitions the topic has now, and
    the bounds of this one, if the leader knows them.
    """

    partition: int
    base: int
    next: int
    batch: pa.RecordBatch
    spans: Spans | None = None
    partitions: int | None = None
    lineage: Lineage = NOTHING_KNOWN
    scattered: npt.NDArray[np.int64] | None = None
    bounds: Bounds | None = None

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of each row."""
        if self.scattered is not None:
            return self.scattered
        return offsets_of(self.batch.num_rows, self.base, self.spans)


class Source(Struct, frozen=True):
    """What to read: one partition of a topic (of this id), under an isolation level, in a view.

    ``lineage``: that of the ends of ranges, if it is known. ``maps``: records may be read from the
    log's own files, if these are on this machine.
    """

    router: Router
    view: View
    topic_id: str
    partition: int
    isolation: Isolation
    lineage: Lineage = NOTHING_KNOWN
    maps: bool = True

    def route(self) -> Route:
        """Return the route to the leader; raise as :meth:`Router.route`."""
        return self.router.route(self.view.topic, self.topic_id, self.partition)

    def fetch(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> FetchRange:
        """Return the request to the leader."""
        return FetchRange.of(
            topic=self.view.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            start=start,
            end=end,
            isolation=self.isolation,
            columns=self.view.asked,
            filter=self.view.filter,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            end_lineage=self.lineage,
        )


def decoded_rows(schema: pa.Schema, body: Bytes, facts: ChunkFacts) -> pa.RecordBatch:
    """Decode the rows of a chunk, in place."""
    if facts.messages > 1:
        return decode_run([memoryview(body)], schema, None)
    return decode_one(pa.py_buffer(body), schema, None)


def mapped_rows(
    source: Source, asked: FetchRange, facts: PlacesFacts, timeout_s: float
) -> Iterator[Fetched]:
    """Yield the rows at these places in files.

    Raises:
        CannotMap: the rows cannot be read there; those up to the last ``next`` were yielded.
    """
    router, file = source.router, None
    columns = pa.schema([source.view.field(name) for name in source.view.asked])
    for run in placed(router, asked, facts, timeout_s):
        if file is None or not file.covers(run.file):
            file = MappedFile(run.file, source.topic_id, source.partition)
        try:
            for batch, told in mapped_batches(run, file, columns):
                yield shown(source, batch, told)
        except OtherBytes:
            doubt = structs.replace(facts, stored=[run.facts])
            placed(router, asked, doubt, timeout_s, doubted=True)
            raise


def shown(source: Source, data: pa.RecordBatch, facts: ChunkFacts) -> Fetched:
    """Return a chunk as the reader sees it; ``facts``: those sent with it."""
    return Fetched(
        source.partition,
        facts.base,
        facts.next,
        source.view.of_chunk(data, source.partition, facts.base, facts.spans),
        facts.spans,
        lineage=facts.lineage,
        scattered=_offsets_sent(data) if source.view.filter is not None else None,
    )


def ended_at(source: Source, facts: EndFacts) -> Fetched:
    """Return what the end of a fetch tells, without rows."""
    return Fetched(
        source.partition,
        facts.next,
        facts.next,
        empty_batch(source.view.schema),
        partitions=facts.partitions,
        lineage=facts.lineage,
        bounds=facts.bounds,
    )


def moved_to(source: Source, offset: int) -> Fetched:
    """Return a move to the offset, where the next rows begin, without rows."""
    return Fetched(source.partition, offset, offset, empty_batch(source.view.schema))


def _offsets_sent(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Return the offsets that the leader sent; None if they were not requested."""
    if OFFSET.name not in batch.schema.names:
        return None
    column = batch.column(OFFSET.name)
    # Not to_numpy: it imports pandas.
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
