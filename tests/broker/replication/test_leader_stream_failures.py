"""Failures of a partition, a broker or the network, and their effects on the other partitions."""

from __future__ import annotations

import threading
import time

import pytest

from isolog.errors import (
    InvalidRequest,
    IsologError,
    NotLeader,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.broker.replication import lines
from spark_stream.broker.replication.follower_core import FollowerStreamCore
from spark_stream.broker.replication.leader_core import LeaderStreamCore
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from spark_stream.protocol import Received
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.listening import listening_socket, port_of
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import Door, Server
from spark_stream.transport.streams import BlockingStream, CallFailed, failure_of
from spark_stream.wire.replication_messages import Acked, Follow, OpenReplication, Welcome, unpack
from tests.broker.replication.nodes import QUICK, START, Node, identity
from tests.broker.replication.partitions import Copy, LeadPartition
from tests.broker.replication.test_leader_stream import KEY, equal, follow
from tests.client.proxy import Proxy
from tests.support import eventually

OTHER = PartitionId("t", 1)


def pair() -> tuple[dict[PartitionId, LeadPartition], Copy, Copy]:
    return {KEY: LeadPartition(), OTHER: LeadPartition()}, Copy(KEY), Copy(OTHER)


def test_damaged_frame_is_reported_and_requested_again_in_a_new_session():
    partitions, bad, good = pair()
    bad.damage = 3
    with Node("1", partitions) as leader, Node("2") as follower:
        follow(follower, leader, bad, good)
        for partition in partitions.values():
            partition.wait_for(partition.append(b"record", 100))
        assert equal(bad, partitions[KEY])
        assert len(bad.agreements) == 4
        assert len(good.agreements) == 1
        assert len(partitions[KEY].complaints) == 3
        assert partitions[OTHER].complaints == []
        assert follower.fetchers._fetchers["1"].failures == 3


def test_full_disk_stops_its_partition_only_and_is_reported_to_the_leader():
    partitions, bad, good = pair()
    with Node("1", partitions) as leader, Node("2") as follower:
        follow(follower, leader, bad, good)
        partitions[KEY].wait_for(partitions[KEY].append(b"before"))
        bad.full.set()
        partitions[KEY].append(b"later", 10)
        for _ in range(20):
            partitions[OTHER].wait_for(partitions[OTHER].append(b"other"))
        assert bad.log.end == 1
        eventually(lambda: partitions[KEY].refusals)
        assert partitions[OTHER].refusals == []
        bad.full.clear()
        partitions[KEY].wait_for(11)
        assert equal(bad, partitions[KEY])
        assert len(good.agreements) == 1


@pytest.mark.rule(
    "the delays caused by a slow or failed replica", "broker/replication/follower_core.py"
)
def test_hanging_partition_delays_others_briefly_and_uses_bounded_memory():
    partitions, bad, good = pair()
    settings = ReplicationSettings(beat_s=0.1, death_s=1.0, stream_bytes=4 << 20)
    leader = Node("1", partitions, settings=settings)
    with leader, Node("2", settings=settings) as follower:
        follow(follower, leader, bad, good)
        partitions[KEY].wait_for(partitions[KEY].append(b"before"))
        bad.stuck.set()
        partitions[KEY].append(bytes(1 << 20), 50)
        began = time.monotonic()
        partitions[OTHER].wait_for(partitions[OTHER].append(b"x"))
        assert time.monotonic() - began < 15
        for _ in range(50):
            partitions[OTHER].wait_for(partitions[OTHER].append(b"x"))
        time.sleep(2 * settings.death_s)  # the stream survives a hanging partition
        partitions[OTHER].wait_for(partitions[OTHER].append(b"x"))
        (stream,) = leader.leading._streams.values()
        assert 1 << 20 <= stream.unacked_bytes <= 4 << 20
        bad.stuck.clear()
        bad.freed.set()
        partitions[KEY].wait_for(51)
        assert equal(bad, partitions[KEY])
        assert bad.most_entered == good.most_entered == 1
        assert len(good.agreements) == len(bad.agreements) == 1


def test_stream_is_reopened_while_a_partition_hangs():
    partition, copy = LeadPartition(), Copy(KEY)
    with (
        Node("1", {KEY: partition}) as leader,
        Node("2") as follower,
        Proxy(leader.address) as proxy,
    ):
        follower.addresses["1"] = proxy.address
        follower.fetchers.follow("1", copy)
        partition.wait_for(partition.append(b"before"))
        (first,) = leader.leading._streams.values()
        copy.stuck.set()
        partition.append(b"later")
        eventually(lambda: copy.entered)
        proxy.cut()
        eventually(lambda: first not in leader.leading._streams.values())
        eventually(lambda: leader.leading._streams)
        time.sleep(QUICK.death_s)
        assert len(copy.agreements) == 1  # no new session before the last job of the old one
        copy.stuck.clear()
        copy.freed.set()
        partition.wait_for(2)
        assert equal(copy, partition)
        assert copy.most_entered == 1


def test_stream_is_removed_if_its_follower_disconnects_before_its_first_message():
    with Node("1", {KEY: LeadPartition()}) as leader:
        channel, _ = _raw(leader)
        assert leader.leading._streams
        channel.close()
        eventually(lambda: not leader.leading._streams)


def test_replica_without_readable_history_delays_no_other():
    partitions, bad, good = pair()
    bad.history = lambda: 1 / 0
    with Node("1", partitions) as leader, Node("2") as follower:
        follow(follower, leader, bad, good)
        partitions[OTHER].wait_for(partitions[OTHER].append(b"x"))
        eventually(lambda: follower.fetchers._fetchers["1"].failures > 2)
        del bad.history
        partitions[KEY].wait_for(partitions[KEY].append(b"x"))
        assert len(good.agreements) == 1


def test_stream_is_reopened_after_an_unexpected_error(monkeypatch, caplog):
    partition, copy = LeadPartition(), Copy(KEY)
    fail = iter([True, True])

    def fails_at_first(real):
        return lambda *asked, **named: 1 / 0 if next(fail, False) else real(*asked, **named)

    monkeypatch.setattr(lines, "ClientChannel", fails_at_first(lines.ClientChannel))
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follow(follower, leader, copy)
        partition.wait_for(partition.append(b"x"))
        for core, method in ((FollowerStreamCore, "on_received"), (LeaderStreamCore, "take")):
            fail = iter([True])
            monkeypatch.setattr(core, method, fails_at_first(getattr(core, method)))
            sessions = len(copy.agreements)
            partition.append(b"x")
            eventually(lambda sessions=sessions: len(copy.agreements) > sessions)
            partition.wait_for(partition.append(b"x"))
        assert equal(copy, partition)
    assert caplog.text.count("ZeroDivisionError: division by zero") >= 4


def test_followers_of_a_deposed_leader_are_notified():
    partition, copy = LeadPartition(), Copy(KEY)
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follow(follower, leader, copy)
        partition.wait_for(partition.append(b"x"))
        partition.depose()
        eventually(lambda: copy.refusals)
        assert isinstance(copy.refusals[0], NotLeader)


def test_refused_partition_is_retried_with_growing_pauses():
    partition, copy, unknown = LeadPartition(epoch=2), Copy(KEY, epoch=1), Copy(OTHER)
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follow(follower, leader, copy, unknown)
        eventually(lambda: len(copy.refusals) > 2 and len(unknown.refusals) > 2)
        assert isinstance(copy.refusals[0], NotLeader)
        assert isinstance(unknown.refusals[0], UnknownTopic)
        assert leader.lead.started < 50
        newer = Copy(KEY, epoch=2)
        follower.fetchers.follow("1", newer)
        partition.wait_for(partition.append(b"x"))
        refused = len(copy.refusals)
        time.sleep(0.3)
        assert len(copy.refusals) == refused  # the earlier one is no longer followed


def test_unfollowed_partition_receives_no_more_entries():
    partitions, copy, other = pair()
    with Node("1", partitions) as leader, Node("2") as follower:
        follow(follower, leader, copy, other)
        partitions[KEY].wait_for(partitions[KEY].append(b"x"))
        follower.fetchers.unfollow(KEY)
        eventually(lambda: not partitions[KEY].sessions)
        partitions[KEY].append(b"y")
        partitions[OTHER].wait_for(partitions[OTHER].append(b"z"))
        assert copy.log.end == 1
        follower.fetchers.unfollow(OTHER)
        eventually(lambda: not leader.leading._streams)  # no partition is left to follow
        follow(follower, leader, copy)
        partitions[KEY].wait_for(2)


def test_partition_follows_a_new_leader():
    one, two, copy = LeadPartition(), LeadPartition(epoch=2), Copy(KEY)
    with Node("1", {KEY: one}) as first, Node("2", {KEY: two}) as second, Node("3") as follower:
        follow(follower, first, copy)
        one.wait_for(one.append(b"x", 5))
        for row, data in one.log.entries[:3]:
            two.log.put(row, data, 1)
        moved = Copy(KEY, epoch=2, log=copy.log)
        follow(follower, second, moved)
        two.wait_for(two.append(b"y", 4))
        assert equal(moved, two)
        assert moved.agreements[0].entry == 3
        eventually(lambda: not one.sessions)


@pytest.mark.full  # quiet streams of the protocol: tests/protocol/test_connection.py
def test_idle_stream_stays_open():
    partition, copy = LeadPartition(), Copy(KEY)
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follow(follower, leader, copy)
        partition.wait_for(partition.append(b"x"))
        time.sleep(4 * QUICK.death_s)
        partition.wait_for(partition.append(b"x"))
        assert len(copy.agreements) == 1


def test_fetcher_without_partitions_logs_no_failures(caplog):
    caplog.set_level("INFO")
    partition = LeadPartition()
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        follower.addresses["1"] = leader.address
        follower.fetchers.follow("1", Copy(KEY))
        partition.wait_for(partition.append(b"x"))
        (fetcher,) = follower.fetchers._fetchers.values()
        follower.fetchers.unfollow(KEY)
        eventually(lambda: not partition.sessions and not fetcher.is_at_work)
    assert "following broker 1" not in caplog.text


@pytest.mark.rule(
    "the death of a silent broker on a stream",
    "protocol/connection.py",
    "broker/replication/leader_core.py",
)
@pytest.mark.parametrize("lost", ["answers", "all"])
def test_both_sides_detect_a_silent_peer_in_time(lost, caplog):
    partition, copy = LeadPartition(), Copy(KEY)
    with (
        Node("1", {KEY: partition}) as leader,
        Node("2") as follower,
        Proxy(leader.address) as proxy,
    ):
        follower.addresses["1"] = proxy.address
        follower.fetchers.follow("1", copy)
        partition.wait_for(partition.append(b"x"))
        (stream,) = leader.leading._streams.values()
        if lost == "answers":
            proxy.lose_answers()
        else:
            proxy.pause()
        began = time.monotonic()
        eventually(lambda: stream not in leader.leading._streams.values())
        eventually(lambda: "leader 1 sent no heartbeat" in caplog.text)
        if lost == "all":
            assert "follower 2 sent no heartbeat" in caplog.text
        assert time.monotonic() - began < 20 * QUICK.death_s
        proxy.cut()
        partition.wait_for(partition.append(b"y"))
        assert equal(copy, partition)


def test_large_batch_on_a_slow_line_is_no_timeout():
    partition, copy = LeadPartition(), Copy(KEY)
    with (
        Node("1", {KEY: partition}) as leader,
        Node("2") as follower,
        Proxy(leader.address) as proxy,
    ):
        follower.addresses["1"] = proxy.address
        follower.fetchers.follow("1", copy)
        partition.wait_for(partition.append(b"x"))
        proxy.slow_down(8 << 20)
        partition.wait_for(partition.append(bytes(12 << 20)))  # takes 1.5 s, and the timeout is 1 s
        assert len(copy.agreements) == 1


@pytest.mark.rule(
    "the streams of replication that a leader accepts", "broker/replication/leader_stream.py"
)
@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"proof": ""}, Unauthenticated),
        ({"proof": "0" * 64}, Unauthenticated),
        ({"proof": identity("2", "another").call_proof("1", START)}, Unauthenticated),
        ({"proof": identity("2").call_proof("9", START)}, Unauthenticated),
        ({"proof": identity("2").call_proof("1", "an earlier start")}, Unauthenticated),
        ({"proof": identity("3").call_proof("1", START)}, Unauthenticated),
        ({"follower": "1"}, InvalidRequest),
        ({"window_bytes": 0}, InvalidRequest),
    ],
)
def test_stream_request_of_false_or_invalid_follower_is_refused(asked, error):
    with Node("1", {KEY: LeadPartition()}) as leader:
        channel = ClientChannel(leader.address, timeout_s=20)
        wire = channel.open("replicate", b"", opening(**asked).to_bytes())
        assert type(_failure(wire)) is error
        channel.close()
        assert not leader.leading._streams


