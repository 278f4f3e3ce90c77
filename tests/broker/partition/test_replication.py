"""What a follower and its leader say to each other reaches the partitions on both sides."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from isolog.errors import (
    DamagedEntries,
    DamagedSegment,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.control import election
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.scripts.partition_records import change_records
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]

EMPTY = EpochHistory(0, 0, ())


@pytest.fixture
def pair(around: Surroundings) -> tuple[LocalBroker, LocalBroker]:
    """``a`` leads ``t/0``, ``b`` follows."""
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    return a, b


def key(broker: LocalBroker, number: int = 0) -> PartitionId:
    return PartitionId(broker.host.find("t").id, number)


def begin(leader: LocalBroker, epoch: int, at: PartitionId | None = None):
    """A session of ``b`` with the leader, which knows of no entry."""
    return leader.host.start_session(
        BrokerId("b"),
        Generation("b-logs"),
        at or key(leader),
        LeaderEpoch(epoch),
        EMPTY,
        lambda _: None,
    )


def let_lead(asked: LocalBroker, broker: str) -> None:
    """Another in-sync replica leads, in the next epoch."""

    def change(_: PartitionId, record: PartitionRecord) -> election.Outcome:
        order = (BrokerId(broker), *(each for each in record.replicas if each != broker))
        moved = replace(record, replicas=order)
        return election.prefer(moved, asked.members.alive())

    place = PartitionId(asked.host.find("t").id, 0)
    asked.driver.run(change_records([place], asked.host.view_of, change))
    see(asked.around)


# -- who may follow -------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "error"), [(-1, LeaderEpochFenced), (1, UnknownLeaderEpoch)])
def test_a_session_in_another_epoch_is_refused(pair, epoch, error):
    with pytest.raises(error):
        begin(pair[0], epoch)


def test_a_session_with_a_broker_that_does_not_lead_is_refused(pair):
    a, b = pair
    with pytest.raises(NotLeader):
        begin(b, 0)
    with pytest.raises(UnknownTopic):
        begin(a, 0, PartitionId("another topic", 0))
    a.around.clock.pass_us(10_000_000)  # its lease is over
    with pytest.raises(LeaderUnavailable):
        begin(a, 0)


def test_a_session_ends_with_the_leadership(pair):
    a, b = pair
    session = begin(a, 0)
    a.partition("t").append(numbers(0, 1))
    assert session.read_entries(EntryIndex(0), 1 << 20) is not None
    replicate(a, b, "t")
    let_lead(a, "b")
    with pytest.raises(NotLeader):
        session.read_entries(EntryIndex(0), 1 << 20)


def test_a_session_that_is_closed_counts_no_more(pair):
    a, _ = pair
    session = begin(a, 0)
    a.partition("t").append(numbers(0, 1))
    session.close()
    session.close()
    session.on_acked(EntryIndex(1))
    assert a.partition("t").bounds().high_watermark == 0


def test_a_session_that_another_one_has_replaced_is_refused_and_not_just_uncounted(pair):
    """What a follower asked before it asked again may be handled last: it then asks once more."""
    a, _ = pair
    news: list[bool] = []
    present = a.host.start_session(
        BrokerId("b"), Generation("b-logs"), key(a), LeaderEpoch(0), EMPTY, news.append
    )
    late = begin(a, 0)
    assert news == [True]  # so that its stream looks
    with pytest.raises(NotLeader):
        present.read_entries(EntryIndex(0), 1 << 20)
    present.close()
    a.partition("t").append(numbers(0, 1))
    late.on_acked(EntryIndex(1))
    assert a.partition("t").bounds().high_watermark == 1


def test_a_leader_has_news_of_appends_for_its_followers(pair):
    a, _ = pair
    news: list[bool] = []
    a.host.start_session(
        BrokerId("b"), Generation("b-logs"), key(a), LeaderEpoch(0), EMPTY, news.append
    )
    a.partition("t").append(numbers(0, 1))
    assert True in news  # there are entries


# -- what a follower gets -------------------------------------------------------------------------


def test_a_follower_has_the_same_entries_and_bounds(pair):
    a, b = pair
    for first in range(0, 30, 10):
        a.partition("t").append(numbers(first, 10))
    session = replicate(a, b, "t")
    assert session.high_watermark == session.end == 3
    replicate(a, b, "t")
    leader, follower = a.replica("t"), b.replica("t")
    assert leader.bounds() == follower.bounds()
    ignored = ["position", "entry_crc"]
    for one, other in zip(leader.log.tables(), follower.log.tables(), strict=True):
        kept = [name for name in one.dtype.names if name not in ignored]
        assert (one[kept] == other[kept]).all()


def test_a_follower_takes_nothing_of_an_epoch_that_is_over(pair):
    a, b = pair
    a.partition("t").append(numbers(0, 1))
    replica = b.replica("t")
    followed = replica.followed(b.generation)
    session = begin(a, 0)
    found = session.read_entries(EntryIndex(0), 1 << 20)
    replicate(a, b, "t")
    let_lead(a, "b")
    for late in (
        lambda: followed.append_frame(EntryIndex(1), found.rows, found.data, EntryIndex(1)),
        lambda: followed.cut_back(session.agreement),
    ):
        with pytest.raises(NotLeader):
            late()
    followed.take_high_watermark(EntryIndex(9))
    assert replica.log.end.entry == 1


@pytest.mark.rule(
    "what a follower still takes of what it had received", "broker/partition/replication.py"
)
def test_what_came_for_an_earlier_turn_of_following_is_refused_in_the_same_epoch_too(pair):
    """The broker goes on in a new generation, and a thread is late with what it had received."""
    a, b = pair
    replica = b.replica("t")
    followed = replica.followed(b.generation)
    a.partition("t").append(numbers(0, 2))
    late = begin(a, 0)
    found = late.read_entries(EntryIndex(0), 1 << 20)
    b.host.change_generation(Generation("b-logs-2"))
    replicate(a, b, "t")
    a.partition("t").append(numbers(2, 1))
    for act in (
        lambda: followed.cut_back(late.agreement),
        lambda: followed.append_frame(EntryIndex(0), found.rows, found.data, EntryIndex(1)),
    ):
        with pytest.raises(NotLeader):
            act()
    followed.take_high_watermark(EntryIndex(9))
    assert replica.log.end.entry == 1


def test_entries_that_are_there_already_are_passed_over(pair):
    a, b = pair
    for first in range(3):
        a.partition("t").append(numbers(first, 1))
    replicate(a, b, "t")
    replica = b.replica("t")
    followed = replica.followed(b.generation)
    found = begin(a, 0).read_entries(EntryIndex(0), 1 << 20)
    assert followed.append_frame(EntryIndex(0), found.rows, found.data, EntryIndex(3)) == 3
    assert replica.bounds().log_end_offset == 3


@pytest.mark.rule("what a failover rolled back is remembered", "broker/partition/replication.py")
def test_what_a_failover_rolls_back_is_told_by_the_broker_that_had_it(pair):
    a, b = pair
    for first in range(3):
        a.partition("t").append(numbers(first, 1))
    replicate(a, b, "t")
    a.partition("t").append(numbers(3, 4))  # never reaches b
    let_lead(a, "b")
    assert not a.replica("t").following.rolled_back
    b.partition("t").append(numbers(10, 2))
    replicate(b, a, "t")
    [found] = a.replica("t").following.rolled_back
    assert (found.topic, found.partition, found.start, found.end) == ("t", 0, 3, 7)
    assert (found.leader_epoch, found.were_committed) == (b.partition("t").leader_epoch, False)
    assert not b.replica("t").following.rolled_back
    facts = b.partition("t").facts()
    assert [(each.epoch, each.offset) for each in facts.epochs] == [(0, 0), (1, 3)]
    assert facts.followers == {"a": 5}


def test_bytes_that_were_changed_on_their_way_are_refused(pair):
    a, b = pair
    a.partition("t").append(numbers(0, 1))
    replica = b.replica("t")
    followed = replica.followed(b.generation)
    session = begin(a, 0)
    end = followed.cut_back(session.agreement)
    found = session.read_entries(end, 1 << 20)
    changed = bytearray(found.data.to_pybytes())
    changed[-1] ^= 1
    with pytest.raises(DamagedEntries):
        followed.append_frame(end, found.rows, pa.py_buffer(bytes(changed)), end)
    assert replica.log.end.entry == 0


@pytest.mark.rule(
    "what a leader does whose entries arrive damaged",
    "broker/partition/replication.py",
    "broker/replication/leader_core.py",
)
def test_an_entry_that_changed_in_memory_is_sent_again_from_the_file(pair, caplog):
    """The follower says that it came damaged; else the same bytes would be sent for ever."""
    a, b = pair
    begin(a, 0)  # from now on batches are kept for the follower
    a.partition("t").append(numbers(0, 3))
    kept = a.partition("t")._state.sessions.recent._kept
    changed = bytearray(kept[0].data.to_pybytes())
    changed[-1] ^= 1
    kept[0] = replace(kept[0], data=pa.py_buffer(bytes(changed)))
    followed, session = b.replica("t").followed(b.generation), begin(a, 0)
    end = followed.cut_back(session.agreement)
    found = session.read_entries(end, 1 << 20)
    with pytest.raises(DamagedEntries) as caught:
        followed.append_frame(end, found.rows, found.data, end)
    session.came_damaged(EntryIndex(caught.value.details["entry"]))
    session.close()
    replicate(a, b, "t")
    assert b.replica("t").log.end == a.partition("t").log.end
    assert a.partition("t").log.hole is None
    assert "t/0: entry 0 arrived damaged" in caplog.text


def flip_last_byte(broker: LocalBroker, row: int) -> None:
    """Changes a byte of a batch in the segment that grows, on the disk."""
    segment = broker.replica("t").log.segments[-1]
    place = int(segment.table[row]["position"] + segment.table[row]["length"]) - 1
    with segment.name.arrow.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_leader_whose_active_segment_changed_finds_out_when_a_follower_is_refilled(pair):
    a, b = pair
    for first in range(0, 30, 10):
        a.partition("t").append(numbers(first, 10))
    flip_last_byte(a, 1)
    with pytest.raises(DamagedSegment):
        replicate(a, b, "t")
    assert b.replica("t").log.end.entry == 1  # what is sound before it
    assert a.partition("t").log.hole == 1


@pytest.mark.rule(
    "what a damaged follower tells its leader to have", "broker/partition/replication.py"
)
def test_a_damaged_follower_tells_its_leader_only_what_is_sound_before_the_damage(pair):
    a, b = pair
    for first in range(0, 40, 10):
        a.partition("t").append(numbers(first, 10))
    replicate(a, b, "t")
    replica = b.replica("t")
    assert replica.followed(b.generation).history().end == 4
    flip_last_byte(b, 2)
    with pytest.raises(DamagedSegment):
        replica.log.read_entries(EntryIndex(2), 1 << 20)
    told = replica.followed(b.generation).history()
    assert (told.end, told.epochs) == (2, ((0, 0),))
    replicate(a, b, "t")
    assert replica.log.hole is None
    chunks = list(replica.log.read(0, 40))
    assert [n for each in chunks for n in each.batch.column("n").to_pylist()] == list(range(40))


def test_a_follower_takes_back_what_it_cut_where_its_leader_is_damaged_too(pair, caplog):
    """Entry 1 is damaged at the follower, entry 3 at the leader: each has a sound copy."""
    a, b = pair
    for first in range(0, 60, 10):
        a.partition("t").append(numbers(first, 10))
    replicate(a, b, "t")
    replica = b.replica("t")
    flip_last_byte(b, 1)
    with pytest.raises(DamagedSegment):
        replica.log.read_entries(EntryIndex(1), 1 << 20)
    flip_last_byte(a, 3)
    with pytest.raises(DamagedSegment) as caught:
        replicate(a, b, "t")
    assert replica.log.end.entry == 3
    replica.followed(b.generation).on_refused(caught.value)
    assert "the leader's entry 3 is damaged: entries 3 to 5 are taken" in caplog.text
    assert replica.followed(b.generation).history().end == 6
    let_lead(a, "b")
    with pytest.raises(DamagedSegment):
        a.replica("t").log.read_entries(EntryIndex(3), 1 << 20)
    replicate(b, a, "t")
    for each in (a, b):
        chunks = list(each.replica("t").log.read(0, 60))
        found = [n for chunk in chunks for n in chunk.batch.column("n").to_pylist()]
        assert found == list(range(60))


def test_a_leader_that_is_back_gives_up_what_nobody_else_had(pair, caplog):
    """It was never replicated: the new leader's records are in its place."""
    a, b = pair
    a.partition("t").append(numbers(0, 2))
    replicate(a, b, "t")
    a.partition("t").append(numbers(100, 3))
    let_lead(a, "b")
    b.partition("t").append(numbers(2, 1))
    with caplog.at_level(logging.INFO):
        replicate(b, a, "t")
    assert "t/0: cut entries 1 to 1" in caplog.text
    assert a.replica("t").bounds().log_end_offset == 3
    table = np.concatenate(a.replica("t").log.tables())
    assert table["leader_epoch"].tolist() == [0, 1]
