"""A failure is reported once: by its future, or else by the flush."""

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


def test_an_error_read_from_its_future_is_not_raised_by_flush():
    failures = Failures()
    assert failed(failures, "a").exception().message == "a"
    with pytest.raises(BrokerUnavailable, match="b"):
        failed(failures, "b").result()
    failures.raise_first()


def test_an_unread_error_is_raised_once():
    failures = Failures()
    looked, _other, _third = (failed(failures, name) for name in "abc")
    looked.exception()
    with pytest.raises(BrokerUnavailable, match="b"):
        failures.raise_first()
    failures.raise_first()


def test_waits_and_callbacks_do_not_report_an_error():
    failures = Failures()
    promise = failed(failures, "a")
    wait([promise])
    promise.add_done_callback(lambda future: future.done())
    with pytest.raises(BrokerUnavailable):
        failures.raise_first()


def test_reading_an_unsettled_future_does_not_report_its_error():
    failures = Failures()
    promise = Promise(failures)
    with pytest.raises(TimeoutError):
        promise.exception(0)
    promise.settle(RecordTooLarge("x"))
    with pytest.raises(RecordTooLarge):
        failures.raise_first()


def test_the_first_failure_is_kept_after_its_report():
    failures = Failures()
    failed(failures, "a").exception()
    failed(failures, "b")
    assert failures.first.message == "a"
    failures.clear()
    assert failures.first is None
    failures.raise_first()


def test_failures_of_collected_futures_are_dropped():
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


def test_any_number_of_failures_can_be_reported():
    failures = Failures()
    held = [failed(failures, "held") for _ in range(5_000)]
    for each in held:
        each.exception()
    failures.raise_first()


def test_futures_may_be_dropped_while_their_failures_are_tidied_up():
    """Each holder is checked once, because it may be collected between two checks."""
    failures = Failures()
    for _ in range(1024):
        holders = iter([object()])
        failure = Failure(BrokerUnavailable("dropped"), lambda holders=holders: next(holders, None))
        failures.add(failure)
    with pytest.raises(BrokerUnavailable, match="dropped"):
        failures.raise_first()
