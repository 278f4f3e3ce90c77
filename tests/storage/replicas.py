"""A leader's log with transactions, and a follower that copies its entries."""

from __future__ import annotations

import random
from pathlib import Path

from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.log.log import PartitionLog
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import NOW, format_of, records

HERE = Path("/t/0")


def new_log(disk: Disk | None = None, folder: Path = HERE, **settings) -> PartitionLog:
    """An empty log, in memory unless a disk is given."""
    return PartitionLog.open(folder, format_of(**settings), disk or SimulatedDisk())


def fill(log: PartitionLog, seed: int, entries: int, epoch: int = 0) -> None:
    """Append batches, in up to three concurrent transactions or in none, and their markers."""
    chance = random.Random(seed)
    for moment in range(entries):
        end, now = int(log.end.offset), NOW + 1000 * int(log.end.entry)
        producer = chance.randrange(4)
        transaction = 100 * (int(log.end.entry) // 10) + producer
        if producer and chance.random() < 0.3 and transaction not in ended(log):
            kind = chance.choice([Kind.COMMIT, Kind.ABORT])
            log.mark(kind, producer, 1, transaction, LeaderEpoch(epoch), now)
            continue
        batch = log.format.prepare(records(end, chance.randrange(1, 9)), now)
        free = producer == 0 or transaction in ended(log)
        stamp = Stamp(producer, 1, moment, -1 if free else transaction)
        log.append(batch, LeaderEpoch(epoch), now, stamp)


def ended(log: PartitionLog) -> set[int]:
    """The transactions that have a marker."""
    found: set[int] = set()
    for table in log.tables():
        found.update(table["transaction"][table["kind"] != Kind.DATA].tolist())
    return found


def fetch(
    follower: PartitionLog, leader: PartitionLog, max_bytes: int, upto: int | None = None
) -> int:
    """Append the leader's later entries to the follower. Return the number of frames."""
    frames = 0
    stop = None if upto is None else EntryIndex(upto)
    while (found := leader.read_entries(follower.end.entry, max_bytes, stop)) is not None:
        before = follower.end.entry
        appended = follower.append_entries(found.rows, found.data)
        assert [each.entry_index for each in appended] == list(range(before, follower.end.entry))
        assert len(appended) == len(found.rows)
        frames += 1
    return frames


def seen(log: PartitionLog) -> dict[str, object]:
    """The results of reads of the log."""
    chunks = list(log.read(log.start.offset, log.end.offset))
    committed = list(log.read(log.start.offset, log.end.offset, committed=True))
    return {
        "ids": [number for each in chunks for number in each.batch.column("id").to_pylist()],
        "committed": [offset for each in committed for offset in each.offsets().tolist()],
        "aborted": [
            log.has_aborted(Offset(at), Offset(at + 1))
            for at in range(log.start.offset, log.end.offset)
        ],
    }
