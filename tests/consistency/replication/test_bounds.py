"""A leader's LEO, HW and LSO against a list of entries that is counted after every event."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication import bounds as transitions
from spark_stream.consistency.replication.bounds import Boundary, BoundsState
from tests.consistency.invariants import ALL, Observed
from tests.examples import examples

START = Boundary(EntryIndex(0), Offset(0))


def at(entry: int, offset: int) -> Boundary:
    return Boundary(EntryIndex(entry), Offset(offset))


@dataclass
class Transaction:
    """A transaction in this partition: where its records start, and its marker's entry index."""

    first_offset: int
    marker: int | None = None


class LeaderMachine(RuleBasedStateMachine):
    """Appends, transactions, replication and retention in any order, with and without followers."""

    producers = Bundle("producers")

    @initialize(followers=st.sampled_from([0, 0, 1, 2]))
    def open(self, followers):
        self.counts: list[int] = []
        self.transactions: list[Transaction] = []
        self.open_by: dict[int, Transaction] = {}
        self.state = transitions.opened(LeaderEpoch(0), START, START, followers)
        self.before = self.observed()

    # -- the model, by counting ------------------------------------------------------------------

    def position(self, entry: int) -> Boundary:
        return at(entry, sum(self.counts[:entry]))

    def first_undecided(self) -> int | None:
        """A transaction is decided for readers once its marker is below HW, not before."""
        below = self.state.high_watermark.entry
        pending = [
            each.first_offset
            for each in self.transactions
            if each.marker is None or each.marker >= below
        ]
        return min(pending, default=None)

    def observed(self) -> Observed:
        return Observed(self.state, self.state.first_undecided)

    def append(self, records: int) -> None:
        self.state = transitions.appended(self.state, records)
        self.counts.append(records)

    def settle(self) -> None:
        self.state = transitions.undecided_from(self.state, self.first_undecided())

    # -- events -----------------------------------------------------------------------------------

    @rule(target=producers, number=st.integers(0, 3))
    def producer(self, number):
        return number

    @rule(records=st.integers(1, 50))
    def append_outside_a_transaction(self, records):
        self.append(records)

    @rule(producer=producers, records=st.integers(1, 50))
    def append_in_a_transaction(self, producer, records):
        if producer not in self.open_by:
            self.open_by[producer] = Transaction(self.state.log_end.offset)
            self.transactions.append(self.open_by[producer])
            self.settle()  # first, so that no reader sees the records as decided in between
        self.append(records)

    @precondition(lambda self: self.open_by)
    @rule(data=st.data())
    def end_a_transaction(self, data):
        producer = data.draw(st.sampled_from(sorted(self.open_by)))
        self.open_by.pop(producer).marker = self.state.log_end.entry
        self.append(0)
        self.settle()

    @precondition(lambda self: self.state.followers)
    @rule(data=st.data())
    def replicate(self, data):
        """Followers report any place that they may have: also an older one, out of order."""
        upto = data.draw(st.integers(0, len(self.counts)))
        self.state = transitions.replicated(self.state, self.position(upto))
        self.settle()

    @rule(beyond=st.integers(1, 3))
    def replicate_what_is_not_there(self, beyond):
        end = self.state.log_end
        with pytest.raises(ValueError, match="past the log end"):
            transitions.replicated(self.state, at(end.entry + beyond, end.offset + beyond))

    @rule(data=st.data())
    def evict(self, data):
        """Retention up to any entry: taken where it ends at or below the LSO, refused above it."""
        upto = self.position(data.draw(st.integers(0, len(self.counts))))
        stable = self.state.bounds().last_stable_offset
        if upto.offset > stable and upto.entry > self.state.log_start.entry:
            with pytest.raises(ValueError, match="past the last stable offset"):
                transitions.evicted(self.state, upto)
        else:
            self.state = transitions.evicted(self.state, upto)

    @rule(data=st.data())
    def trim(self, data):
        """A trim is at most the LSO of some earlier moment."""
        stable = int(self.state.bounds().last_stable_offset)
        self.state = transitions.trimmed_below(
            self.state, Offset(data.draw(st.integers(0, stable)))
        )

    @invariant()
    def every_invariant_holds(self):
        after = self.observed()
        for each in ALL:
            each.check(self.before, after)
        self.before = after

    @invariant()
    def bounds_are_those_that_counting_gives(self):
        bounds = self.state.bounds()
        assert bounds.log_end_offset == sum(self.counts)
        assert self.state.log_end.entry == len(self.counts)
        assert bounds.high_watermark == sum(self.counts[: self.state.high_watermark.entry])
        assert self.state.first_undecided == self.first_undecided()


