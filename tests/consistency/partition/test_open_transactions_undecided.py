"""What holds a partition's last stable offset back."""

from __future__ import annotations

import pytest

from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.partition.open_transactions import OpenPart, Undecided


@pytest.mark.rule(
    "an undecided transaction holds the last stable offset back",
    "consistency/partition/open_transactions.py",
)
def test_the_earliest_open_producer_decides():
    undecided = Undecided()
    assert undecided.first() is None
    undecided.began(2, 11, 0, Offset(3))
    undecided.began(1, 10, 0, Offset(5))
    undecided.began(1, 10, 0, Offset(9))
    assert undecided.first() == 3
    undecided.on_marked(2, 11, 20)
    undecided.on_replicated(EntryIndex(21))
    assert undecided.first() == 5


def test_a_marker_decides_only_below_the_high_watermark():
    undecided = Undecided()
    undecided.began(1, 10, 0, Offset(5))
    undecided.on_marked(1, 10, 7)
    undecided.on_replicated(EntryIndex(7))
    assert undecided.first() == 5
    assert (1, 10) not in undecided
    undecided.on_replicated(EntryIndex(8))
    assert undecided.first() is None


def test_branches_of_one_transaction_are_held_apart():
    undecided = Undecided()
    undecided.began(1, 10, 0, Offset(5))
    undecided.began(1, 11, 0, Offset(6))
    assert [producer for producer, _ in undecided.parts(1)] == [10, 11]
    undecided.on_marked(1, 10, 7)
    assert undecided.parts(1) == [(11, OpenPart(0, Offset(6)))]
    assert dict(undecided.open()) == {(1, 11): OpenPart(0, Offset(6))}
    undecided.on_marked(1, 11, 8)
    assert undecided.parts(1) == []


def test_a_second_marker_changes_nothing():
    undecided = Undecided()
    undecided.began(1, 10, 0, Offset(5))
    undecided.on_marked(1, 10, 7)
    undecided.on_marked(1, 10, 9)
    undecided.on_replicated(EntryIndex(8))
    assert undecided.first() is None
