"""A leader's answer with the places of records fits into the header of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_stream.broker.actions.mapped import Holder, in_groups, places
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.protocol.connection import ConnectionLimits
from spark_stream.storage.format.stored import TIMESTAMP, Chunk, ChunkPlace
from spark_stream.storage.log.reading import LOCATED_ENTRIES_MAX
from spark_stream.structs import INT64_MAX
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.stream_messages import FetchRange

CHUNKS = 40
FOLLOWER = BrokerAddress(id="b" * 200, address="a" * 200)
REQUEST = FetchRange.of(
    topic="t",
    topic_id="i",
    partition=0,
    start=0,
    end=None,
    isolation=Isolation.READ_UNCOMMITTED,
    columns=[TIMESTAMP],
)


def chunk(entries: int) -> Chunk:
    """As many entries with large numbers, of which no two lie side by side."""
    column = np.full(entries, INT64_MAX, np.int64)
    pairs = np.column_stack([column, column])
    path = Path("/" + "p" * 4095)
    stored = ChunkPlace(path, 2**32, 2**32, pairs, entries, 2**32 - 1, True, pairs, 2**31)
    rows = pa.record_batch({"n": pa.array([], pa.int64())})
    return Chunk(Offset(0), rows, column, column // entries, pairs, Offset(1), stored=stored)


def told(entries: int) -> Iterator[tuple[Chunk, Lineage]]:
    return ((chunk(entries), NO_LINEAGE) for _ in range(CHUNKS))


@pytest.mark.parametrize("holder", [Holder(), Holder(FOLLOWER)])
@pytest.mark.parametrize("entries", [1, LOCATED_ENTRIES_MAX // 3, LOCATED_ENTRIES_MAX])
def test_the_places_of_small_batches_fit_into_a_header(holder, entries):
    groups = list(in_groups(told(entries)))
    assert sum(map(len, groups)) == CHUNKS
    most = max(len(places(group, REQUEST, holder).to_bytes()) for group in groups)
    assert most <= ConnectionLimits().header_bytes_max
