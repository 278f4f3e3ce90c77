"""No batch is accepted in a transaction after its seal, with any events between the steps."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.partition.open_transactions import Joins, OpenPart, Undecided
from tests.examples import examples

NUMBERS = st.integers(0, 1)
WRITERS = st.integers(0, 1)


class JoinMachine(RuleBasedStateMachine):
    """One partition, the records of a few transactions, and calls that stop between any steps.

    The test plays the record: which transactions are open, which branches of them are dropped, and
    whether this partition is on it.
    """

    asked = Bundle("asked")
    recorded = Bundle("recorded")

    def __init__(self):
        super().__init__()
        self.joins = Joins()
        self.decided: set[int] = set()
        self.dropped: set[tuple[int, int]] = set()
        self.on_record: set[int] = set()
        self.sealed: set[int] = set()
        self.marked_of: set[tuple[int, int]] = set()
        self.batches: list[tuple[int, int]] = []

    # -- a batch on its way -----------------------------------------------------------------------

    @rule(target=asked, number=NUMBERS, writer=WRITERS)
    def open_a_join(self, number, writer):
        return self.joins.open(number, writer)

    @rule(target=recorded, number=NUMBERS, writer=WRITERS)
    def ask_at_once(self, number, writer):
        return self.put_on_record(self.joins.open(number, writer))

    @rule(target=recorded, join=consumes(asked))
    def ask_later(self, join):
        return self.put_on_record(join)

    def put_on_record(self, join):
        """The record refuses decided transactions and dropped branches by its compare-and-set."""
        key = (join.transaction, join.producer_id)
        refused = join.transaction in self.decided or key in self.dropped
        if not refused:
            self.on_record.add(join.transaction)
        return join, not refused

    @rule(answer=consumes(recorded))
    def hear_the_record(self, answer):
        join, on_record = answer
        if on_record:
            self.joins.confirm(join)
        else:
            self.joins.give_up(join)

    @rule(number=NUMBERS, writer=WRITERS)
    def append(self, number, writer):
        """A batch that may have waited for as long as it liked since it was joined."""
        if (number, writer) in self.joins:
            assert number not in self.sealed
            assert (number, writer) not in self.marked_of
            self.batches.append((number, writer))

    # -- the end ----------------------------------------------------------------------------------

    @rule(number=NUMBERS, sealed=st.booleans())
    def decide(self, number, sealed):
        """Only partitions on the record are sealed."""
        self.decided.add(number)
        if sealed:
            self.seal(number)

    @rule(number=NUMBERS)
    def seal(self, number):
        if number in self.decided and number in self.on_record:
            self.joins.seal(number)
            self.sealed.add(number)

    @rule(number=NUMBERS, writer=WRITERS, marked=st.booleans())
    def drop(self, number, writer, marked):
        if number not in self.decided:
            self.dropped.add((number, writer))
        if marked:
            self.mark_the_dropped(number, writer)

    @rule(number=NUMBERS, writer=WRITERS)
    def mark_the_dropped(self, number, writer):
        if (number, writer) in self.dropped and number in self.on_record:
            self.joins.drop(number, writer)
            self.marked_of.add((number, writer))

    @rule(restart=st.booleans())
    def lead_in_a_new_epoch(self, restart):
        """No state is kept. Calls under way continue, and are lost after a restart."""
        if restart:
            self.joins = Joins()
        else:
            self.joins.clear()

    @invariant()
    def what_is_remembered_is_under_way(self):
        for number in self.sealed:
            assert all((number, writer) not in self.joins for writer in range(2))
        assert all(key not in self.joins for key in self.marked_of)


TestJoins = JoinMachine.TestCase
TestJoins.settings = settings(max_examples=examples(150), stateful_step_count=40)


@pytest.mark.rule(
    "no batch joins a transaction after its decision",
    "consistency/transactions/events.py",
    "consistency/partition/open_transactions.py",
)
def test_a_pending_join_is_not_confirmed_after_a_seal():
    joins = Joins()
    pending = joins.open(10, 1)
    joins.seal(10)
    assert not joins.confirm(pending)
    assert (10, 1) not in joins


def test_ended_transactions_take_no_memory():
    """An earlier list of 4,096 forgot the oldest one, and accepted a delayed batch of it."""
    joins = Joins()
    waited = joins.open(10, 1)
    joins.seal(10)
    for number in range(100, 6_000):
        assert joins.confirm(joins.open(number, 1))
        joins.seal(number)
    assert len(joins) == 0
    assert not joins.confirm(waited)


def test_two_concurrent_joins_do_not_cancel_each_other():
    joins = Joins()
    one, other = joins.open(10, 1), joins.open(10, 1)
    assert joins.confirm(one)
    joins.give_up(other)
    assert (10, 1) in joins
    joins.drop(10, 1)
    assert len(joins) == 0


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


def test_branches_of_one_transaction_have_separate_joins():
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
