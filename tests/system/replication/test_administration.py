"""Administration of replicas and brokers. A refused call changes no state."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import Future
from contextlib import closing

import pytest

from isolog.errors import (
    InvalidAssignment,
    InvalidConfig,
    IsologError,
    LeaderEpochFenced,
    UnknownBroker,
    UnknownLeaderEpoch,
    WrongCluster,
)
from isolog.testing import LocalCluster
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.values import Written
from spark_stream.wire.cluster_messages import ElectPreferred
from tests.support import NUMBERS, Channel, eventually, fetched, numbers
from tests.system.replication.clusters import (
    CONF,
    WAIT_S,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    folders,
    partition,
    read,
    with_retries,
)

pytestmark = pytest.mark.chaos


def create_filled(log, topic: str, *assignment: list[int]) -> None:
    """Create a topic with the given assignment, and append ten numbers to each partition."""
    log.create_topic(topic, schema=NUMBERS, assignment=[[str(b) for b in a] for a in assignment])
    for number in range(len(assignment)):
        append_replicated(log, topic, 0, 10, number)
    await_in_sync(log, topic, len(assignment[0]))


@pytest.mark.full  # without processes: tests/broker/node/test_controlling_balance.py
def test_leaders_are_balanced_after_restarts_without_a_command(topic):
    conf = CONF | {"leader_balance_seconds": 0.5}
    with LocalCluster(2, conf=conf, cuttable=False) as cluster, cluster.connect() as log:
        create_filled(log, topic, [1, 2], [2, 1])
        for number in cluster.brokers:
            cluster.stop(number)
            eventually(
                lambda n=number: (
                    {leader_of(log, topic, 0), leader_of(log, topic, 1)} == {str(3 - n)}
                )
            )
            cluster.restart(number)
            eventually(lambda: [leader_of(log, topic, each) for each in (0, 1)] == ["1", "2"])
        for number in (0, 1):
            append_replicated(log, topic, 10, 5, number)


def leader_of(log, topic: str, number: int) -> str | None:
    return partition(log, topic, number).leader


# -- moves -----------------------------------------------------------------------------------------


def test_moved_replicas_are_removed_from_their_old_brokers(cluster, log, topic):
    create_filled(log, topic, [1, 2])
    log.move_replicas(topic, {0: ["3", "2"]})
    eventually(lambda: partition(log, topic).replicas == ("3", "2"))
    await_in_sync(log, topic, 2)
    eventually(lambda: set(folders(cluster, topic)) == {2, 3})
    await_equal_copies(cluster, topic, count=2)
    eventually(lambda: partition(log, topic).leader == "3")
    append_replicated(log, topic, 10, 5)
    assert read(log, topic) == list(range(15))


def test_producers_and_consumers_continue_while_a_partition_moves(cluster, log, topic):
    """A replica that closes at its old broker must not count as a deleted topic."""
    create_filled(log, topic, [1])
    with (
        cluster.connect(timeout=60) as other,
        other.consumer(topic, isolation="read_committed") as consumer,
        other.producer(isolation="read_committed", timeout_ms=60_000) as producer,
        other.producer(transactional_id=topic) as transactional,
    ):
        futures: list[Future[Written]] = []
        received: list[int] = []

        def write() -> None:
            while not over.wait(0.001):
                futures.append(producer.append(topic, numbers(10 + len(futures), 1), 0))

        def read_on() -> None:
            for batch in consumer.batches():
                received.extend(batch.column("n").to_pylist())
                if -1 in received:
                    return

        over = threading.Event()
        threads = [threading.Thread(target=each, daemon=True) for each in (write, read_on)]
        for each in threads:
            each.start()
        for brokers in (["2"], ["3"], ["1"], ["2"], ["3"], ["1"]):
            log.move_replicas(topic, {0: brokers})
            with transactional.transaction():
                transactional.append(topic, numbers(1_000_000, 1), 0)
            eventually(lambda to=brokers: partition(log, topic).replicas == tuple(to))
        over.set()
        threads[0].join()
        for future in futures:
            future.result(WAIT_S)
        producer.append(topic, numbers(-1, 1), 0).result(WAIT_S)
        threads[1].join(WAIT_S)
    plain = [each for each in received if each != 1_000_000]
    assert plain == [*range(10 + len(futures)), -1]
    assert len(received) - len(plain) == 6


def test_move_completes_after_kills_of_its_leader_and_target(cluster, log, topic):
    create_filled(log, topic, [1, 2])
    cluster.kill(3)
    log.move_replicas(topic, {0: ["3", "2"]})
    append_replicated(log, topic, 10, 5)
    cluster.kill(1)
    eventually(lambda: partition(log, topic).leader == "2")
    cluster.restart(3)
    eventually(lambda: partition(log, topic).replicas == ("3", "2"))
    cluster.restart(1)
    eventually(lambda: set(folders(cluster, topic)) == {2, 3})
    assert read(log, topic) == list(range(15))


def test_move_is_cancelled(cluster, log, topic):
    create_filled(log, topic, [1, 2])
    cluster.kill(3)
    log.move_replicas(topic, {0: ["3"]})
    log.cancel_moves(topic)
    eventually(lambda: partition(log, topic).replicas == ("1", "2"))
    cluster.restart(3)
    eventually(lambda: set(folders(cluster, topic)) == {1, 2})
    assert read(log, topic) == list(range(10))


def test_preferred_leaders_are_elected_by_a_command(cluster, log, topic):
    create_filled(log, topic, [1, 2, 3], [2, 3, 1])
    cluster.kill(1)
    eventually(lambda: partition(log, topic).leader not in (None, "1"))
    cluster.restart(1)
    await_in_sync(log, topic)
    with closing(ClusterConnection(cluster.bootstrap)) as connection:
        deleted = ElectPreferred(topic_ids=["of-a-deleted-topic"])
        assert connection.call(deleted).elected == 0
    log.elect_preferred_leaders(topic)
    eventually(lambda: [partition(log, topic, n).leader for n in (0, 1)] == ["1", "2"])
    append_replicated(log, topic, 10, 5)
    assert read(log, topic) == [*range(15), *range(10)]


# -- decommissions ---------------------------------------------------------------------------------


@pytest.mark.quick("True")
@pytest.mark.parametrize("dead", [False, True])
def test_decommissioned_broker_loses_its_replicas_also_if_dead(topic, dead):
    with LocalCluster(4, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        create_filled(log, topic, [1, 2, 3], [2, 1, 3])
        if dead:
            cluster.kill(1)
        with_retries(lambda: log.decommission("1"))
        eventually(lambda: [partition(log, topic, n).replicas.count("1") for n in (0, 1)] == [0, 0])
        await_in_sync(log, topic)
        eventually(lambda: "1" not in {each.id for each in log.cluster().brokers})
        for number in range(2):
            assert set(partition(log, topic, number).replicas) == {"2", "3", "4"}
            append_replicated(log, topic, 10, 5, number)
        assert read(log, topic) == [*range(15), *range(15)]


def test_leaving_broker_gets_no_new_replicas(topic):
    """A new replica would be moved away again, against the command of the operator."""
    with LocalCluster(2, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        create_filled(log, topic, [1])
        create_filled(log, f"{topic}-stays", [1, 2])
        log.decommission("2")
        with pytest.raises(InvalidAssignment, match="'2' is leaving"):
            log.move_replicas(topic, {0: ["2"]})
        with pytest.raises(InvalidAssignment, match="'2' is leaving"):
            log.create_topic(f"{topic}-new", schema=NUMBERS, assignment=[["2"]])
        assert partition(log, topic).replicas == ("1",)
        # This move only changes the order of existing replicas.
        log.move_replicas(f"{topic}-stays", {0: ["2", "1"]})


# -- refused calls ---------------------------------------------------------------------------------


def test_invalid_assignments_are_refused_and_create_no_topic(cluster, log, topic):
    with pytest.raises(InvalidAssignment, match="4"):
        log.create_topic(topic, 1, 4, schema=NUMBERS)
    for assignment, named in (
        ([["1", "9"]], "9"),
        ([["1", "1"]], "1"),
        ([["1", "2"], ["1"]], "1"),
        ([[]], "0"),
    ):
        with pytest.raises(IsologError, match=named):
            log.create_topic(topic, schema=NUMBERS, assignment=assignment)
    for numbers_ in ({"partitions": 3}, {"replication_factor": 3}):
        with pytest.raises(InvalidAssignment, match="and 3 was requested"):
            log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2"]], **numbers_)
    with pytest.raises(InvalidConfig):
        log.create_topic(topic, 1, 3, schema=NUMBERS, config={"min.insync.replicas": 0})
    assert topic not in log.topics()
    assert folders(cluster, topic) == {}


def test_new_replicas_at_a_dead_broker_are_refused_immediately(cluster, log, topic):
    """Each broker creates its folder first, so that a lost folder differs from a new one."""
    create_filled(log, topic, [1, 2])
    cluster.kill(3)
    for wish in ({"assignment": [["1", "3"]]}, {"partitions": 1, "replication_factor": 3}):
        begun = time.monotonic()
        with pytest.raises(InvalidAssignment, match=r"needs as many brokers|'3' is not alive"):
            log.create_topic(f"{topic}-new", schema=NUMBERS, **wish)
        assert time.monotonic() - begun < 20
    with pytest.raises(InvalidAssignment, match="'3' is not alive"):
        log.alter_topic(topic, 2, assignment=[["1", "3"]])
    assert len(log.describe(topic).partitions) == 1
    assert f"{topic}-new" not in log.topics()


def test_invalid_moves_and_decommissions_are_refused_without_a_change(cluster, log, topic):
    create_filled(log, topic, [1, 2])
    before = partition(log, topic)
    for wrong in ({0: ["9"]}, {0: ["1", "1"]}, {0: []}, {7: ["1"]}):
        with pytest.raises(IsologError) as caught:
            log.move_replicas(topic, wrong)
        assert not caught.value.retriable, caught.value
    with pytest.raises(UnknownBroker):
        log.decommission("9")
    after = partition(log, topic)
    assert (after.replicas, after.isr, after.leader) == (before.replicas, before.isr, before.leader)


def test_fetch_in_an_old_or_future_leader_epoch_is_refused(cluster, log, topic):
    create_filled(log, topic, [1, 2, 3])
    cluster.kill(1)
    eventually(lambda: partition(log, topic).leader not in (None, "1"))
    found = partition(log, topic)
    address = cluster.broker(int(found.leader)).address
    with Channel(address) as channel:
        for epoch, expected in (
            (found.leader_epoch - 1, LeaderEpochFenced),
            (found.leader_epoch + 7, UnknownLeaderEpoch),
        ):
            with pytest.raises(expected, match=str(found.leader_epoch)):
                fetched(channel, topic, start=0, end=1, leader_epoch=epoch)
    assert with_retries(lambda: read(log, topic)) == list(range(10))


def test_directory_of_another_cluster_is_refused(cluster, log, topic, tmp_path):
    create_filled(log, topic, [1, 2, 3])
    with LocalCluster(1, folder=tmp_path / "other") as other:
        theirs = other.broker(1).directory
        other.stop(1)
        ours = cluster.broker(3).directory
        cluster.stop(3)
        kept = ours.with_name("kept")
        ours.rename(kept)
        try:
            shutil.copytree(theirs, ours)
            with pytest.raises(WrongCluster):
                cluster.restart(3)
        finally:
            shutil.rmtree(ours)
            kept.rename(ours)
        cluster.restart(3)
    await_in_sync(log, topic)
    assert read(log, topic) == list(range(10))


def test_second_broker_with_the_id_of_a_running_one_is_refused(cluster, log, topic):
    create_filled(log, topic, [1, 2, 3])
    first = cluster.broker(1)
    twin = type(first)(1, cluster.folder / "twin", first._conf)
    twin.spawn()
    with pytest.raises(IsologError, match="1") as caught:
        twin.await_ready()
    assert not twin.alive
    assert not caught.value.retriable
    assert first.alive
    append_replicated(log, topic, 10, 1)
    await_in_sync(log, topic)


def test_topics_are_created_without_a_dead_broker_unless_they_need_it(cluster, log, topic):
    cluster.kill(3)
    log.create_topic(topic, 4, 2, schema=NUMBERS)
    await_in_sync(log, topic, 2)
    for each in log.describe(topic).partitions:
        assert set(each.replicas) == {"1", "2"}
    more = f"{topic}-more"
    with pytest.raises(InvalidAssignment, match="broker '3' is not alive"):
        log.create_topic(more, 1, 3, schema=NUMBERS)
    with pytest.raises(InvalidAssignment, match="broker '3' is not alive"):
        log.create_topic(more, schema=NUMBERS, assignment=[["1", "3"]])
    assert more not in log.topics()
    for broker in cluster.brokers.values():
        assert not list(broker.directory.glob(f"topics/{more}"))
    usual = log.create_topic(f"{topic}-usual", schema=NUMBERS)
    assert set(usual.partitions[0].replicas) == {"1", "2"}
    assert "2 of the usual 3 replicas" in usual.warning
