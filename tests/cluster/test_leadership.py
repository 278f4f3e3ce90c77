"""In which leader epoch a broker starts: a new one, unless its logs are as it left them."""

from __future__ import annotations

import pytest

from spark_stream.cluster.leadership import Leadership


@pytest.fixture
def leadership(store) -> Leadership:
    return Leadership(store)


def test_a_new_log_begins_in_epoch_0(leadership):
    assert leadership.begin("empty", None) == 0


def test_after_a_clean_end_the_epoch_goes_on(leadership):
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("ten", epoch) == 0


def test_after_an_unclean_end_a_new_epoch_begins(leadership):
    leadership.begin("empty", None)
    assert leadership.begin("empty", None) == 1
    assert leadership.begin("empty", None) == 2


def test_logs_that_do_not_end_where_they_were_left_begin_a_new_epoch(leadership):
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("nine", epoch) == 1


def test_an_end_is_used_once(leadership):
    """A broker that dies before it has appended anything has not left its logs in order."""
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("ten", epoch) == 0
    assert leadership.begin("ten", epoch) == 1


def test_logs_of_a_release_without_epochs_begin_a_new_one(leadership):
    assert leadership.begin("some", 0) == 1


def test_an_epoch_is_never_below_one_that_the_logs_have(leadership):
    leadership.leave(leadership.begin("empty", None), "ten")
    assert leadership.begin("ten", 7) == 8


def test_an_epoch_that_is_over_cannot_be_left(leadership):
    old = leadership.begin("empty", None)
    new = leadership.begin("empty", None)
    leadership.leave(old, "ten")
    assert leadership.begin("ten", new) == 2
