"""Problems in a cluster: each kind where it occurs, and none in a healthy cluster."""

from __future__ import annotations

from msgspec.structs import replace

from spark_stream.broker.actions.cluster import Watched, find_problems
from spark_stream.client.administration import with_refusals
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.wire.cluster_messages import (
    BrokerDescription,
    BrokerStatus,
    ClusterDescription,
    Problem,
    ProblemKind,
)

GENERATION = Generation("g")


def partition(
    replicas: str, isr: str, least: int = 1, adding: str = "", removing: str = "", name="t/0"
):
    record = PartitionRecord(
        tuple(map(BrokerId, replicas)),
        BrokerId(isr[0]),
        LeaderEpoch(0),
        tuple(Member(BrokerId(each), GENERATION) for each in isr),
        adding=tuple(map(BrokerId, adding)),
        removing=tuple(map(BrokerId, removing)),
    )
    return Watched(name, record, least, is_led=True)


def problems(*partitions: Watched, dead: str = "", leaving: str = "") -> list[Problem]:
    names = [each for each in "abcd" if any(each in p.record.replicas for p in partitions)]
    brokers = [
        BrokerDescription(
            id=each,
            address="",
            release="",
            rack=None,
            state="leaving" if each in leaving else "active",
            alive=each not in dead,
            leaders=0,
            replicas=sum(each in p.record.replicas for p in partitions),
            in_sync=0,
        )
        for each in names
    ]
    alive = {BrokerId(each) for each in names if each not in dead}
    watched = [replace(each, is_led=each.record.leader in alive) for each in partitions]
    return find_problems(watched, brokers, alive - set(leaving))


def kinds(found: list[Problem]) -> list[str]:
    return [each.kind.value for each in found]


def test_a_healthy_cluster_has_no_problems():
    assert problems(partition("abc", "abc", 2), partition("abcd", "abc", 3, adding="d")) == []


def test_a_partition_without_a_leader_is_named_with_the_dead_broker():
    found = problems(partition("a", "a", name="t/7"), partition("bc", "bc"), dead="a")
    assert kinds(found) == ["dead_broker", "no_leader"]
    assert found[0].message == "broker a is dead; it holds replicas of 1 partition"
    assert (found[1].count, found[1].names) == (1, ("t/7",))


def test_partitions_of_hidden_topics_are_counted_and_not_named():
    found = problems(partition("a", "a", name=None), partition("a", "a", name="t/7"), dead="a")
    assert (found[1].count, found[1].names) == (2, ("t/7",))
    assert found[1].message.endswith(": 2")


def test_below_min_insync_is_reported_beside_under_replicated():
    assert kinds(problems(partition("abc", "ab", 2))) == ["under_replicated"]
    assert kinds(problems(partition("abc", "a", 2))) == ["below_min_isr", "under_replicated"]
    assert problems(partition("a", "a", 2)) == []


def test_a_leaving_broker_is_stuck_if_no_other_can_take_a_replica():
    stuck = problems(partition("abc", "abc"), leaving="bc")
    text = "no broker can take all replicas of brokers b, c: start one more"
    assert stuck == [Problem(ProblemKind.CANNOT_LEAVE, text, 2, ("b", "c"))]


def test_a_broker_that_leaves_is_not_stuck_before_its_moves_begin():
    assert problems(partition("abc", "abc"), partition("d", "d"), leaving="b") == []
    assert problems(partition("abcd", "abcd", adding="d", removing="b"), leaving="b") == []


def test_a_move_of_another_partition_does_not_hide_a_stuck_broker():
    moving = partition("acd", "acd", adding="d", removing="a")
    found = problems(moving, partition("abcd", "abcd"), leaving="b")
    assert kinds(found) == ["cannot_leave"]


def test_many_partitions_are_counted_and_twenty_of_them_named():
    many = [partition("abc", "ab", name=f"t/{number}") for number in range(3000)]
    (found,) = problems(*many)
    assert (found.count, len(found.names)) == (3000, 20)


def status(**refused: str) -> BrokerStatus:
    """A broker's status, with the error codes of the replicas that refuse writes."""
    places = {f"t/{number[1:]}": code for number, code in refused.items()}
    return BrokerStatus(
        version="",
        pid=0,
        address="",
        directory="",
        cluster_id="",
        topics=0,
        partitions=0,
        uptime_s=0,
        memory=0,
        refused=places,
    )


def test_a_disk_that_refuses_writes_is_named_before_its_effects():
    effects = problems(partition("abc", "ab"), partition("d", "d"), dead="d")
    cluster = ClusterDescription(
        cluster_id="c",
        controller=None,
        brokers=(),
        topics=1,
        partitions=2,
        without_leader=1,
        under_replicated=2,
        moving=0,
        problems=tuple(effects),
    )
    assert with_refusals(cluster, {"a": status()}) is cluster
    full = status(p0="DISK_FULL", p7="DISK_FULL", p8="STORAGE_FAILURE")
    found = list(with_refusals(cluster, {"a": status(), "c": full}).problems)
    assert kinds(found) == [
        "dead_broker",
        "refused_writes",
        "refused_writes",
        "no_leader",
        "under_replicated",
    ]
    assert (found[1].message, found[1].names) == (
        "the disk of broker c is full: 2 replicas refuse writes",
        ("t/0", "t/7"),
    )
    assert found[2].message == (
        "the disk of broker c fails (STORAGE_FAILURE): 1 replica refuses writes"
    )
