"""What an invariant that compares a log with what it was lets a cut take."""

from __future__ import annotations

from spark_stream.consistency.entries import Entry
from spark_stream.storage.settings import Flush
from tests.simulation.history import Course, Line, Seen
from tests.simulation.invariants.logs import unexplained


def lines(*, committed: int) -> tuple[Line, Line]:
    """A replica and its leader with the same three entries, of which some are committed."""
    course = Course("orders", ("1", 0), Flush.INTERVAL)
    line, led = Line(course, "follower"), Line(course, "leader")
    for index in range(3):
        seen = Seen(Entry(index, index, 0, 0, 1, 1, 0), (index,))
        for fold in (line, led, *([course.committed] if index < committed else [])):
            fold.add(seen)
    return line, led


def test_a_cut_explains_that_what_is_not_committed_is_gone():
    line, led = lines(committed=2)
    line.may_be_cut = True
    assert unexplained(line, line.entries, led) == line.entries[:2]


def test_a_cut_explains_that_what_its_leader_has_evicted_is_gone():
    line, led = lines(committed=3)
    line.may_be_cut = True
    led.begin_at(2)
    assert unexplained(line, line.entries, led) == line.entries[2:]


def test_without_a_cut_nothing_explains_that_an_entry_is_gone():
    line, led = lines(committed=0)
    assert unexplained(line, line.entries, led) == line.entries


def test_a_removal_explains_that_all_is_gone():
    line, led = lines(committed=3)
    line.may_be_gone = True
    assert unexplained(line, line.entries, led) == []
