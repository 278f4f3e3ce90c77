"""The recent batches of a leader in memory: the bytes of the file, within limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_stream.batches import crc32c
from spark_stream.broker.partition.replication import FollowerSession
from spark_stream.broker.partition.sessions import BROKER_BYTES, PARTITION_BYTES, MemoryRoom, Recent
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import Entry
from spark_stream.consistency.ids import EntryIndex
from spark_stream.storage.format.codec import EncodedBatch
from spark_stream.storage.format.stored import StoredEntries, check_entries
from tests.broker.clusters import around, make
from tests.broker.local_broker import LocalBroker, Surroundings
from tests.support import numbers

__all__ = ["around"]

MANY = 1 << 20


def keep(recent: Recent, number: int, size: int) -> pa.Buffer:
    message = pa.py_buffer(bytes([number % 256]) * size)
    recent.keep(Entry(number, number, 0, 0, 1, 0, crc32c(message)), EncodedBatch.of(message))
    return message


def test_entry_is_returned_from_memory_if_the_file_would_return_no_more():
    recent = Recent(MemoryRoom(BROKER_BYTES))
    messages = [keep(recent, number, 400) for number in range(3)]
    last = recent.get(2, 3, MANY)
    assert last is not None
    assert last.data.equals(messages[2])
    assert recent.get(0, 3, MANY) is None  # one read of the file returns all three
    alone = recent.get(0, 3, 900)
    assert alone is not None
    assert alone.data.equals(messages[0])
    assert recent.get(3, 4, MANY) is None


def test_batches_below_the_high_watermark_are_dropped():
    room = MemoryRoom(BROKER_BYTES)
    recent, before = Recent(room), room.bytes_left
    for number in range(5):
        keep(recent, number, 100)
    assert room.bytes_left == before - 500
    recent.drop_below(3)
    assert [recent.get(number, number + 1, MANY) is not None for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    recent.clear()
    assert room.bytes_left == before


def test_memory_limits_of_a_partition_and_of_the_broker_hold():
    room = MemoryRoom(3 * MANY)
    one, other = Recent(room), Recent(room)
    keep(one, 0, 2 * MANY)
    keep(other, 0, 2 * MANY)
    assert one.get(0, 1, MANY) is not None
    assert other.get(0, 1, MANY) is None
    keep(one, 1, PARTITION_BYTES + 1)
    assert one.get(1, 2, MANY) is None
    keep(other, 1, MANY)
    assert room.bytes_left == 3 * MANY - MANY
    roomy = Recent(MemoryRoom(BROKER_BYTES))
    for number in range(20):
        keep(roomy, number, PARTITION_BYTES // 4)
    kept = [number for number in range(20) if roomy.get(number, number + 1, MANY)]
    assert kept == [16, 17, 18, 19]


@pytest.fixture
def led(around: Surroundings) -> tuple[LocalBroker, FollowerSession]:
    """``a`` leads ``t/0``, and ``b`` has a session."""
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    replica = b.replica("t")
    session = a.host.start_session(
        b.id,
        b.generation,
        PartitionId(replica.topic_id, 0),
        replica.leader_epoch,
        replica.following.history(),
        lambda _: None,
    )
    return a, session


def same(one: StoredEntries, other: StoredEntries) -> bool:
    names = [name for name in one.rows.dtype.names if name not in ("position", "entry_crc")]
    return one.data.equals(other.data) and bool(np.all(one.rows[names] == other.rows[names]))


def test_memory_and_file_return_the_same_entries(led):
    a, session = led
    partition = a.partition("t")
    for number in range(4):
        partition.append(numbers(number, 3))
        end = session.end
        given = session.read_entries(EntryIndex(end - 1), MANY)
        stored = partition.log.read_entries(EntryIndex(end - 1), MANY)
        assert given is not None
        assert stored is not None
        assert given is partition._state.sessions.recent.get(end - 1, end, MANY)
        assert same(given, stored)
        check_entries(given.rows, given.data, partition.log.boundary_of(EntryIndex(end - 1)), 0, "")


@pytest.mark.rule(
    "the batches that a leader keeps in memory for its followers", "broker/partition/sessions.py"
)
def test_idle_partition_and_one_without_followers_keep_no_batches(led):
    a, session = led
    partition, room = a.partition("t"), a.host._recent_room
    before = room.bytes_left
    partition.append(numbers(0, 3))
    assert room.bytes_left < before
    session.on_acked(session.end)
    assert room.bytes_left == before
    partition.append(numbers(3, 3))
    session.close()
    assert room.bytes_left == before
    partition.append(numbers(6, 3))
    assert room.bytes_left == before
