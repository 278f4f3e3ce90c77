"""What failed is told once: by its future, or else by the flush."""

from __future__ import annotations

import gc
from concurrent.futures import wait

import pytest

from isolog.errors import BrokerUnavailable, RecordTooLarge
from spark_stream.client.writing.promises import Failure, Failures, Promise


def failed(failures: Failures, message: str) -> Promise:
    promise = Promise(failures)
    promise.settle(BrokerUnavailable(message))
    return promise


def test_what_the_caller_has_taken_is_told():
    failures = Failures()
    assert failed(failures, "a").exception().message == "a"
    with pytest.raises(BrokerUnavailable, match="b"):
        failed(failures, "b").result()
    failures.raise_first()


def test_what_nobody_looked_at_is_told_once():
    failures = Failures()
    looked, _other, _third = (failed(failures, name) for name in "abc")
    looked.exception()
    with pytest.raises(BrokerUnavailable, match="b"):
        failures.raise_first()
    failures.raise_first()


def test_waiting_for_a_future_and_being_called_back_take_nothing():
    failures = Failures()
    promise = failed(failures, "a")
    wait([promise])
    promise.add_done_callback(lambda future: future.done())
    with pytest.raises(BrokerUnavailable):
        failures.raise_first()


def test_a_look_that_comes_too_early_takes_nothing():
    failures = Failures()
    promise = Promise(failures)
    with pytest.raises(TimeoutError):
        promise.exception(0)
    promise.settle(RecordTooLarge("x"))
    with pytest.raises(RecordTooLarge):
        failures.raise_first()


def test_the_first_failure_is_known_though_it_was_told():
    failures = Failures()
    failed(failures, "a").exception()
    failed(failures, "b")
    assert failures.first.message == "a"
    failures.forget()
    assert failures.first is None
    failures.raise_first()


def test_failures_that_nobody_holds_take_no_room():
    failures = Failures()
    held = [failed(failures, "held") for _ in range(10)]
    for _ in range(20_000):
        failed(failures, "dropped")
    gc.collect()
    assert sum(1 for each in gc.get_objects() if isinstance(each, BrokerUnavailable)) < 4_000
    for each in held:
        each.exception()
    with pytest.raises(BrokerUnavailable, match="dropped"):
        failures.raise_first()


def test_any_number_of_failures_can_be_taken():
    failures = Failures()
    held = [failed(failures, "held") for _ in range(5_000)]
    for each in held:
        each.exception()
    failures.raise_first()


def test_futures_may_be_dropped_while_their_failures_are_tidied_up():
    """Each holder is asked once: it may be there at one time, and gone at the next."""
    failures = Failures()
    for _ in range(1024):
        holders = iter([object()])
        failure = Failure(BrokerUnavailable("dropped"), lambda holders=holders: next(holders, None))
        failures.note(failure)
    with pytest.raises(BrokerUnavailable, match="dropped"):
        failures.raise_first()