@pytest.mark.parametrize("wrong", ["cluster", "broker"])
def test_follower_rejects_a_false_leader(wrong, caplog):
    partition, copy = LeadPartition(), Copy(KEY)
    caplog.set_level("INFO")
    named = {"cluster_id": "another"} if wrong == "cluster" else {}
    name = "9" if wrong == "broker" else "1"
    with Node(name, {KEY: partition}, **named) as leader, Node("2") as follower:
        follower.addresses["1"] = leader.address
        follower.fetchers.follow("1", copy)
        eventually(lambda: "following broker 1" in caplog.text)
        time.sleep(0.2)
        assert leader.lead.started == 0


class FalseLeader:
    """A leader without the cluster's secret. It records the messages of its followers."""

    def __init__(self):
        self.said = []
        bound = listening_socket("127.0.0.1:0")
        self.port = port_of(bound)
        self._loop = Loop("false-leader")
        self._server = Server(self._loop)
        self._server.open(Door(bound, lambda _: self._serve))

    def _serve(self, opened, stream):
        proof = OpenReplication.from_bytes(bytes(opened.body)).proof  # the only proof that it has
        stream.handle = lambda event: (
            self.said.append(event) if isinstance(event, Received) else None
        )
        stream.send(Welcome(1, proof).pack())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stop("the test is over", 0.1)
        self._loop.close()


