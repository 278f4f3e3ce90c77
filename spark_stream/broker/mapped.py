"""For a reader on this machine: where its records lie, in the place of the records.

The leader decides everything else as ever: what is visible, what was aborted, where the range ends.
The reader maps the files (``docs/flight.md``); if it cannot, it asks again for the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from spark_stream.consistency.isolation import VisibleRange
from spark_stream.consistency.lineage import Lineage
from spark_stream.consistency.measures import stored_bytes
from spark_stream.storage.chunks import Chunk
from spark_stream.storage.replica_log import ReplicaLog
from spark_stream.wire.fetch_messages import ChunkFacts, Fetch, StoredFacts
from spark_stream.wire.schemas import TIMESTAMP

# With less than this, to open a file costs more than to send the records.
_MAPPED_BYTES_MIN: Final = 256 << 10
_PLACES_AT_ONCE: Final = 16


def maps(request: Fetch, boot_id: str | None, log: ReplicaLog, found: VisibleRange) -> bool:
    """Whether the reader is to map the records of this range."""
    if request.machine is None or request.machine != boot_id:
        return False
    if request.filter is not None or request.follow:  # what is counted, or dropped, is read here
        return False
    return stored_bytes(log.tables(), found.start, found.end) >= _MAPPED_BYTES_MIN


def in_groups(chunks: Iterator[tuple[Chunk, Lineage]]) -> Iterator[list[tuple[Chunk, Lineage]]]:
    """Neighbouring chunks together: one message says where all of them lie."""
    held: list[tuple[Chunk, Lineage]] = []
    for each in chunks:
        held.append(each)
        if len(held) == _PLACES_AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def places(
    group: Sequence[tuple[Chunk, Lineage]], request: Fetch, number: int | None
) -> ChunkFacts:
    """The message about the chunks of a group; ``number``: which fetch it is of a call."""
    timed = request.columns is not None and TIMESTAMP.name in request.columns
    (first, _), (last, lineage) = group[0], group[-1]
    stored = [_facts(*each, timed=timed) for each in group if each[0].stored is not None]
    # All of it is the log's own: nobody need check it.
    return ChunkFacts.model_construct(
        base=first.base_offset,
        next=last.next_offset,
        lineage=lineage,
        fetch=number,
        stored=stored,
    )


def _facts(chunk: Chunk, lineage: Lineage, *, timed: bool) -> StoredFacts:
    found = chunk.stored
    assert found is not None
    return StoredFacts.model_construct(
        path=str(found.path),
        device=found.device,
        inode=found.inode,
        parts=list(chain.from_iterable(found.parts.tolist())),
        entries=found.entries,
        first=found.first,
        crc=found.crc,
        compressed=found.compressed,
        lead=found.lead,
        rows=int(chunk.counts.sum()),
        base=chunk.base_offset,
        next=chunk.next_offset,
        lineage=lineage,
        spans=chunk.spans.tolist() if len(chunk.spans) > 1 else None,
        timestamps=chunk.timestamps.tolist() if timed else None,
        counts=chunk.counts.tolist() if timed else None,
    )
