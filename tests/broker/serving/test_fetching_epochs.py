"""A fetch belongs to one leader epoch: what it tells holds for that one, or it ends."""

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
    """A broker with a replica of a partition that another broker has too."""

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
        """Elect a leader, of which this broker has not heard yet."""
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


def test_a_fetch_ends_where_its_leader_is_replaced(broker: OneOfTwo):
    broker.append(0)
    broker.append(3)
    answers = broker.fetch().answers()
    broker.elect(OTHER, 2)
    with pytest.raises((NotLeader, LeaderEpochFenced)):
        list(answers)


def test_a_fetch_ends_where_its_leader_leads_again_in_another_epoch(broker: OneOfTwo):
    broker.append(0)
    answers = broker.fetch().answers()
    broker.elect(OTHER, 2)
    broker.elect(ME, 3)
    with pytest.raises(LeaderEpochFenced):
        list(answers)


def test_a_fetch_tells_the_epoch_in_which_it_has_read(broker: OneOfTwo):
    broker.append(0)
    answers = broker.fetch().answers()
    next(answers)
    broker.elect(OTHER, 2)
    _, facts = next(answers)
    assert json.loads(facts)["leader_epoch"] == 1


def test_a_new_leader_tells_no_bounds_that_it_does_not_know(broker: OneOfTwo):
    broker.append(0)
    *_, (_, facts) = broker.fetch().answers()
    assert json.loads(facts)["bounds"]["high_watermark"] == 0, "it knows that nobody has it yet"
    broker.elect(ME, 2)
    *_, (_, facts) = broker.fetch().answers()
    assert "bounds" not in json.loads(facts), "the leader before may have told more"


@pytest.mark.parametrize("level", [Isolation.READ_REPLICATED, Isolation.READ_COMMITTED])
def test_a_new_leader_does_not_cut_a_range_short_at_a_bound_that_it_does_not_know(
    broker: OneOfTwo, level: Isolation
):
    """The range's end is the bound that an earlier leader told: its reader would miss records."""
    broker.append(0)
    [(_, facts)] = broker.fetch(level, end=3).answers()
    assert json.loads(facts)["next"] == 0, "this leader knows that they are not replicated"
    broker.elect(ME, 2)
    with pytest.raises(LeaderUnavailable, match="does not know yet"):
        list(broker.fetch(level, end=3).answers())
    [(_, facts)] = broker.fetch(level).answers()
    assert json.loads(facts)["next"] == 0, "nobody told this reader of more"


@pytest.mark.parametrize("level", list(Isolation))
def test_a_replaced_leader_that_has_not_heard_of_it_does_not_cut_a_range_short(
    broker: OneOfTwo, level: Isolation
):
    """The range's end is the bound that the next leader told: its reader would miss records."""
    broker.append(0)
    broker.record(OTHER, 2)
    with pytest.raises(NotLeader):
        list(broker.fetch(level, start=3, end=6).answers())


def test_a_fetch_that_retention_overtakes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has just seen what it may read, and the first of it is removed before it is read."""
    broker = OneOfTwo(tmp_path, {"retention.ms": "100"})
    log = broker.host.topic("t").partition(0).log

    def hold_none(*_: object) -> None:
        """Stands where a fetch looks for files, right before it reads."""
        log.housekeep(log.segments[-2].last_appended + 3_600_000_000, Offset(3))

    try:
        broker.append(0)
        log.roll()
        broker.append(3)
        monkeypatch.setattr(fetching, "holder_for", hold_none)
        with pytest.raises(OffsetEvicted, match="offset 0 is gone; the first left is 3"):
            list(broker.fetch().answers())
    finally:
        broker.host.close()