TestLeader = LeaderMachine.TestCase
TestLeader.settings = settings(max_examples=examples(60), stateful_step_count=30)


# -- the stories behind the machine, one by one ---------------------------------------------------


def leading(followers: int = 0, records: int = 10) -> BoundsState:
    return transitions.appended(
        transitions.opened(LeaderEpoch(0), START, START, followers), records
    )


def test_without_followers_hw_is_leo_after_an_append():
    assert leading(followers=0).bounds().high_watermark == 10


def test_without_followers_hw_is_leo_after_a_crash():
    reopened = transitions.opened(LeaderEpoch(1), at(2, 20), at(7, 90), followers=0)
    assert reopened.bounds().high_watermark == 90


def test_with_followers_hw_is_not_known_after_a_restart_and_starts_at_the_log_start():
    reopened = transitions.opened(LeaderEpoch(1), at(2, 20), at(7, 90), followers=1)
    assert reopened.bounds().high_watermark == 20


def test_with_followers_an_append_moves_leo_and_leaves_hw():
    bounds = leading(followers=1).bounds()
    assert (bounds.high_watermark, bounds.log_end_offset) == (0, 10)


@pytest.mark.rule(
    "the moves of log end offset, high watermark and last stable offset",
    "consistency/replication/bounds.py",
)
def test_hw_never_moves_back_for_a_reader():
    state = transitions.replicated(transitions.appended(leading(followers=1), 10), at(2, 20))
    assert transitions.replicated(state, at(1, 10)) == state


def test_a_marker_takes_an_entry_and_no_offset():
    state = transitions.appended(leading(), 0)
    assert state.log_end == at(2, 10)


def test_a_racing_hw_never_leaks_undecided_records():
    """HW passes the records of an open transaction: LSO stays at its first record."""
    state = transitions.undecided_from(leading(followers=1), Offset(10))
    state = transitions.replicated(transitions.appended(state, 5), at(2, 15))
    assert state.bounds().high_watermark == 15
    assert state.bounds().last_stable_offset == 10


@pytest.mark.rule("a trimmed log start for readers", "consistency/replication/bounds.py")
@pytest.mark.parametrize(
    ("log_end", "seen"),
    [
        (at(3, 30), (25, 25, 25, 30)),  # the trim was at most the LSO: HW is at least there
        (at(2, 20), (20, 20, 20, 20)),  # a follower that has not fetched its entries yet
    ],
)
def test_a_trim_bounds_all_offsets_from_below(log_end, seen):
    opened = transitions.opened(LeaderEpoch(1), START, log_end, followers=1)
    bounds = transitions.trimmed_below(opened, Offset(25)).bounds()
    assert (
        bounds.log_start_offset,
        bounds.last_stable_offset,
        bounds.high_watermark,
        bounds.log_end_offset,
    ) == seen


def test_a_trim_never_moves_back():
    state = transitions.trimmed_below(leading(), Offset(7))
    assert transitions.trimmed_below(state, Offset(5)) == state
    assert state.bounds().log_start_offset == 7


def test_a_trim_does_not_let_retention_pass_the_lso():
    """A new leader's HW is a lower bound, and the entries above it may yet be replaced."""
    opened = transitions.opened(LeaderEpoch(1), START, at(3, 30), followers=1)
    state = transitions.trimmed_below(opened, Offset(25))
    assert state.removable == 0
    with pytest.raises(ValueError, match="past the last stable offset"):
        transitions.evicted(state, at(2, 20))


def test_the_earliest_open_producer_decides_the_lso():
    state = transitions.undecided_from(leading(), Offset(3))
    assert state.bounds().last_stable_offset == 3


def test_lso_is_hw_where_the_first_undecided_record_is_not_replicated():
    state = transitions.undecided_from(leading(followers=1), Offset(4))
    assert state.bounds().last_stable_offset == 0


def test_lso_is_never_below_the_logs_start():
    state = replace(leading(), log_start=at(1, 10), first_undecided=Offset(3))
    assert state.bounds().last_stable_offset == 10


def test_retention_never_passes_the_lso():
    state = transitions.undecided_from(transitions.appended(leading(), 10), Offset(10))
    assert transitions.evicted(state, at(1, 10)).bounds().log_start_offset == 10
    with pytest.raises(ValueError, match="past the last stable offset"):
        transitions.evicted(state, at(2, 20))


def test_retention_never_moves_the_start_back():
    state = transitions.evicted(leading(), at(1, 10))
    assert transitions.evicted(state, START) == state


def test_an_entry_has_no_negative_number_of_records():
    with pytest.raises(ValueError, match="-1"):
        transitions.appended(leading(), -1)
