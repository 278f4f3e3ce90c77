"""What an operator sees of three brokers: in sync, one of them stalled, one of them dead."""

from __future__ import annotations

import io
from collections.abc import Mapping
from textwrap import dedent

import pyarrow as pa
from rich.console import Console

from isolog.errors import LeaderUnavailable
from spark_stream.cli.commands.cluster import show_cluster
from spark_stream.cli.options import Listing
from spark_stream.cli.output.topics import show_replicas
from spark_stream.wire.cluster_messages import (
    BrokerDescription,
    ClusterDescription,
    Problem,
    ProblemKind,
)
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription


def partition(
    number: int,
    replicas: str,
    isr: str,
    lag: Mapping[str, int],
    epoch: int = 0,
    error: LeaderUnavailable | None = None,
    adding: str = "",
    removing: str = "",
) -> PartitionDescription:
    return PartitionDescription(
        number,
        None if error else isr[0],
        epoch,
        tuple(replicas),
        tuple(isr),
        0,
        10,
        10,
        10,
        lag=lag,
        adding=tuple(adding),
        removing=tuple(removing),
        error=error,
    )


def shown(*partitions: PartitionDescription, least: int = 1) -> str:
    topic = TopicDescription(
        "flights", "i" * 32, pa.schema([]), {"min.insync.replicas": str(least)}, partitions
    )
    out = io.StringIO()
    show_replicas(topic, Console(file=out, width=80, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_moves_are_shown_while_they_are_under_way():
    moving = [partition(n, "123", "12", {"2": 0, "3": 7}, adding="3", removing="2") for n in (0, 1)]
    alone = partition(2, "14", "1", {"4": 2}, adding="4")
    text = shown(*moving, alone)
    assert "partitions 0 to 1: under way from 2 to 3\npartition 2: under way to 4\n" in text
    replaced = partition(0, "1324", "124", {"2": 0, "3": 7, "4": 0}, adding="34", removing="24")
    assert "partition 0: under way from 2, 4 to 3\n" in shown(replaced)


def test_all_in_sync():
    synced = {"2": 0, "3": 0}
    assert shown(*(partition(number, "123", "123", synced) for number in range(4))) == dedent("""\
        partition  leader  epoch  replicas  in sync (ISR)  lag
        ──────────────────────────────────────────────────────
        0 to 3     1       0      1, 2, 3   1, 2, 3
        """)


def test_a_stalled_follower_a_dead_one_and_a_partition_that_nobody_leads():
    gone = LeaderUnavailable("flights/3 has no leader")
    text = shown(
        partition(0, "123", "12", {"2": 0, "3": 50}),
        partition(1, "213", "2", {"1": 1}, epoch=12),
        partition(2, "312", "12", {"2": 0}, epoch=1),
        partition(3, "312", "3", {}, epoch=2, error=gone),
        least=2,
    )
    assert text == dedent("""\
        partition  leader  epoch  replicas  in sync (ISR)  lag
        ──────────────────────────────────────────────────────────────────────────────
        0          1       0      1, 2, 3   1, 2           3 by 50 entries
        1          2       12     2, 1, 3   2              1 by 1 entry, 3 not in sync
        2          1       1      3, 1, 2   1, 2           3 not in sync
        3          nobody  2      3, 1, 2   3
        partitions 1, 3: fewer in sync than min.insync.replicas=2
          the high watermark stands, and producers that ask for read_committed are refused
        """)


def test_a_partition_with_one_replica_needs_no_more_in_sync_than_it_has():
    assert "fewer" not in shown(partition(0, "1", "1", {}), least=2)


def broker(name: str, leads: int, **facts: object) -> BrokerDescription:
    known = {"rack": None, "state": "active", "alive": True, "in_sync": 1200} | facts
    address = f"127.0.0.1:4641{name}"
    return BrokerDescription(
        id=name, address=address, release="0.1", leaders=leads, replicas=1200, **known
    )


def shown_cluster(*brokers: BrokerDescription, moving: int, problems: tuple[Problem, ...]) -> str:
    cluster = ClusterDescription(
        "24ded9fe50d74f2c920e2c3b5cb64bf0",
        "2",
        brokers,
        topics=1,
        partitions=1200,
        without_leader=0,
        under_replicated=0,
        moving=moving,
        problems=problems,
    )
    out = io.StringIO()
    show_cluster(cluster, {}, Listing.TABLE, Console(file=out, width=80, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_a_cluster_fits_into_80_columns():
    text = shown_cluster(
        broker("1", 800, rack="north"),
        broker("2", 400, rack="south"),
        broker("3", 0, alive=False, state="leaving", in_sync=0),
        moving=3,
        problems=(
            Problem(ProblemKind.UNDER_REPLICATED, "partitions with such and such: 1200", 1200),
            Problem(ProblemKind.DEAD_BROKER, "broker 3 is dead", 1, ("3",)),
        ),
    )
    assert text == dedent("""\
        cluster 24ded9fe50d74f2c920e2c3b5cb64bf0
        brokers 2 of 3 alive  topics 1  partitions 1200
        broker  address          rack   state              leads  replicas  in sync
        ───────────────────────────────────────────────────────────────────────────
        1       127.0.0.1:46411  north  alive                800      1200     1200
        2       127.0.0.1:46412  south  alive, controller    400      1200     1200
        3       127.0.0.1:46413         dead, leaving          0      1200        0

        partitions with such and such: 1200
        broker 3 is dead
        partitions on their way to other brokers: 3
        """)
