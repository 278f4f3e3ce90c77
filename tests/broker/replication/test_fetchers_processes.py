"""Streams between processes, of which one is stopped or killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from tests.broker.replication.nodes import Node
from tests.broker.replication.partitions import Copy, DiskLog, LeadPartition
from tests.broker.replication.processes import NodeProcess
from tests.support import eventually

PATIENT = ReplicationSettings(beat_s=0.1, death_s=3.0)
"""On a busy machine each of two processes may repeatedly be silent for a second."""


def test_paused_leader_is_detected_and_followed_again_after_it_resumes(tmp_path, caplog):
    copy = Copy(PartitionId("1", 0))
    with (
        NodeProcess("1", tmp_path, 1, death_s=PATIENT.death_s) as leader,
        Node("2", settings=PATIENT) as follower,
    ):
        follower.addresses["1"] = leader.address
        follower.fetchers.follow("1", copy)
        leader.ask("append", 0, 100, 10)
        leader.pause()
        began = time.monotonic()
        eventually(lambda: "leader 1 sent no heartbeat" in caplog.text)
        assert time.monotonic() - began < 20 * PATIENT.death_s
        leader.signal(signal.SIGCONT)
        leader.ask("append", 0, 100, 10)
        assert leader.digests()[0] == [copy.log.digest()]


@pytest.mark.full  # threads: test_leader_stream_failures.py detects a silent peer on both sides
def test_paused_follower_is_detected_with_many_bytes_in_flight(tmp_path):
    partition = LeadPartition(log=DiskLog(tmp_path / "log"))
    leads = {PartitionId("1", 0): partition}
    with (
        Node("1", leads, settings=PATIENT) as leader,
        NodeProcess("2", tmp_path, 0, death_s=PATIENT.death_s) as follower,
    ):
        follower.ask("peer", "1", leader.address, 1)
        partition.wait_for(partition.append(b"x"))
        follower.pause()
        partition.append(os.urandom(1 << 20), 30)
        eventually(lambda: not leader.leading._streams)
        assert not partition.sessions
        follower.signal(signal.SIGCONT)
        partition.wait_for(31)
        assert follower.digests()[1] == [partition.log.digest()]


@pytest.mark.full  # threads: test_leader_stream_failures.py
def test_restarted_leader_is_followed_at_its_new_address(tmp_path):
    copy = Copy(PartitionId("1", 0))
    with (
        NodeProcess("1", tmp_path, 1, death_s=PATIENT.death_s) as leader,
        Node("2", settings=PATIENT) as follower,
    ):
        follower.addresses["1"] = leader.address
        follower.fetchers.follow("1", copy)
        leader.ask("append", 0, 100, 10)
        leader.kill()
        leader.start()
        follower.addresses["1"] = leader.address
        leader.ask("append", 0, 100, 10)
        assert copy.log.end == 20
        assert leader.digests()[0] == [copy.log.digest()]


def test_thousand_idle_partitions_use_little_processor_time(tmp_path):
    """Neither side works on an idle partition. The only message is one heartbeat per second."""
    keys = [PartitionId("1", number) for number in range(1000)]
    partitions = {key: LeadPartition() for key in keys}
    with Node("1", partitions) as leader, Node("2") as follower:
        follower.addresses["1"] = leader.address
        for key in keys:
            follower.fetchers.follow("1", Copy(key))
        eventually(lambda: all(len(each.sessions) == 1 for each in partitions.values()))
        time.sleep(0.2)
        before = [each.reads for each in partitions.values()], time.process_time()
        time.sleep(2)
        assert [each.reads for each in partitions.values()] == before[0]
        assert time.process_time() - before[1] < 0.6


def test_shutdown_does_not_wait_for_a_paused_leader(tmp_path):
    copy = Copy(PartitionId("1", 0))
    patient = ReplicationSettings(beat_s=1.0, death_s=60.0)
    before = threading.active_count()
    with NodeProcess("1", tmp_path, 1, death_s=60) as leader:
        follower = Node("2", settings=patient)
        follower.addresses["1"] = leader.address
        follower.fetchers.follow("1", copy)
        leader.ask("append", 0, 100, 10)
        leader.pause()
        began = time.monotonic()
        follower.stop()
        assert time.monotonic() - began < 20
        eventually(lambda: threading.active_count() <= before)


@pytest.mark.full  # the first test resumes its leader
def test_paused_process_keeps_its_streams_after_it_resumes(tmp_path):
    """Its clock advances while it is stopped, and the peer's messages wait in its sockets."""
    partition = LeadPartition(log=DiskLog(tmp_path / "log"))
    leads = {PartitionId("1", 0): partition}
    settings = ReplicationSettings(beat_s=0.5, death_s=1.0)
    with (
        Node("1", leads, settings=ReplicationSettings(death_s=30)) as leader,
        NodeProcess("2", tmp_path, 0, beat_s=settings.beat_s, death_s=settings.death_s) as follower,
    ):
        follower.ask("peer", "1", leader.address, 1)
        partition.wait_for(partition.append(b"x"))
        (stream,) = leader.leading._streams.values()
        follower.pause()
        partition.append(b"y")
        time.sleep(3 * settings.death_s)
        follower.signal(signal.SIGCONT)
        partition.wait_for(2)
        time.sleep(settings.death_s)
        assert leader.leading._streams["2"] is stream


@pytest.mark.chaos
@pytest.mark.timeout(200)
@pytest.mark.full
def test_replicas_are_equal_after_cuts_kills_and_pauses():
    """A short run of ``stress``, in a separate process that an abort in gRPC may end."""
    program = [sys.executable, "-m", "tests.broker.replication.stress", "--seconds", "12"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"[1-9]\d* cuts, [1-9]\d* kills, [1-9]\d* pauses", done.stdout), done.stdout
