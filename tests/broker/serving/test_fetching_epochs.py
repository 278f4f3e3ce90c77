"""The leader epoch of a fetch. A fetch ends with its epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolog.errors import LeaderEpochFenced, LeaderUnavailable, NotLeader, OffsetEvicted
from spark_stream.broker.host.host import Host
from spark_stream.broker.serving import fetching
from spark_stream.broker.serving.fetching import RangeStream
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.partitions import PartitionId, key_of, put_of
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.storage.disk.directory import LogDirectory
from spark_stream.wire.stream_messages import FetchRange
from tests.clocks import FakeClock
from tests.simulation.store import MemoryRecords, MemoryStore
from tests.support import NUMBERS, numbers

ME, OTHER = BrokerId("me"), BrokerId("other")
AT = PartitionId("id", 0)


class OneOfTwo:
    """A broker with one of two replicas of a partition."""

    def __init__(self, path: Path, config: dict[str, str] | None = None) -> None:
        self.store = MemoryStore(MemoryRecords())
        self.store.put(TOPICS + "t", encode(Topic("t", "id", NUMBERS, 1, config or {})), 0)
        self._put(ME, 1, 0)
        directory = LogDirectory(path, "cluster", ME)
        directory.topic("t", "id").mkdir(parents=True)
        self.clock = FakeClock()
        self.host = Host(directory, ClusterView(self.store), CoreSettings(), self.clock)
        self.host.generation = Generation("g")
        self.host.begin(lambda: True)

    def _put(self, leader: BrokerId, epoch: int, version: int) -> None:
        isr = (Member(ME, Generation("g")), Member(OTHER, Generation("g")))
        record = PartitionRecord((ME, OTHER), leader, LeaderEpoch(epoch), isr)
        assert self.store.put(*put_of(AT, record, version))

    def record(self, leader: BrokerId, epoch: int) -> None:
        """Elect a leader. This broker has not read the record yet."""
        found = self.store.get(key_of(AT))
        assert found is not None
        self._put(leader, epoch, found.version)

    def elect(self, leader: BrokerId, epoch: int) -> None:
        self.record(leader, epoch)
        self.host.refresh()

    def append(self, start: int) -> None:
        self.host.topic("t").partition(0).append(numbers(start, 3))

    def fetch(
        self,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        start: int = 0,
        end: int | None = None,
    ) -> RangeStream:
        asked = FetchRange(topic="t", partition=0, start=start, isolation=isolation, end=end)
        return RangeStream(self.host, asked, lambda: False, self.clock)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OneOfTwo]:
    found = OneOfTwo(tmp_path)
    yield found
    found.host.close()


def test_fetch_ends_when_its_leader_is_replaced(broker: OneOfTwo):
    broker.append(0)
    broker.append(3)
    answers = broker.fetch().answers()
    broker.elect(OTHER, 2)
    with pytest.raises((NotLeader, LeaderEpochFenced)):
        list(answers)


def test_fetch_ends_when_its_leader_starts_another_epoch(broker: OneOfTwo):
    broker.append(0)
    answers = broker.fetch().answers()
    broker.elect(OTHER, 2)
    broker.elect(ME, 3)
    with pytest.raises(LeaderEpochFenced):
        list(answers)


def test_fetch_reports_the_epoch_of_its_read(broker: OneOfTwo):
    broker.append(0)
    answers = broker.fetch().answers()
    next(answers)
    broker.elect(OTHER, 2)
    _, facts = next(answers)
    assert json.loads(facts)["leader_epoch"] == 1


def test_new_leader_reports_no_unknown_bounds(broker: OneOfTwo):
    broker.append(0)
    *_, (_, facts) = broker.fetch().answers()
    assert json.loads(facts)["bounds"]["high_watermark"] == 0, "it knows that nobody has it yet"
    broker.elect(ME, 2)
    *_, (_, facts) = broker.fetch().answers()
    assert "bounds" not in json.loads(facts), "the leader before may have told more"


@pytest.mark.parametrize("level", [Isolation.READ_REPLICATED, Isolation.READ_COMMITTED])
def test_new_leader_does_not_end_a_range_early_at_an_unknown_bound(
    broker: OneOfTwo, level: Isolation
):
    """The range's end is the bound of an earlier leader. Its reader would miss records."""
    broker.append(0)
    [(_, facts)] = broker.fetch(level, end=3).answers()
    assert json.loads(facts)["next"] == 0, "this leader knows that they are not replicated"
    broker.elect(ME, 2)
    with pytest.raises(LeaderUnavailable, match="high watermark is unknown"):
        list(broker.fetch(level, end=3).answers())
    [(_, facts)] = broker.fetch(level).answers()
    assert json.loads(facts)["next"] == 0, "nobody told this reader of more"


@pytest.mark.parametrize("level", list(Isolation))
def test_unnoticed_replacement_does_not_end_a_range_early(broker: OneOfTwo, level: Isolation):
    """The range's end is the bound of the next leader. Its reader would miss records."""
    broker.append(0)
    broker.record(OTHER, 2)
    with pytest.raises(NotLeader):
        list(broker.fetch(level, start=3, end=6).answers())


def test_fetch_overtaken_by_retention_raises_offset_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first records are removed between the check of the bounds and the read."""
    broker = OneOfTwo(tmp_path, {"retention.ms": "100"})
    log = broker.host.topic("t").partition(0).log

    def hold_none(*_: object) -> None:
        """A hook at the search for files, just before the read."""
        log.housekeep(log.segments[-2].last_appended + 3_600_000_000, Offset(3))

    try:
        broker.append(0)
        log.roll()
        broker.append(3)
        monkeypatch.setattr(fetching, "holder_for", hold_none)
        with pytest.raises(OffsetEvicted, match="offset 0 was evicted; the log starts at 3"):
            list(broker.fetch().answers())
    finally:
        broker.host.close()
