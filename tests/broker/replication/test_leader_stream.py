"""Two brokers in one process with a real stream between them."""

from __future__ import annotations

import threading
import time
from tempfile import TemporaryDirectory

from isolog.errors import BrokerStopping
from spark_stream.cluster.partitions import PartitionId
from tests.broker.replication.nodes import Node
from tests.broker.replication.partitions import Copy, LeadPartition
from tests.support import eventually

KEY = PartitionId("t", 0)


def follow(follower: Node, leader: Node, *copies: Copy) -> None:
    follower.addresses[leader.name] = leader.address
    for copy in copies:
        follower.fetchers.follow(leader.name, copy)


def equal(copy: Copy, partition: LeadPartition) -> bool:
    return copy.log.digest() == partition.log.digest()


def test_appended_entries_are_replicated_and_high_watermark_advances():
    partition, copy = LeadPartition(), Copy(KEY)
    partition.append(b"early", 10)
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follow(follower, leader, copy)
        partition.wait_for(10)
        for size in (0, 1, 300, 65_536, 65_537, 3 << 20):
            partition.wait_for(partition.append(bytes(size)))
        eventually(lambda: copy.high_watermark == 16)
        assert equal(copy, partition)


def test_brokers_replicate_over_unix_sockets():
    partition, copy = LeadPartition(), Copy(KEY)
    with TemporaryDirectory() as folder:  # the path of a socket has at most 107 bytes
        bind = f"unix:{folder}/leader"
        with Node("1", {KEY: partition}, listen=bind) as leader, Node("2") as follower:
            follow(follower, leader, copy)
            partition.wait_for(partition.append(b"x", 10))
            (stream,) = leader.leading._streams.values()
            stream.end(BrokerStopping("a test"))
            eventually(lambda: len(copy.agreements) == 2)
            partition.wait_for(partition.append(b"y"))
            assert equal(copy, partition)


def test_many_partitions_share_a_stream():
    keys = [PartitionId("t", number) for number in range(300)]
    partitions = {key: LeadPartition() for key in keys}
    copies = [Copy(key) for key in keys]
    with Node("1", partitions) as leader, Node("2") as follower:
        follow(follower, leader, *copies)
        for number, partition in enumerate(partitions.values()):
            partition.append(b"%d" % number * 100, 5)
        for partition in partitions.values():
            partition.wait_for(5)
        eventually(lambda: all(copy.high_watermark == 5 for copy in copies))
        assert all(map(equal, copies, partitions.values()))
        assert len(leader.leading._streams) == 1


def test_diverged_follower_is_truncated_and_one_without_common_entries_is_reset():
    apart, evicted = LeadPartition(epoch=3), LeadPartition(epoch=3)
    other = PartitionId("t", 1)
    copies = Copy(KEY, epoch=3), Copy(other, epoch=3)
    for number in range(8):
        apart.log.append(1, b"%d" % number)
    for _ in range(5):
        copies[0].log.append(2, b"lost")  # not in the leader's log
    copies[0].log = _copied(apart, 4)
    for _ in range(5):
        copies[0].log.append(2, b"lost")
    evicted.append(b"x", 20)
    evicted.log.evict(15)
    with Node("1", {KEY: apart, other: evicted}) as leader, Node("2") as follower:
        follow(follower, leader, *copies)
        apart.wait_for(8)
        evicted.wait_for(20)
        assert equal(copies[0], apart)
        assert equal(copies[1], evicted)
        assert copies[0].agreements[0].entry == 4
        assert copies[1].agreements[0].begin == (15, 15)


def _copied(partition, entries):
    from tests.broker.replication.partitions import MemoryLog

    log = MemoryLog()
    for row, data in partition.log.entries[:entries]:
        log.put(row, data, 1)
    return log


def test_shutdown_is_fast():
    partition, copy = LeadPartition(), Copy(KEY)
    before = set(threading.enumerate())
    leader, follower = Node("1", {KEY: partition}), Node("2")
    follow(follower, leader, copy)
    partition.wait_for(partition.append(b"x"))
    began = time.monotonic()
    leader.stop()
    follower.stop()
    assert time.monotonic() - began < 10
    eventually(lambda: set(threading.enumerate()) <= before)
