"""A trim rests on the LSO of the record's leader epoch, and is on record or has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from isolog.errors import LeaderUnavailable, NotLeader, OffsetOutOfRange
from spark_stream.cluster.partitions import PartitionId, Partitions, put_of
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.scripts import partition_records
from spark_stream.scripts.steps import Describe, Described, Step, Together
from tests.scripts.on_store import OnStore
from tests.simulation.store import MemoryRecords, MemoryStore
from tests.support import NUMBERS

A = BrokerId("a")
TOPIC = Topic("t", "id", NUMBERS, 2, {})
LED = PartitionRecord((A,), A, LeaderEpoch(5), (Member(A, Generation("g")),))


@dataclass
class Leaders(OnStore):
    """Leaders with an up-to-date view. ``stable`` has their last stable offsets."""

    stable: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 50})
    hw_known: bool = True
    on_describe: Callable[[], None] = lambda: None
    lagging: int = 0
    """The number of descriptions from before the leader has applied its record."""

    def record(self, number: int) -> PartitionRecord:
        found = Partitions(self.store).get(PartitionId("id", number))
        assert found is not None
        return found.record

    def write(self, number: int, record: PartitionRecord) -> None:
        found = Partitions(self.store).get(PartitionId("id", number))
        version = 0 if found is None else found.version
        assert self.store.put_many([put_of(PartitionId("id", number), record, version)]) != [None]

    def carry_out(self, step: Step) -> Any:
        if not isinstance(step, Together):
            return super().carry_out(step)
        answers = [self._describe(each) for each in step.steps]
        self.on_describe()
        return answers

    def _describe(self, step: Any) -> Described:
        assert isinstance(step, Describe)
        record = self.record(step.at.partition)
        stable, trimmed = Offset(self.stable[step.at.partition]), record.trimmed
        if trimmed and self.lagging:
            self.lagging, trimmed = self.lagging - 1, Offset(0)
        bounds = Bounds(trimmed, stable, stable, stable)
        return Described(
            bounds, record.leader_epoch, EntryIndex(9), 0, 0, {}, hw_known=self.hw_known
        )

    def trim(self, before: dict[int, int]) -> Any:
        return self.run(partition_records.trim(TOPIC, before, Partitions(self.store).get))


@pytest.fixture
def leaders() -> Iterator[Leaders]:
    found = Leaders(MemoryStore(MemoryRecords()))
    for number in (0, 1):
        found.write(number, LED)
    yield found
    found.store.close()


@pytest.mark.rule("the highest log start of a trim", "scripts/partition_records.py")
def test_a_trim_above_the_last_stable_offset_changes_no_partition(leaders):
    with pytest.raises(OffsetOutOfRange, match="t/1: a trim to offset 51") as caught:
        leaders.trim({0: 10, 1: 51})
    assert caught.value.details["last_stable_offset"] == 50
    assert [leaders.record(number) for number in (0, 1)] == [LED, LED]
    assert leaders.trim({0: 10, 1: 50}) == {0: 10, 1: 50}
    assert [leaders.record(number).trimmed for number in (0, 1)] == [10, 50]


def test_a_log_start_on_record_never_moves_back(leaders):
    leaders.trim({0: 40})
    assert leaders.trim({0: 30}) == {0: 40}
    assert leaders.record(0).trimmed == 40


def test_a_trim_above_an_lso_that_is_a_lower_bound_is_retriable(leaders):
    leaders.hw_known = False
    with pytest.raises(LeaderUnavailable):
        leaders.trim({0: 101})
    assert leaders.trim({0: 100}) == {0: 100}


def test_a_trim_rests_on_the_epoch_that_reported_the_lso(leaders):
    """An unclean election in between can end the log below the offset."""

    def elect() -> None:
        leaders.on_describe = lambda: None
        leaders.stable[0] = 20
        leaders.write(0, replace(leaders.record(0), leader_epoch=LeaderEpoch(6)))

    leaders.on_describe = elect
    with pytest.raises(OffsetOutOfRange, match="the last stable offset 20"):
        leaders.trim({0: 90})
    assert leaders.record(0).trimmed == 0


def test_a_trim_waits_until_the_leader_has_applied_it(leaders):
    leaders.lagging = 3
    assert leaders.trim({0: 90}) == {0: 90}
    assert leaders.lagging == 0
    assert leaders.paused_s > 0


def test_a_trim_of_a_partition_without_a_leader_fails(leaders, monkeypatch):
    monkeypatch.setattr(leaders, "_describe", lambda step: NotLeader("t/0 has no leader"))
    with pytest.raises(NotLeader):
        leaders.trim({0: 1})
    assert leaders.record(0) == LED
