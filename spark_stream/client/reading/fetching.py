"""What is read, what comes of it, and how an answer of a leader is decoded.

A reader's place is an offset and its lineage
(:mod:`spark_stream.consistency.replication.lineage`): a leader that lacks records below it says so.
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
from spark_stream.consistency.replication.lineage import NOTHING_KNOWN, Lineage
from spark_stream.protocol import Bytes
from spark_stream.schema.schemas import OFFSET, empty_batch
from spark_stream.transport.failures import TRANSPORT_ERRORS
from spark_stream.wire.fetch_messages import (
    ChunkFacts,
    EndFacts,
    FetchRange,
    PlacesFacts,
)

CREDIT: Final = 8 << 20
"""How many bytes a broker may send on a fetch before they are read."""
FETCH_ERRORS: Final = (*TRANSPORT_ERRORS, pa.ArrowException, OSError)
"""What ends a fetch; :func:`failure_of` makes one of our errors of it."""


class Fetched(Struct, frozen=True):
    """Rows with the view's columns; the first has offset ``base``; read on at ``next``.

    ``spans``, where offsets are missing in between: (first, count) of each run of rows. Of filtered
    rows ``scattered`` has the offset of each instead, if they were asked for.
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
        """The offset of each row."""
        if self.scattered is not None:
            return self.scattered
        return offsets_of(self.batch.num_rows, self.base, self.spans)


class Source(Struct, frozen=True):
    """What is read: one partition of a topic (of this id), under an isolation, through a view.

    ``lineage``: that of the ends of ranges, where it is known. ``maps``: records may be read from
    the log's own files, where these are on this machine.
    """

    router: Router
    view: View
    topic_id: str
    partition: int
    isolation: Isolation
    lineage: Lineage = NOTHING_KNOWN
    maps: bool = True

    def route(self) -> Route:
        """The way to the leader; raises as :meth:`Router.route`."""
        return self.router.route(self.view.topic, self.topic_id, self.partition)

    def fetch(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> FetchRange:
        """What the leader is asked."""
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
    """Return the rows of a chunk, which lie where they were received."""
    if facts.messages > 1:
        return decode_run([memoryview(body)], schema, None)
    return decode_one(pa.py_buffer(body), schema, None)


def mapped_rows(
    source: Source, asked: FetchRange, facts: PlacesFacts, timeout_s: float
) -> Iterator[Fetched]:
    """Yield the rows that lie at these places.

    Raises:
        CannotMap: they cannot be read there; those up to the last ``next`` were given.
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
    """Return a chunk as the reader sees it; ``facts``: what came with it."""
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
    """No rows: what the end of a fetch tells."""
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
    """No rows: the next ones begin at the offset."""
    return Fetched(source.partition, offset, offset, empty_batch(source.view.schema))


def _offsets_sent(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Those that the leader was asked for; None: it was not."""
    if OFFSET.name not in batch.schema.names:
        return None
    column = batch.column(OFFSET.name)
    # Not to_numpy: that imports pandas.
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
