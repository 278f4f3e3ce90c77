"""Outcomes of batched records in their futures, at any time of their use."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError, Future, as_completed, wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import BrokerUnavailable, InvalidRecord, RecordNotAttempted
from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import Unacknowledged
from spark_stream.client.writing.promises import Failures, Outcomes, RecordPromise
from tests.examples import examples


def sent(rows: int, failures: Failures | None = None) -> tuple[Outcomes, list[RecordPromise]]:
    outcomes = Outcomes(failures or Failures())
    return outcomes, [RecordPromise(outcomes, row) for row in range(rows)]


def written(rows: int, offset: int = 0, partition: int = 0) -> Written:
    return Written("t", partition, offset, rows)


def refused(kept: Written | None = None) -> Unacknowledged:
    count = kept.count if kept else 0
    details = {"kept": count, "offset": kept and kept.offset, "record": count}
    return Unacknowledged(InvalidRecord("bad", **details), kept)


def gone() -> Unacknowledged:
    return Unacknowledged(BrokerUnavailable("gone"))


@pytest.mark.rule("creation and outcome of a record's future", "client/writing/promises.py")
@settings(max_examples=examples(80))
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 3)),
    st.data(),
)
def test_each_row_has_the_outcome_of_its_place_in_its_part(places, looked_early, failing, data):
    failures = Failures()
    outcomes, promises = sent(len(places), failures)
    watched = [promises[row] for row in looked_early if row < len(promises)]
    half = len(watched) // 2
    assert not any(each.done() for each in watched[:half])
    parts = [np.flatnonzero(np.array(places) == number) for number in sorted(set(places))]
    outcomes.spread(parts)
    assert not any(each.done() for each in watched[half:])
    order = data.draw(st.permutations(range(len(parts))))
    for number in order:
        rows = parts[number]
        whole = written(len(rows), 100 * number, 10 + number)
        half = replace(whole, count=len(rows) // 2)
        failed = refused(half if half.count else None)
        assert failures.unsettled == {outcomes}
        outcomes.settle(number, len(rows), failed if number in failing else whole)
    assert not failures.unsettled
    for number, rows in enumerate(parts):
        kept = len(rows) // 2 if number in failing else len(rows)
        for place, row in enumerate(rows.tolist()):
            promise = promises[row]
            assert promise.done()
            if place < kept:
                assert promise.result(0) == Written("t", 10 + number, 100 * number + place)
            else:
                kind = InvalidRecord if place == kept else RecordNotAttempted
                assert isinstance(promise.exception(0), kind)


def test_a_record_promise_works_with_all_waiting_functions():
    outcomes, (first, second, third) = sent(3)
    assert isinstance(first, Future)
    assert "pending" in repr(first)
    told = threading.Event()
    second.add_done_callback(lambda each: told.set() if each.result().offset == 8 else None)
    threading.Timer(0.05, outcomes.settle, (0, 3, written(3, 7, 1))).start()
    assert [each.result().offset for each in as_completed([first], 20)] == [7]
    assert told.wait(20)
    assert wait([first, second, third], 20).not_done == set()
    assert third.result(0) == Written("t", 1, 9)
    with pytest.raises(AttributeError, match="no attribute 'offset'"):
        _ = first.offset


def test_a_record_promise_can_be_awaited_by_a_coroutine():
    outcomes, (promise,) = sent(1)

    async def waiting() -> Written:
        future = asyncio.wrap_future(promise)
        outcomes.settle(0, 1, written(1, 5))
        return await asyncio.wait_for(future, 20)

    assert asyncio.run(waiting()).offset == 5


def test_a_cancelled_record_promise_does_not_affect_the_others():
    outcomes, (cancelled, other) = sent(2)
    assert cancelled.cancel()
    outcomes.settle(0, 2, written(2))
    with pytest.raises(CancelledError):
        cancelled.result(0)
    assert other.result(0).offset == 1
    assert not other.cancel()


def test_flush_raises_the_first_unread_failure():
    failures = Failures()
    outcomes, promises = sent(3, failures)
    early = promises[0]
    assert not early.done()
    outcomes.settle(0, 3, refused())
    with pytest.raises(InvalidRecord):
        early.result(0)
    with pytest.raises(RecordNotAttempted):
        failures.raise_first()
    failures.raise_first()


def test_a_failure_read_from_all_futures_counts_as_reported():
    failures = Failures()
    outcomes, promises = sent(2, failures)
    outcomes.settle(0, 2, gone())
    assert [each.exception(0).message for each in promises] == ["gone", "gone"]
    failures.raise_first()


def test_failures_of_collected_futures_are_dropped():
    failures = Failures()
    for _ in range(20_000):
        outcomes, _ = sent(1, failures)
        outcomes.settle(0, 1, gone())
    del outcomes, _
    gc.collect()
    assert sum(1 for each in gc.get_objects() if isinstance(each, BrokerUnavailable)) < 4_000
    with pytest.raises(BrokerUnavailable):
        failures.raise_first()


@pytest.mark.parametrize("rows", [1, 50])
def test_futures_used_during_settlement_get_their_outcomes(rows):
    """Many threads use the same futures while these are settled."""
    for _ in range(30):
        outcomes, promises = sent(rows)
        barrier, found = threading.Barrier(4), []

        def look(promises=promises, barrier=barrier, found=found) -> None:
            barrier.wait()
            found.extend(each.result(20).offset for each in promises)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        outcomes.settle(0, rows, written(rows))
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted(list(range(rows)) * 3)
