"""A disk that becomes full during a write: no partial write remains, and no record is lost."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from isolog.errors import DiskFull, IsologError
from spark_stream.cli.operating.top import sample_cluster
from spark_stream.cli.operating.top_frames import frame_of
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.wire.cluster_messages import BrokerStatus, GetStatus
from tests.support import NUMBERS, BrokerProcess, eventually, numbers

NO_LIMIT = resource.RLIM_INFINITY


def limited(broker: BrokerProcess, size: int) -> None:
    """Limit each file of the broker to ``size`` bytes, as a full disk does."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, NO_LIMIT))


def status_of(broker: BrokerProcess) -> BrokerStatus:
    with closing(ClusterConnection(broker.address)) as connection:
        return connection.call(GetStatus())


def only_segment(broker: BrokerProcess, topic: str) -> Path:
    (path,) = (broker.directory / "topics" / topic).rglob("*.arrow")
    return path


@pytest.mark.parametrize("room", [0, 1, 7])
def test_full_disk_at_the_end_of_a_segment_loses_no_segment(
    broker: BrokerProcess, room: int
) -> None:
    """The roll fails at the last bytes of the old segment. Neither segment may be lost."""
    with broker.connect() as log, log.producer() as producer:
        log.create_topic("t", schema=NUMBERS, config={"segment.bytes": 65_536})
        producer.append("t", numbers(0, 7_000), partition=0).result(20)
        limited(broker, only_segment(broker, "t").stat().st_size + room)
        error = producer.append("t", numbers(7_000, 7_000), partition=0).exception(20)
        assert isinstance(error, DiskFull)
        producer.flush()
        assert log.read("t").num_rows == 7_000
        assert status_of(broker).refused == {"t/0": "DISK_FULL"}
        limited(broker, NO_LIMIT)
        # A small batch still fits into the old segment. The next batch makes it roll.
        producer.append("t", numbers(7_000, 10), partition=0).result(20)
        producer.append("t", numbers(7_010, 7_000), partition=0).result(20)
        eventually(lambda: status_of(broker).refused == {}, 30)  # once a probe has succeeded
        assert log.read("t")["n"].to_pylist() == list(range(14_010))
        broker.kill()
        broker.restart()
        assert log.describe("t").partitions[0].error is None
        assert log.read("t")["n"].to_pylist() == list(range(14_010))
    assert "recovered" not in broker.log_text()


def test_kill_with_a_full_disk_loses_no_record(broker: BrokerProcess) -> None:
    with broker.connect() as log, log.producer() as producer:
        log.create_topic("t", schema=NUMBERS, config={"segment.bytes": 65_536})
        producer.append("t", numbers(0, 7_000), partition=0).result(20)
        limited(broker, only_segment(broker, "t").stat().st_size + 3)
        for count in (7_000, 100, 7_000, 1):
            refused = producer.append("t", numbers(7_000, count), partition=0)
            assert isinstance(refused.exception(20), DiskFull)
        producer.flush()
        broker.kill()
        broker.restart()
        assert log.read("t")["n"].to_pylist() == list(range(7_000))
        assert producer.append("t", numbers(7_000, 1), partition=0).result(20).offset == 7_000


def test_full_disk_fails_only_its_writes_and_calls_can_be_retried(broker: BrokerProcess) -> None:
    with broker.connect() as log, log.producer() as producer:
        log.create_topic("a", schema=NUMBERS)
        log.create_topic("b", schema=NUMBERS)
        producer.append("a", numbers(0, 5_000), partition=0).result(20)
        limited(broker, 30_000)
        with broker.connect(timeout=0.5) as hasty:  # for fewer retries of a call that must fail
            with pytest.raises(IsologError) as caught:
                hasty.create_topic("c", partitions=50)
            assert caught.value.retriable
            with pytest.raises(IsologError):
                hasty.delete_topic("b")
        assert isinstance(producer.append("a", numbers(0, 1)).exception(20), DiskFull)
        # The files of this partition are below the limit.
        assert producer.append("b", numbers(0, 100), partition=0).result(20).count == 100
        assert log.read("a").num_rows == 5_000
        assert log.topics() == ["a", "b"]
        limited(broker, NO_LIMIT)
        log.create_topic("c", partitions=50)
        log.delete_topic("b")
        producer.flush()
        assert log.topics() == ["a", "c"]
    broker.restart()
    with broker.connect() as log:
        assert log.topics() == ["a", "c"]
        assert len(log.describe("c").partitions) == 50
        assert all(each.error is None for each in log.describe("c").partitions)


def test_views_of_the_cluster_name_a_full_disk(broker: BrokerProcess) -> None:
    with broker.connect() as log, log.producer() as producer:
        log.create_topic("a", schema=NUMBERS)
        producer.append("a", numbers(0, 5_000), partition=0).result(20)
        limited(broker, 30_000)
        assert isinstance(producer.append("a", numbers(0, 1_000)).exception(20), DiskFull)
        (name,) = (each.id for each in log.cluster().brokers)
        text = f"the disk of broker {name} is full: 1 replica refuses writes"
        # The metadata store may have the problem too, if it has grown in the meantime.
        problems = [(each.message, each.names) for each in log.cluster().problems]
        assert (text, ("a/0",)) in problems
        assert text in frame_of([sample_cluster(log)]).problems
        command = [sys.executable, "-m", "isolog", "cluster", "status", "--bootstrap"]
        status = subprocess.run(
            [*command, broker.address], capture_output=True, text=True, timeout=60, check=False
        )
        assert status.returncode == 1
        assert text in status.stdout
        limited(broker, NO_LIMIT)
        producer.append("a", numbers(0, 1), partition=0).result(20)
        eventually(lambda: log.cluster().problems == ())  # after a successful change of the store


def test_broker_on_a_full_disk_does_not_start_and_reports_it(broker: BrokerProcess) -> None:
    with broker.connect() as log, log.producer() as producer:
        log.create_topic("t", schema=NUMBERS)
        producer.append("t", numbers(0, 1_000), partition=0).result(20)
    broker.kill()
    started = [sys.executable, "-m", "spark_stream.broker", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *started, "--dir", broker.directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    error = json.loads(ended.stdout)["error"]
    assert error["code"] in ("DISK_FULL", "STORAGE_FAILURE")
    broker.restart()
    with broker.connect() as log:
        assert log.read("t").num_rows == 1_000
