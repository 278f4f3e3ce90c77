"""The answer to a reader on a replica's machine: the places of the records, not the records.

The leader decides everything else as always: which records are visible, which were aborted, where
the range ends. The files are the leader's if it is on that machine. Otherwise they are those of a
follower there: the leader names the entries, and the follower returns their places. The reader maps
the files (``docs/flight.md``). If it cannot, it fetches the records from the leader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.entries import stored_bytes
from spark_stream.consistency.isolation import VisibleRange
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import DamagedSegment, EntriesGone, StorageFailure
from spark_stream.schema.schemas import TIMESTAMP
from spark_stream.storage.format.stored import Chunk, ChunkPlace
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.reading import LOCATED_ENTRIES_MAX
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.stream_messages import (
    EntryRuns,
    FetchRange,
    FilePlace,
    LocatedEntries,
    LocateEntries,
    PlacesFacts,
    StoredFacts,
)

# Below this size, opening a file costs more than sending the records.
_MAPPED_BYTES_MIN: Final = 256 << 10
_PLACES_AT_ONCE: Final = 16


class Holder(Struct, frozen=True):
    """The owner of the mapped files: ``replica``, a follower, or by default the leader."""

    replica: BrokerAddress | None = None


def holder_for(
    request: FetchRange, boot_id: str | None, log: PartitionLog, found: VisibleRange, host: Host
) -> Holder | None:
    """Return the replica whose files the reader should map, or None to send it the records.

    ``boot_id``: that of the leader's machine, if readers there may map its files.
    """
    if request.machine is None:
        return None
    if request.filter is not None or request.follow:  # then the leader reads the records
        return None
    if stored_bytes(log.tables(), found.start, found.end) < _MAPPED_BYTES_MIN:
        return None
    if request.machine == boot_id:
        return Holder()
    near = _follower_on(request, host)
    return None if near is None else Holder(near)


def _follower_on(request: FetchRange, host: Host) -> BrokerAddress | None:
    """Return a member of the ISR on the reader's machine, other than this broker."""
    record = host.record(host.topic(request.topic, request.topic_id).topic, request.partition)
    brokers = host.view.now.brokers
    for member in record.isr if record is not None else ():
        known = brokers.get(member.broker)
        if known is None or known.id == host.broker_id or known.boot_id != request.machine:
            continue
        return BrokerAddress(id=known.id, address=known.address)
    return None


@handles(LocateEntries)
def locate_entries(context: BrokerContext, asked: LocateEntries) -> LocatedEntries:
    """Answer the call ``locate-entries``.

    Raises:
        InvalidRequest: The runs do not rise, or name an entry that is no batch.
    """
    replica = context.host.replica(Joined(asked.topic, asked.topic_id, asked.partition))
    if replica is None:
        return LocatedEntries(places=[None] * len(asked.runs))
    return LocatedEntries(
        places=[_place_of(replica, each, doubted=asked.doubted) for each in asked.runs]
    )


def _place_of(replica: Partition, runs: EntryRuns, *, doubted: bool) -> FilePlace | None:
    indexes = np.array(runs.indexes, np.int64).reshape(-1, 2)
    try:
        found = replica.locate(indexes, runs.epoch, doubted=doubted)
    except (EntriesGone, DamagedSegment, StorageFailure):
        return None
    return None if found is None else _file(found)


def in_groups(chunks: Iterator[tuple[Chunk, Lineage]]) -> Iterator[list[tuple[Chunk, Lineage]]]:
    """Yield groups of neighbouring chunks, each for one message with their places.

    The message has some numbers for each entry, and has to fit in a frame's header of 1 MiB.
    """
    held: list[tuple[Chunk, Lineage]] = []
    entries = 0
    for each in chunks:
        entries += len(each[0].counts)
        if held and entries > LOCATED_ENTRIES_MAX:
            yield held
            held, entries = [], len(each[0].counts)
        held.append(each)
        if len(held) == _PLACES_AT_ONCE:
            yield held
            held, entries = [], 0
    if held:
        yield held


def places(
    group: Sequence[tuple[Chunk, Lineage]], request: FetchRange, holder: Holder
) -> PlacesFacts:
    """Return the message about the chunks of a group."""
    timed = request.columns is not None and TIMESTAMP.name in request.columns
    (first, _), (last, lineage) = group[0], group[-1]
    return PlacesFacts(
        base=first.base_offset,
        next=last.next_offset,
        lineage=lineage,
        stored=[_facts(*each, holder, timed=timed) for each in group if each[0].stored is not None],
        replica=holder.replica,
    )


def _file(found: ChunkPlace) -> FilePlace:
    return FilePlace(
        path=str(found.path),
        device=found.device,
        inode=found.inode,
        parts=found.parts.ravel().tolist(),
        compressed=found.compressed,
    )


def _facts(chunk: Chunk, lineage: Lineage, holder: Holder, *, timed: bool) -> StoredFacts:
    found = chunk.stored
    assert found is not None
    mine = holder.replica is None
    return StoredFacts(
        file=_file(found) if mine else None,
        indexes=None if mine else found.indexes.ravel().tolist(),
        epoch=None if mine else found.epoch,
        entries=found.entries,
        crc=found.crc,
        lead=found.lead,
        rows=int(chunk.counts.sum()),
        base=chunk.base_offset,
        next=chunk.next_offset,
        lineage=lineage,
        spans=chunk.spans.tolist() if len(chunk.spans) > 1 else None,
        timestamps=chunk.timestamps.tolist() if timed else None,
        counts=chunk.counts.tolist() if timed else None,
    )