def test_server_at_the_address_of_a_dead_leader_receives_no_messages(caplog):
    copy = Copy(KEY)
    caplog.set_level("INFO")
    with FalseLeader() as leader, Node("2") as follower:
        follower.addresses["1"] = f"127.0.0.1:{leader.port}"
        follower.fetchers.follow("1", copy)
        eventually(lambda: "in the place of broker 1 has not proved" in caplog.text)
        assert leader.said == []
        assert copy.agreements == []


def test_stream_of_an_invalid_message_is_closed():
    partition, copy = LeadPartition(), Copy(KEY)
    partition.append(b"x")
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        for message in (b"\xff", b"\x04" + b"\xff" * 4, _too_far()):
            channel, wire = _raw(leader)
            wire.send(_follow())
            wire.receive(20)
            wire.send(message)
            assert isinstance(_failure(wire), InvalidRequest)
            channel.close()
        follow(follower, leader, copy)
        partition.wait_for(partition.append(b"y"))


def _failure(wire: BlockingStream) -> IsologError:
    """Return the error that ends a stream."""
    try:
        while wire.receive(20) is not None:
            pass
    except CallFailed as error:
        return failure_of(error, "the leader")
    raise AssertionError("the stream ended without an error")


def _too_far() -> bytes:
    return Acked(((0, 1 << 40),)).pack()


