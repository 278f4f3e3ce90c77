"""Waiters: a bound removes exactly the satisfied ones, and cancelled ones take no memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.partition.effects import Waiters


@given(st.lists(st.tuples(st.sampled_from(["add", "cancel", "pass"]), st.integers(0, 30))))
def test_waiters_below_the_bound_are_removed_lowest_first(steps):
    waiters, waiting, number = Waiters(), {}, 0
    for what, value in steps:
        if what == "add":
            waiters.add(number, value)
            waiting[number] = value
            number += 1
        elif what == "cancel":
            assert waiters.cancel(value) == (waiting.pop(value, None) is not None)
        else:
            found = waiters.remove_passed(value)
            below = [each for each, offset in waiting.items() if offset < value]
            assert sorted(found) == below
            assert [waiting[each] for each in found] == sorted(waiting[each] for each in found)
            for each in found:
                del waiting[each]
        assert len(waiters) == len(waiting)


def test_cancelled_waiters_do_not_pile_up():
    waiters = Waiters()
    waiters.add(0, 5)
    for number in range(1, 100_000):
        waiters.add(number, 1_000_000)
        waiters.cancel(number)
    assert len(waiters._heap) < 200
    assert waiters.remove_passed(6) == [0]
