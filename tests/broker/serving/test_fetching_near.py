"""Near reads: an in-sync follower answers with the records that it knows to be visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isolog.errors import (
    EntriesGone,
    InvalidRequest,
    IsologError,
    LeaderEpochFenced,
    NotLeader,
    UnknownLeaderEpoch,
)
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.serving.fetching import AwaitRecords, RangeStream
from spark_stream.cluster.partitions import put_of
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.wire.stream_messages import EndFacts, FetchRange, fetch_answer
from tests.broker.serving.test_fetching_epochs import AT, ME, OTHER, OneOfTwo


class InSync(OneOfTwo):
    """A follower in epoch 2 with nine records of epoch 1. Six are known as committed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.leases = True
        self.host.begin(lambda: self.leases)
        for start in (0, 3, 6):
            self.append(start)
        self.elect(OTHER, 2)
        self.learn(2)

    @property
    def partition(self) -> Partition:
        (found,) = self.host.topic("t").open_partitions()
        return found

    def learn(self, entries: int) -> None:
        self.partition.followed(Generation("g")).take_high_watermark(EntryIndex(entries))

    def near(self, start: int = 0, end: int | None = None, **how: object) -> RangeStream:
        asked = {"isolation": Isolation.READ_REPLICATED, "leader_epoch": 2, "near": True} | how
        request = FetchRange(topic="t", partition=0, start=start, end=end, **asked)
        return RangeStream(self.host, request, lambda: False, self.clock)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InSync]:
    found = InSync(tmp_path)
    yield found
    found.host.close()


def read(stream: RangeStream) -> tuple[list[int], EndFacts]:
    """Return the records, and the end facts."""
    *chunks, (_, last) = stream.answers()
    facts = fetch_answer(last)
    assert isinstance(facts, EndFacts)
    return [n for batch, _ in chunks for n in batch.column("n").to_pylist()], facts


@pytest.mark.parametrize(
    "isolation", [each for each in Isolation if each is not Isolation.READ_UNCOMMITTED]
)
def test_follower_returns_known_visible_records_without_bounds(broker, isolation):
    found, end = read(broker.near(1, isolation=isolation))
    assert found == [1, 2, 3, 4, 5]
    assert (end.next, end.leader_epoch, end.bounds) == (6, 2, None)
    assert end.lineage == ((1, 6),)
    broker.learn(3)
    assert read(broker.near(6, isolation=isolation))[0] == [6, 7, 8]


def test_follower_returns_the_known_part_of_a_range(broker):
    """The follower raises no error, because the reader fetches the rest from the leader."""
    assert read(broker.near(4, 9))[0] == [4, 5]
    assert read(broker.near(6, 9))[0] == []


def test_follower_refuses_a_fetch_without_near(broker):
    with pytest.raises(NotLeader):
        broker.near(near=False)


@pytest.mark.parametrize("wrong", [{"start": -1}, {"isolation": "read_uncommitted"}])
def test_near_fetch_requires_a_start_offset_and_replicated_isolation(wrong):
    given = {"topic": "t", "partition": 0, "near": True, "isolation": "read_replicated"}
    with pytest.raises(InvalidRequest):
        FetchRange.of(**given | wrong)


def left_the_isr(broker: InSync) -> None:
    isr = (Member(OTHER, Generation("g")),)
    record = PartitionRecord((ME, OTHER), OTHER, LeaderEpoch(2), isr)
    found = broker.store.get(put_of(AT, record, 0)[0])
    assert found is not None
    assert broker.store.put(*put_of(AT, record, found.version))
    broker.host.refresh()


def lost_its_lease(broker: InSync) -> None:
    broker.leases = False


def has_lost_entries(broker: InSync) -> None:
    broker.host.generation = Generation("h")


@pytest.mark.parametrize("change", [left_the_isr, lost_its_lease, has_lost_entries])
def test_follower_not_known_to_be_in_sync_refuses_reads(broker, change):
    under_way = broker.near(wait_ms=1_000, start=6).answers()
    assert isinstance(next(under_way), AwaitRecords)
    change(broker)
    with pytest.raises(NotLeader):
        under_way.send(True)
    with pytest.raises(NotLeader):
        broker.near()


@pytest.mark.parametrize(("epoch", "error"), [(1, LeaderEpochFenced), (3, UnknownLeaderEpoch)])
def test_follower_refuses_a_reader_with_another_epoch(broker, epoch, error):
    with pytest.raises(error):
        broker.near(leader_epoch=epoch)


@pytest.mark.rule("the records that a follower may return to readers", "broker/serving/fetching.py")
def test_fetch_ends_if_the_log_of_the_follower_was_truncated(broker):
    answers = broker.near().answers()
    agreed = Agreement(LeaderEpoch(2), EntryIndex(1), EntryIndex(1))
    broker.partition.followed(Generation("g")).cut_back(agreed)
    with pytest.raises(EntriesGone):
        list(answers)
    assert read(broker.near())[0] == [0, 1, 2]


def test_waiting_reader_is_woken_by_a_new_high_watermark_of_the_follower(broker):
    woken: list[bool] = []
    answers = broker.near(6, wait_ms=1_000, follow=True).answers()
    wait = next(answers)
    assert isinstance(wait, AwaitRecords)
    assert wait.begin(lambda: woken.append(True)) is not None
    broker.learn(3)
    assert woken == [True]
    batch, _ = answers.send(True)
    assert batch.column("n").to_pylist() == [6, 7, 8]


def test_near_fetch_at_a_new_leader_is_answered_as_by_a_leader(broker):
    broker.elect(ME, 3)
    found, _ = read(broker.near(leader_epoch=3))
    assert found[:6] == [0, 1, 2, 3, 4, 5]


def test_reader_with_a_diverged_lineage_is_refused(broker):
    """Only the leader can report lost records, so the reader repeats the request there."""
    with pytest.raises(IsologError):
        broker.near(3, start_lineage=((7, 3),))


def test_atomic_cut_is_recomputed_after_a_truncation(broker):
    before = broker.partition.bounds(Isolation.READ_ATOMIC)
    known, cut = broker.partition._cut
    broker.partition._cut = (known, cut - 1)  # a different cached cut
    assert broker.partition.bounds(Isolation.READ_ATOMIC) != before
    agreed = Agreement(LeaderEpoch(2), EntryIndex(2), EntryIndex(2))
    broker.partition.followed(Generation("g")).cut_back(agreed)
    found = broker.partition.bounds(Isolation.READ_ATOMIC)
    assert (found.last_stable_offset, found.atomic_cut) == (6, 6)
