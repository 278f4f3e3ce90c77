"""When a replica whose log refuses writes hands over, and when it is looked at again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.control.handover import (
    FULL_US,
    RETRY_US,
    Trouble,
    after_attempt,
    after_refusal,
    after_write,
)


def test_a_write_that_failed_is_acted_on_at_once_and_a_full_disk_after_a_while():
    assert after_refusal(None, 100, full=False) == Trouble(full=False, due=100)
    assert after_refusal(None, 100, full=True) == Trouble(full=True, due=100 + FULL_US)


def test_a_full_disk_is_waited_for_from_its_first_refusal_on():
    first = after_refusal(None, 100, full=True)
    assert after_refusal(first, 100 + FULL_US, full=True) == first


def test_a_failure_of_a_full_disk_is_acted_on_at_once():
    full = after_refusal(None, 100, full=True)
    assert after_refusal(full, 200, full=False) == Trouble(full=False, due=200)


def test_a_write_ends_the_trouble_of_a_full_disk_but_not_of_a_failed_one():
    assert after_write(None) is None
    assert after_write(after_refusal(None, 0, full=True)) is None
    failed = after_refusal(None, 0, full=False)
    assert after_write(failed) == failed


def test_only_the_first_failure_is_acted_on_without_a_probe():
    failed = after_refusal(None, 0, full=False)
    assert not failed.needs_probe
    assert after_attempt(failed, 7).needs_probe
    assert after_refusal(None, 0, full=True).needs_probe


@given(st.lists(st.tuples(st.booleans(), st.integers(1, FULL_US)), min_size=1))
def test_whatever_is_refused_something_is_done_within_the_patience_for_a_full_disk(refusals):
    trouble, now, first = None, 0, None
    for full, pause in refusals:
        now += pause
        first = now if first is None else first
        trouble = after_refusal(trouble, now, full=full)
        assert trouble.due <= max(now, first + FULL_US)
    assert after_attempt(trouble, now).due == now + RETRY_US
