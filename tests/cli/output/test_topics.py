"""Topics on a screen of 80 columns, and the replicas of partitions as an operator sees them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from textwrap import dedent

import pyarrow as pa
import pytest
from rich.console import Console

from isolog.errors import LeaderUnavailable
from spark_stream.cli.commands.cluster import show_cluster
from spark_stream.cli.commands.topic import delete_question
from spark_stream.cli.commands.transactions import AgedTransaction, show_transactions
from spark_stream.cli.options import Listing
from spark_stream.cli.output.topics import show_replicas, show_topic
from spark_stream.sql.ddl import parse_schema
from spark_stream.wire.cluster_messages import (
    BrokerDescription,
    ClusterDescription,
    Problem,
    ProblemKind,
)
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
from spark_stream.wire.transaction_messages import TransactionDescription

A, B, C = (name + "0123456789abcdef" * 2 for name in "abc")


def partition(number: int, leader: str, epoch: int, *others: str) -> PartitionDescription:
    """Return a partition with one follower in sync, and the last follower behind."""
    end = 1_234_567_890
    return PartitionDescription(
        number,
        leader,
        epoch,
        (leader, *others),
        (leader, *others[:1]),
        1_000_000_000,
        end,
        end - 1,
        end - 2,
        10**12,
        3,
        {other: place * 7 for place, other in enumerate(others)},
    )


def test_a_topic_can_be_read_at_80_columns():
    topic = TopicDescription(
        "flights",
        "0123456789abcdef" * 2,
        parse_schema("id bigint, s struct<a:array<map<string,timestamp>>,b:decimal(38,10),c:int>"),
        {"retention.ms": "604800000"},
        tuple(partition(number, A, 7, *((B, C) if number == 3 else ())) for number in range(5)),
    )
    out = io.StringIO()
    show_topic(topic, Listing.TABLE, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines if A not in line) <= 80
    assert "…" not in out.getvalue()
    [row] = [line for line in lines if line.startswith("2 ") and "GiB" in line]
    end = 1_234_567_890
    numbers = ["1000000000", str(end), str(end - 1), str(end - 2)]
    assert row.split() == ["2", *numbers, "3", "931.3", "GiB"]
    for word in (
        "LEO",
        "HW",
        "LSO",
        "0 to 2, 4",
        "retention.ms",
        "open",
        f"leader of 0 to 2, 4: {A}, epoch 7\nleader of 3: {A}, epoch 7\n",
        f"  replicas {A}, {B}, {C}; in sync (ISR): {A}, {B}\n",
        f"  behind the leader: {C} by 7 entries\n",
    ):
        assert word in out.getvalue()


def test_a_transaction_shows_its_whole_id_at_80_columns():
    name = "query/0123456789abcdef0123456789abcdef/of-a-sink"
    facts = TransactionDescription(
        name, "open", 12, 34, 0, "i" * 32, "", (), (), 900_000, 1_000_000, 1_900_000
    )
    out = io.StringIO()
    aged = AgedTransaction.of(facts, 1_060_000, None)
    show_transactions([aged], Listing.TABLE, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == name
    assert "open" in out.getvalue()


def away() -> TopicDescription:
    """Describe a topic of two partitions, one of which has no leader."""
    error = LeaderUnavailable("there is no leader")
    unknown = PartitionDescription(1, None, 1, (A,), (A,), *[None] * 6, error=error)
    return TopicDescription("t", "id", parse_schema("id bigint"), {}, (partition(0, A, 7), unknown))


@pytest.mark.parametrize("shape", list(Listing))
def test_numbers_of_an_unavailable_partition_are_not_shown(shape, capsys):
    out = io.StringIO()
    show_topic(away(), shape, Console(file=out, width=200))
    if shape is Listing.JSON:
        facts = json.loads(capsys.readouterr().out)["partitions"][1]
        names = ("log_start_offset", "log_end_offset", "size", "open_transactions")
        assert [facts[name] for name in names] == [None] * 4
    else:
        assert "records unknown  size unknown" in out.getvalue()
        assert re.search(r"^\s*1" + r"\s+-" * 6 + r"\s*$", out.getvalue(), re.MULTILINE)


def test_delete_question_has_the_number_of_records_if_known():
    assert delete_question(away()) == "Delete topic t? The number of its records is unknown."
    known = TopicDescription("t", "id", parse_schema("id bigint"), {}, (partition(0, A, 7),))
    assert delete_question(known) == "Delete topic t with its 234567890 records?"


def replicated(
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


def test_moves_in_progress_are_shown():
    moving = [
        replicated(n, "123", "12", {"2": 0, "3": 7}, adding="3", removing="2") for n in (0, 1)
    ]
    alone = replicated(2, "14", "1", {"4": 2}, adding="4")
    text = shown(*moving, alone)
    assert "partitions 0 to 1: moving from 2 to 3\npartition 2: moving to 4\n" in text
    replaced = replicated(0, "1324", "124", {"2": 0, "3": 7, "4": 0}, adding="34", removing="24")
    assert "partition 0: moving from 2, 4 to 3\n" in shown(replaced)


def test_partitions_with_equal_replicas_share_a_row():
    synced = {"2": 0, "3": 0}
    assert shown(*(replicated(number, "123", "123", synced) for number in range(4))) == dedent("""\
        partition  leader  epoch  replicas  in sync (ISR)  lag
        ──────────────────────────────────────────────────────
        0 to 3     1       0      1, 2, 3   1, 2, 3
        """)


def test_stalled_follower_dead_follower_and_missing_leader_are_shown():
    gone = LeaderUnavailable("flights/3 has no leader")
    text = shown(
        replicated(0, "123", "12", {"2": 0, "3": 50}),
        replicated(1, "213", "2", {"1": 1}, epoch=12),
        replicated(2, "312", "12", {"2": 0}, epoch=1),
        replicated(3, "312", "3", {}, epoch=2, error=gone),
        least=2,
    )
    assert text == dedent("""\
        partition  leader  epoch  replicas  in sync (ISR)  lag
        ──────────────────────────────────────────────────────────────────────────────
        0          1       0      1, 2, 3   1, 2           3 by 50 entries
        1          2       12     2, 1, 3   2              1 by 1 entry, 3 not in sync
        2          1       1      3, 1, 2   1, 2           3 not in sync
        3          none    2      3, 1, 2   3
        partitions 1, 3: fewer in-sync replicas than min.insync.replicas=2
          the high watermark does not advance, and producers with read_committed are refused
        """)


def test_partition_with_one_replica_is_not_below_min_isr():
    assert "fewer" not in shown(replicated(0, "1", "1", {}), least=2)


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
        partitions that move to other brokers: 3
        """)
