"""Replication of one partition, at the leader and at the follower."""

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
    """Begin a session of ``b``, whose log is empty, with the leader."""
    return leader.host.start_session(
        BrokerId("b"),
        Generation("b-logs"),
        at or key(leader),
        LeaderEpoch(epoch),
        EMPTY,
        lambda _: None,
    )


def let_lead(asked: LocalBroker, broker: str) -> None:
    """Elect another in-sync replica, in the next epoch."""

    def change(_: PartitionId, record: PartitionRecord) -> election.Outcome:
        order = (BrokerId(broker), *(each for each in record.replicas if each != broker))
        moved = replace(record, replicas=order)
        return election.prefer(moved, asked.members.alive())

    place = PartitionId(asked.host.find("t").id, 0)
    asked.driver.run(change_records([place], asked.host.view_of, change))
    see(asked.around)


# -- sessions of followers -------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "error"), [(-1, LeaderEpochFenced), (1, UnknownLeaderEpoch)])
def test_session_in_another_epoch_is_refused(pair, epoch, error):
    with pytest.raises(error):
        begin(pair[0], epoch)


def test_session_with_a_broker_that_does_not_lead_is_refused(pair):
    a, b = pair
    with pytest.raises(NotLeader):
        begin(b, 0)
    with pytest.raises(UnknownTopic):
        begin(a, 0, PartitionId("another topic", 0))
    a.around.clock.pass_us(10_000_000)  # the lease expires
    with pytest.raises(LeaderUnavailable):
        begin(a, 0)


def test_session_ends_with_the_leadership(pair):
    a, b = pair
    session = begin(a, 0)
    a.partition("t").append(numbers(0, 1))
    assert session.read_entries(EntryIndex(0), 1 << 20) is not None
    replicate(a, b, "t")
    let_lead(a, "b")
    with pytest.raises(NotLeader):
        session.read_entries(EntryIndex(0), 1 << 20)


def test_reports_of_a_closed_session_are_ignored(pair):
    a, _ = pair
    session = begin(a, 0)
    a.partition("t").append(numbers(0, 1))
    session.close()
    session.close()
    session.on_acked(EntryIndex(1))
    assert a.partition("t").bounds().high_watermark == 0


def test_replaced_session_cannot_read_entries(pair):
    """Requests may be handled in the wrong order. Then the follower sends another one."""
    a, _ = pair
    news: list[bool] = []
    present = a.host.start_session(
        BrokerId("b"), Generation("b-logs"), key(a), LeaderEpoch(0), EMPTY, news.append
    )
    late = begin(a, 0)
    assert news == [True]  # so that its stream reads
    with pytest.raises(NotLeader):
        present.read_entries(EntryIndex(0), 1 << 20)
    present.close()
    a.partition("t").append(numbers(0, 1))
    late.on_acked(EntryIndex(1))
    assert a.partition("t").bounds().high_watermark == 1


def test_followers_are_notified_of_appends(pair):
    a, _ = pair
    news: list[bool] = []
    a.host.start_session(
        BrokerId("b"), Generation("b-logs"), key(a), LeaderEpoch(0), EMPTY, news.append
    )
    a.partition("t").append(numbers(0, 1))
    assert True in news  # new entries


# -- entries for a follower -----------------------------------------------------------------------


def test_follower_has_the_entries_and_bounds_of_its_leader(pair):
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


def test_follower_refuses_entries_of_an_earlier_epoch(pair):
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
    "the received entries that a follower still appends", "broker/partition/replication.py"
)
def test_entries_for_an_earlier_turn_are_refused_in_the_same_epoch(pair):
    """The broker continues in a new generation. A late thread appends entries of the old one."""
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


def test_follower_skips_entries_that_it_has(pair):
    a, b = pair
    for first in range(3):
        a.partition("t").append(numbers(first, 1))
    replicate(a, b, "t")
    replica = b.replica("t")
    followed = replica.followed(b.generation)
    found = begin(a, 0).read_entries(EntryIndex(0), 1 << 20)
    assert followed.append_frame(EntryIndex(0), found.rows, found.data, EntryIndex(3)) == 3
    assert replica.bounds().log_end_offset == 3


@pytest.mark.rule(
    "records that a failover has rolled back are reported", "broker/partition/replication.py"
)
def test_broker_reports_records_rolled_back_by_a_failover(pair):
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


def test_entries_damaged_in_transit_are_refused(pair):
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
    "the reaction of a leader to entries received damaged",
    "broker/partition/replication.py",
    "broker/replication/leader_core.py",
)
def test_entry_damaged_in_memory_is_resent_from_the_file(pair, caplog):
    """The follower reports the damage. Otherwise the same bytes would be sent in every retry."""
    a, b = pair
    begin(a, 0)  # now the leader keeps batches in memory
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
    session.on_damaged(EntryIndex(caught.value.details["entry"]))
    session.close()
    replicate(a, b, "t")
    assert b.replica("t").log.end == a.partition("t").log.end
    assert a.partition("t").log.hole is None
    assert "t/0: a follower received entry 0 damaged" in caplog.text


def flip_last_byte(broker: LocalBroker, row: int) -> None:
    """Change a byte of a batch in the active segment's file."""
    segment = broker.replica("t").log.segments[-1]
    place = int(segment.table[row]["position"] + segment.table[row]["length"]) - 1
    with segment.name.arrow.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_leader_detects_damage_in_its_active_segment_when_a_follower_catches_up(pair):
    a, b = pair
    for first in range(0, 30, 10):
        a.partition("t").append(numbers(first, 10))
    flip_last_byte(a, 1)
    with pytest.raises(DamagedSegment):
        replicate(a, b, "t")
    assert b.replica("t").log.end.entry == 1  # the sound entries before it
    assert a.partition("t").log.hole == 1


@pytest.mark.rule(
    "the entries that a damaged follower reports to its leader", "broker/partition/replication.py"
)
def test_damaged_follower_reports_only_its_sound_epochs(pair):
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


def test_follower_restores_truncated_entries_that_are_damaged_at_the_leader(pair, caplog):
    """Entry 1 is damaged at the follower and entry 3 at the leader. Each has a sound copy."""
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
    assert "entry 3 of the leader is damaged; restored entries 3 to 5" in caplog.text
    assert replica.followed(b.generation).history().end == 6
    let_lead(a, "b")
    with pytest.raises(DamagedSegment):
        a.replica("t").log.read_entries(EntryIndex(3), 1 << 20)
    replicate(b, a, "t")
    for each in (a, b):
        chunks = list(each.replica("t").log.read(0, 60))
        found = [n for chunk in chunks for n in chunk.batch.column("n").to_pylist()]
        assert found == list(range(60))


def test_returning_leader_truncates_unreplicated_entries(pair, caplog):
    """The entry was never replicated, and the new leader's records replace it."""
    a, b = pair
    a.partition("t").append(numbers(0, 2))
    replicate(a, b, "t")
    a.partition("t").append(numbers(100, 3))
    let_lead(a, "b")
    b.partition("t").append(numbers(2, 1))
    with caplog.at_level(logging.INFO):
        replicate(b, a, "t")
    assert "t/0: truncated entries 1 to 1" in caplog.text
    assert a.replica("t").bounds().log_end_offset == 3
    table = np.concatenate(a.replica("t").log.tables())
    assert table["leader_epoch"].tolist() == [0, 1]
