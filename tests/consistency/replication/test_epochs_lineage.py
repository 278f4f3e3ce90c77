"""A lineage shows a reader exactly the lost records of those that it has read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import (
    NO_LINEAGE,
    EpochStarts,
    Lineage,
    lineage_of,
    lost_above,
    surviving,
)

Log = list[tuple[int, int]]
"""One record an entry: of each its epoch, and a number that no other record has."""


def starts_of(log: Log, first: int = 0) -> EpochStarts:
    """As a log that holds the records from ``first`` on derives them when it opens."""
    found = EpochStarts()
    for place, (epoch, _) in enumerate(log[first:], first):
        found.on_appended(LeaderEpoch(epoch), place_of(place))
    return found


def place_of(offset: int) -> Boundary:
    return Boundary(EntryIndex(offset), Offset(offset))


def of_epochs(*counts: tuple[int, int]) -> Log:
    """A log of (epoch, records) each."""
    return [(epoch, number) for epoch, count in counts for number in range(count)]


def told(log: Log, offset: int, replicated: int, first: int = 0) -> Lineage:
    return lineage_of(starts_of(log, first), Offset(offset), Offset(replicated))


def held(lineage: Lineage, log: Log, start: int = 0) -> int:
    return surviving(lineage, starts_of(log, start), Offset(start), place_of(len(log)))


def shared(one: Log, other: Log) -> int:
    """The number of equal first records."""
    both = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in both if a != b), min(len(one), len(other)))


def test_a_lineage_goes_back_to_the_first_epoch_that_every_later_log_has():
    log = of_epochs((0, 5), (2, 3), (4, 2), (7, 1))
    assert told(log, 11, 11) == told(log, 11, 99) == ((7, 11),)
    assert told(log, 11, 10) == ((4, 10), (7, 11))
    assert told(log, 11, 8) == ((2, 8), (4, 10), (7, 11))
    assert told(log, 11, 5) == told(log, 11, 1) == ((0, 5), (2, 8), (4, 10), (7, 11))
    assert told(log, 11, 0) == ((0, 0), (0, 5), (2, 8), (4, 10), (7, 11))
    assert told(log, 9, 8) == ((2, 8), (4, 9))
    assert told(log, 8, 8) == ((2, 8),)
    assert told(log, 0, 0) == told([], 0, 0) == NO_LINEAGE


def test_records_of_an_earlier_epoch_at_the_same_offsets_are_others():
    """Leader 6 never had the last records of epoch 5. Leader 7 has them, and none of epoch 6."""
    read = of_epochs((5, 9), (6, 2))
    now = of_epochs((5, 12), (7, 3))
    lineage = told(read, 11, 9)
    assert lost_above(11, lineage, held(lineage, now)) == 9
    assert lost_above(9, lineage, held(lineage, now)) is None  # the reader had not come so far


@pytest.mark.parametrize(("start", "left"), [(0, 5), (4, 5), (5, 5), (8, 8), (9, None), (12, None)])
def test_records_removed_by_retention_count_as_surviving(start, left):
    lineage = ((1, 5), (2, 9))
    now = of_epochs((1, 6), (3, 9))
    assert lost_above(9, lineage, held(lineage, now, start)) == left


def test_an_older_copy_of_the_log_has_lost_its_missing_records():
    log = of_epochs((0, 5), (2, 3))
    lineage = told(log, 8, 8)
    assert lost_above(8, lineage, held(lineage, log[:6])) == 6
    assert lost_above(8, lineage, held(lineage, log[:4])) == 4
    assert lost_above(8, lineage, held(lineage, [])) == 0


def test_records_that_only_the_next_leader_still_has_survive():
    """A log without records, opened again, does not have the epochs before its start."""
    opened = EpochStarts()
    opened.on_appended(LeaderEpoch(5), place_of(100))
    lineage = lineage_of(opened, Offset(105), Offset(100))
    assert lost_above(105, lineage, held(lineage, of_epochs((3, 100), (6, 9)))) == 100
    assert lost_above(105, lineage, held(lineage, of_epochs((3, 100)))) == 100
    assert lost_above(100, lineage, held(lineage, of_epochs((3, 100)))) is None
    assert lost_above(105, lineage, held(lineage, of_epochs((3, 80)))) == 80


def test_a_log_without_the_epochs_of_a_reader_has_lost_replicated_records():
    lineage = told(of_epochs((0, 5), (2, 3)), 8, 8)
    assert held(lineage, of_epochs((0, 5), (3, 9))) == 5
    assert held(lineage, of_epochs((0, 5), (1, 1), (3, 9))) == 6
    assert held(lineage, of_epochs((0, 5), (1, 9))) == 5
    assert held(lineage, of_epochs((1, 9))) == 0


def test_an_offset_above_the_last_claim_survives_with_it():
    assert lost_above(20, ((3, 9),), 9) is None
    assert lost_above(20, ((3, 9),), 8) == 8
    assert lost_above(20, NO_LINEAGE, 0) is None


TERM = st.tuples(
    st.integers(0, 2),  # the leader
    st.integers(0, 4),  # the number of its entries
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 16)), max_size=3),  # replicas
)


@pytest.mark.rule(
    "the lost records of a returning reader",
    "consistency/replication/epochs.py",
    "datasource/reading/losses.py",
)
@given(st.lists(TERM, max_size=9), st.data())
def test_a_reader_detects_exactly_the_lost_records(terms, data):
    """Three replicas lead in turn, and each one with all replicated entries may lead.

    A reader of each leader remembers where it is. Every later leader returns the surviving part.
    Each leader evicts some replicated entries, and opens its log again.
    """
    logs: list[Log] = [[], [], []]
    firsts = [0, 0, 0]
    readers: list[tuple[Log, int, Lineage]] = []
    for_good: Log = []
    replicated = number = 0
    for epoch, (who, appends, takes) in enumerate(terms):
        leader = logs[who]
        if shared(leader, for_good) < replicated:
            continue
        for read, at, lineage in readers:
            survives = held(lineage, leader, firsts[who]) if lineage else 0
            left = lost_above(at, lineage, survives) if lineage else None
            same = max(shared(read, leader), firsts[who])
            assert left == (None if same >= at else same)
        for _ in range(appends):
            leader.append((epoch, number))
            number += 1
        for follower, most in takes:
            if follower != who:
                same = shared(logs[follower], leader)
                logs[follower] = leader[: max(same, min(most, len(leader)))]
        replicated = max(replicated, min(shared(log, leader) for log in logs))
        for_good = leader[:replicated]
        first = firsts[who] = data.draw(st.integers(firsts[who], replicated), label="log start")
        known = data.draw(st.integers(first, replicated), label="the high watermark that it knows")
        seen = data.draw(st.integers(first, len(leader)), label="seen")
        at = data.draw(st.integers(first, seen), label="read")
        readers.append((leader[:at], at, told(leader, seen, known, first)))