def _follow() -> bytes:
    return Follow(0, "t", 0, 1, "g", Copy(KEY).history()).pack()


def opening(**fields: object) -> OpenReplication:
    right = {"stream": "s", "follower": "2", "window_bytes": 1 << 20} | fields
    proof = identity(str(right["follower"])).call_proof("1", START)
    return OpenReplication(**({"proof": proof} | right))


def _raw(leader: Node, follower: str = "7"):
    """Return a stream after the leader's welcome, and its connection."""
    channel = ClientChannel(leader.address, timeout_s=20)
    wire = channel.open("replicate", b"", opening(follower=follower).to_bytes())
    received = wire.receive(20)
    assert isinstance(unpack(received.header, received.body), Welcome)
    return channel, wire


@pytest.mark.full  # a silent peer: a test above
def test_follower_that_reads_nothing_is_disconnected_and_its_threads_are_freed():
    partition = LeadPartition()
    before = threading.active_count()
    with Node("1", {KEY: partition}) as leader:
        running = threading.active_count()
        channel, wire = _raw(leader)
        wire.send(_follow())
        partition.append(bytes(8 << 20), 4)
        eventually(lambda: leader.leading._streams)
        eventually(lambda: not leader.leading._streams)
        eventually(lambda: threading.active_count() <= running)
        channel.close()
    eventually(lambda: threading.active_count() <= before)


def test_second_stream_of_a_follower_ends_the_first():
    partition, copy = LeadPartition(), Copy(KEY)
    with Node("1", {KEY: partition}) as leader, Node("2") as follower:
        channel, _ = _raw(leader, follower="2")
        follow(follower, leader, copy)
        partition.wait_for(partition.append(b"x"))
        eventually(lambda: len(leader.leading._streams) == 1)
        channel.close()


def test_unreachable_leader_does_not_delay_shutdown():
    copy = Copy(KEY)
    with Node("2") as follower:
        follower.addresses["1"] = "127.0.0.1:1"  # no server listens there
        follower.fetchers.follow("1", copy)
        follower.fetchers.follow("3", Copy(OTHER))  # it has no address
        time.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 10
