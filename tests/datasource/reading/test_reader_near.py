"""The tasks of a query read in their rack: the driver plans at the leader, tasks do not need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isolog.errors import InvalidOption
from isolog.testing import LocalCluster
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading.reader import IsologReader
from spark_stream.datasource.spark.types import to_spark
from tests.datasource.sources import Query
from tests.near_reads import eventually_near, watch_sent
from tests.support import NUMBERS
from tests.system.replication.clusters import CONF, append_replicated, await_in_sync, partition

COUNT = 1_000


ONE_RELEASE = True  # its brokers and records are those of the module


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers, each in another rack. Broker 1 leads topic ``t``, which has records."""
    conf = CONF | {"mapped_reads": False, "lease_seconds": 60.0}  # a paused broker stays the leader
    with LocalCluster(3, conf=conf, racks=["a", "b", "c"]) as found:
        with found.connect() as log:
            log.create_topic("t", schema=NUMBERS, assignment=[["1", "2", "3"]])
            append_replicated(log, "t", 0, COUNT)
            await_in_sync(log, "t")
        yield found


@pytest.fixture
def told(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the follower in rack b has received that the records are replicated."""
    with cluster.connect(rack="b") as near:
        expected, sent = list(range(COUNT)), watch_sent(monkeypatch)
        eventually_near(near, "t", "read_committed", expected, sent)


def options(cluster: LocalCluster, **more: str) -> dict[str, str]:
    """Control calls go to the follower too: the leader will not answer."""
    return {
        "bootstrap": cluster.broker(2).address,
        "subscribe": "t",
        "isolation": "read_committed",
        **more,
    }


@pytest.mark.parametrize("how", ["option", "environment"])
@pytest.mark.chaos
def test_tasks_read_in_their_rack_while_the_leader_is_paused(cluster, told, monkeypatch, how):
    given = options(cluster, rack="b") if how == "option" else options(cluster)
    if how == "environment":
        monkeypatch.setenv("ISOLOG_RACK", "b")
    reader = IsologReader(source_options(given, streaming=False), to_spark(NUMBERS))
    tasks = list(reader.partitions())
    cluster.pause(1)
    try:
        found = [
            n
            for task in tasks
            for batch in reader.read(task)
            for n in batch.column("n").to_pylist()
        ]
    finally:
        cluster.resume(1)
    assert found == list(range(COUNT))


@pytest.mark.chaos
def test_stream_reads_planned_records_from_any_replica(cluster, told):
    given = options(cluster, rack="b")
    query = Query(given.pop("bootstrap"), given.pop("subscribe"), **given)
    assert query.batch() == list(range(COUNT))
    with cluster.connect() as log:
        for first in range(COUNT, 5 * COUNT, COUNT):
            append_replicated(log, "t", first, COUNT)
            assert query.batch() == list(range(first, first + COUNT))
        assert partition(log, "t").leader == "1"


def test_invalid_rack_is_refused():
    given = {"bootstrap": "a:1", "subscribe": "t"}
    assert source_options(given | {"rack": " west "}).place.rack == "west"
    assert source_options(given).place.rack is None
    with pytest.raises(InvalidOption, match="rack takes a text"):
        source_options(given | {"rack": " "})
