"""``isolog top``: rates and trends between samples, and one frame of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
from io import StringIO
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from rich.console import Console

from isolog.errors import MetadataLost, MetadataUnavailable
from isolog.testing import LocalCluster
from spark_stream.cli.operating.top import print_frame, rendered, sample_cluster
from spark_stream.cli.operating.top_frames import ClusterFrame, ClusterSample, frame_of
from spark_stream.cli.options import Listing
from spark_stream.client.trends import LagTrend
from spark_stream.consistency.isolation import STALLED_S, ReaderEnding, ReaderState
from spark_stream.console.client import ConsoleClient, open_places
from spark_stream.wire.cluster_messages import (
    BrokerDescription,
    ClusterDescription,
    Problem,
    ProblemKind,
)
from spark_stream.wire.consumer_messages import ConsumedPartition, ConsumerDescription
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
from spark_stream.wire.transaction_messages import TransactionDescription, TransactionPartition
from tests.cli.conftest import COMMAND, Call, Served
from tests.support import NUMBERS, numbers


def partition(number: int, leader: str, end: int, size: int, **more: Any) -> PartitionDescription:
    bounds = {"high_watermark": end, "last_stable_offset": end} | more
    return PartitionDescription(
        partition=number,
        leader=leader,
        leader_epoch=1,
        replicas=("1", "2"),
        isr=("1", "2"),
        log_start_offset=0,
        log_end_offset=end,
        size=size,
        **bounds,
    )


def topic(name: str, *partitions: PartitionDescription) -> TopicDescription:
    return TopicDescription(
        name=name, id=f"id of {name}", schema=pa.schema([]), config={}, partitions=partitions
    )


def broker(number: str, *, alive: bool = True) -> BrokerDescription:
    return BrokerDescription(
        id=number,
        address=f"host-{number}:9092",
        release="0.1.0",
        rack=None,
        state="active",
        alive=alive,
        leaders=1,
        replicas=2,
        in_sync=2,
    )


def sample(at: float, *topics: TopicDescription, **more: Any) -> ClusterSample:
    facts = {
        "cluster_id": "c",
        "controller": "1",
        "brokers": (broker("1"), broker("2", alive=False)),
        "topics": len(topics),
        "partitions": sum(len(each.partitions) for each in topics),
        "without_leader": 0,
        "under_replicated": 0,
        "moving": 0,
        "problems": more.pop("problems", ()),
    }
    now_ms = 1_000_000 + int(at * 1000)
    return ClusterSample(
        at=at, now_ms=now_ms, cluster=ClusterDescription(**facts), topics=topics, **more
    )


def reader(offset: int, end: int) -> ConsumerDescription:
    at = ConsumedPartition(topic="t", topic_id="i", partition=0, offset=offset, end=end)
    return ConsumerDescription(name="r", kind="query", partitions=(at,))


def test_rates_are_those_between_the_last_two_samples():
    samples = [
        sample(0, topic("t", partition(0, "1", 0, 0), partition(1, "2", 0, 0))),
        sample(10, topic("t", partition(0, "1", 100, 1000), partition(1, "2", 0, 0))),
        sample(
            12,
            topic("t", partition(0, "1", 300, 5000), partition(1, "2", 40, 800)),
            topic("new", partition(0, "1", 7, 7)),
        ),
    ]
    frame = frame_of(samples)
    first, second = frame.brokers
    assert (first.written.records, first.written.bytes) == (100.0, 2000.0)
    assert (second.written.records, second.written.bytes) == (20.0, 400.0)
    assert (frame.written.records, frame.written.bytes) == (120.0, 2400.0)
    assert [each.name for each in frame.topics] == ["t", "new"]
    assert frame.topics[1].written.records is None  # it was not there before


def test_frame_names_gone_readers_and_blocking_transactions():
    gone = structs.replace(reader(5, 9), ending=ReaderEnding.LOST)
    holds = transaction("loader", 5, held_back=4)
    text = "transaction loader is open, and holds back 4 records"
    for age_s, expected in ((59, ()), (60, (text,))):
        frame = frame_of([sample(age_s, transactions=(holds,), consumers=(gone, reader(9, 9)))])
        assert frame.reader_problems == ("readers gone: r", *expected)
    console = Console(file=StringIO(), width=80)
    console.print(rendered(frame))
    assert "readers gone: r" in console.file.getvalue()
    assert frame_of([sample(0, consumers=(reader(5, 9),))]).reader_problems == ()


def test_retention_and_failovers_give_no_negative_rate():
    samples = [
        sample(0, topic("t", partition(0, "1", 9, 90))),
        sample(1, topic("t", partition(0, "1", 5, 20))),
    ]
    assert frame_of(samples).written.bytes == 0.0


@pytest.mark.parametrize(
    ("before", "now", "passed", "trend"),
    [
        ((5, 10), (10, 10), 12, LagTrend.NONE),
        ((5, 10), (7, 10), 12, LagTrend.SHRINKS),
        ((5, 10), (7, 20), 12, LagTrend.GROWS),
        ((5, 10), (10, 15), 12, LagTrend.STEADY),
        ((5, 10), (5, 20), 12, LagTrend.UNKNOWN),  # its micro-batch has not ended
        ((5, 10), (5, 10), 45, LagTrend.STEADY),
    ],
)
def test_each_reader_has_the_trend_of_its_lag(before, now, passed, trend):
    samples = [sample(0, consumers=(reader(*before),)), sample(passed, consumers=(reader(*now),))]
    (line,) = frame_of(samples).consumers
    assert line.trend is trend
    (line,) = frame_of(samples[1:]).consumers
    assert line.trend is (LagTrend.NONE if trend is LagTrend.NONE else LagTrend.UNKNOWN)


def transaction(
    name: str, first_offset: int, state: str = "open", held_back: int = 0
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=name,
        state=state,
        number=1,
        producer_id=1,
        epoch=0,
        query="",
        branches=(),
        partitions=(TransactionPartition("t", 0, first_offset, held_back),),
        timeout_ms=60_000,
        began_ms=1_000_000,
        deadline_ms=1_060_000,
        committed_batch=-1,
    )


def test_transactions_are_sorted_by_records_held_back():
    samples = [
        sample(
            90,
            topic("t", partition(0, "1", 100, 0, last_stable_offset=40)),
            transactions=(
                transaction("later", 60),
                transaction("first", 40, held_back=60),
                transaction("done", 10, "committed"),
            ),
        )
    ]
    found = [(each.transactional_id, each.held_back) for each in frame_of(samples).transactions]
    assert found == [("first", 60), ("later", 0)]
    assert all(each.overdue and each.age_s == 90 for each in frame_of(samples).transactions)


def test_records_held_back_are_summed_over_all_brokers(tmp_path):
    """Each broker sees the first offsets of the partitions that it leads, and no others."""
    with (
        LocalCluster(2, folder=tmp_path, cuttable=False) as cluster,
        cluster.connect() as log,
    ):
        log.create_topic("t", schema=NUMBERS, assignment=[["1"], ["2"]])
        with log.producer(transactional_id="slow") as producer:
            producer.begin_transaction()
            for number in (0, 1):
                producer.append("t", numbers(0, 5 + number), partition=number)
            producer.flush()
            (line,) = frame_of([sample_cluster(log)]).transactions
            seen = open_places(ConsoleClient(log._connection).partitions())
            producer.abort_transaction()
    assert line.held_back == 11
    (places,) = seen.values()
    assert sum(each["held_back"] for each in places) == 11


@pytest.mark.parametrize("output", [Listing.JSON, Listing.TABLE])
def test_repeated_frame_shows_the_error(capsys, output):
    print_frame(frame_of([sample(0)]), "no broker answers", output)
    assert "no broker answers" in capsys.readouterr().out


def test_reader_whose_whole_lag_is_held_back_waits_for_the_transaction():
    held = topic("t", partition(0, "1", 100, 0, last_stable_offset=40))
    one = reader(40, 100)
    waiting = structs.replace(
        one, partitions=tuple(structs.replace(each, held_back=60) for each in one.partitions)
    )
    (line,) = frame_of(
        [
            sample(
                0,
                held,
                transactions=(transaction("nightly", 40, "open", 60),),
                consumers=(waiting,),
            )
        ]
    ).consumers
    assert (line.state, line.waits_for) == (ReaderState.WAITING_AT_LSO, ("nightly",))
    assert (line.lag, line.held_back) == (60, 60)


@pytest.mark.parametrize(
    ("ending", "idle_s", "expected"),
    [
        (ReaderEnding.NONE, 0, "catching up"),
        (ReaderEnding.NONE, STALLED_S, "stalled"),
        (ReaderEnding.CLEAN, STALLED_S, "stopped"),
        (ReaderEnding.LOST, 0, "gone"),
    ],
)
def test_a_frame_shows_the_state_of_a_reader(ending, idle_s, expected):
    one = structs.replace(reader(5, 10), ending=ending, idle_ms=round(1000 * idle_s))
    assert expected in text_of(frame_of([sample(0, consumers=(one,))]))


def text_of(frame: ClusterFrame, width: int = 80) -> str:
    screen = Console(width=width, force_terminal=False)
    with screen.capture() as shown:
        screen.print(rendered(frame, "broker is away"))
    return shown.get()


def test_a_frame_fits_80_columns_and_has_no_colours():
    long = "x" * 60
    problem = Problem(ProblemKind.DEAD_BROKER, "broker 2 is dead", 1)
    samples = [
        sample(at, topic(long, *(partition(n, "1", 10**9, 10**12) for n in range(3))))
        for at in (0, 1)
    ]
    samples.append(
        sample(
            100,
            *(topic(f"{long}{n}", partition(0, "1", 10**9, 10**12)) for n in range(12)),
            transactions=(transaction(long, 0),),
            consumers=(reader(5, 10**10),),
            problems=(problem,),
            denied=("sinks",),
        )
    )
    shown = text_of(frame_of(samples))
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    for words in ("broker 2 is dead", "and 2 more", "no permission for sinks", "broker is away"):
        assert words in shown


class WithoutStore:
    """A log whose brokers answer, and whose metadata store does not."""

    def cluster(self) -> ClusterDescription:
        problem = Problem(ProblemKind.METADATA_LOST, "etcd was restored", 1)
        return sample(0, problems=(problem,)).cluster

    def topics(self) -> list[str]:
        return []

    def transactions(self) -> list[TransactionDescription]:
        raise MetadataLost("etcd was restored")

    def consumers(self) -> list[ConsumerDescription]:
        raise MetadataUnavailable("etcd does not answer")


def test_a_frame_shows_the_problem_of_the_store_and_the_parts_that_need_it():
    """An operator looks at the frame at exactly that time."""
    shown = text_of(frame_of([sample_cluster(WithoutStore())]))
    for words in (
        "brokers 1 of 2 alive",
        "etcd was restored",
        "the metadata store does not return transactions",
        "the metadata store does not return consumers",
    ):
        assert words in shown


def test_once_prints_one_frame_of_a_cluster(served: Served, call: Call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    served.log.create_topic("watched")
    with served.log.producer() as producer:
        producer.send("watched", "1")
    with served.log.consumer("watched", name="reader") as consumer:
        list(consumer.records(until="latest"))
        consumer.commit()
    with served.log.producer(transactional_id="slow") as producer:
        producer.begin_transaction()
        producer.send("watched", "2").result()
        shown = call("top", "--once", "--interval", "0.1", "--output", "json")
        table = call("top", "--once", "--interval", "0.1")
        producer.abort_transaction()
    assert (shown.code, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert found["brokers_alive"] == 1
    (line,) = [each for each in found["topics"] if each["name"] == "watched"]
    assert line["written"]["records"] == 0.0
    (held,) = found["transactions"]
    assert (held["transactional_id"], held["places"]) == ("slow", ["watched/0"])
    assert held["held_back"] == 1
    (lagging,) = found["consumers"]
    assert (lagging["name"], lagging["lag"]) == ("reader", 1)
    assert table.code == 0
    assert "\x1b" not in table.out
    assert "slow" in table.out


@pytest.mark.full
@pytest.mark.parametrize("key", ["q", "Ctrl-C"])
def test_terminal_is_redrawn_until_a_key_ends_top(key: str, served: Served):
    """``make test`` draws the same frames without a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    running = subprocess.Popen(
        [*COMMAND, "top", "--bootstrap", served.bootstrap, "--interval", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        | {"TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    before = termios.tcgetattr(theirs)
    shown = ""
    while shown.count("cluster ") < 3:
        assert select.select([ours], [], [], 60)[0], "it shows nothing"
        shown += os.read(ours, 1 << 16).decode()
    if key == "q":
        os.write(ours, b"q")
    else:
        running.send_signal(signal.SIGINT)
    drain = threading.Thread(target=drained, args=(ours,), daemon=True)
    drain.start()
    _, errors = running.communicate(timeout=30)
    after = termios.tcgetattr(theirs)
    os.close(theirs)
    drain.join()
    os.close(ours)
    assert after == before
    assert (running.returncode, errors) == (0, b"")
    assert "\x1b[" in shown


def drained(terminal: int) -> None:
    """Read until the other side is closed."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
