"""Sequences, the window and retries: a lane with a leader that may lose its state."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import (
    BrokerUnavailable,
    InvalidRecord,
    OutOfOrderSequence,
    RecordNotAttempted,
    UnknownOutcome,
)
from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import (
    JOINED_BYTES_MAX,
    Lane,
    Outgoing,
    ProducerIdentity,
    Settlement,
    Unacknowledged,
)
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.producers import (
    EPOCH_MAX,
    SEQUENCE_MAX,
    WINDOW,
    Accepted,
    Duplicate,
    ProducerState,
    Stamp,
)
from tests.examples import examples

ME = ProducerIdentity(7, 0)
ROW = pa.record_batch({"n": [1]})


def ignored(_: object) -> None:
    pass


def lane_of(count: int, first: int = 0, deadline: float = 1.0) -> Lane:
    lane = Lane()
    for number in range(first, first + count):
        lane.add(outgoing(number, deadline))
    return lane


def outgoing(number: int, deadline: float = 1.0) -> Outgoing:
    return Outgoing(ROW, 0, deadline, ignored, number=number)


def sent(lane: Lane, identity: ProducerIdentity | None = ME) -> list[Stamp]:
    """Return the stamps of all batches that the lane sends now."""
    found = []
    while (batch := lane.next(identity)) is not None:
        assert batch.stamp is not None
        found.append(batch.stamp)
    return found


def sequences(stamps: list[Stamp]) -> list[tuple[int, int]]:
    return [(stamp.epoch, stamp.sequence) for stamp in stamps]


def refused(sequence: int, expected: int) -> OutOfOrderSequence:
    return OutOfOrderSequence("", sequence=sequence, expected=expected)


def test_at_most_a_window_of_batches_is_in_flight():
    lane = lane_of(8)
    assert sequences(sent(lane)) == [(0, n) for n in range(WINDOW)]
    assert sent(lane) == []
    lane.pop()
    assert sequences(sent(lane)) == [(0, WINDOW)]


def test_a_retry_keeps_its_stamp():
    lane = lane_of(3)
    before = sent(lane)
    lane.on_lost()
    lane.add(outgoing(3))
    assert sent(lane)[:3] == before
    assert [lane.pop().number for _ in range(4)] == [0, 1, 2, 3]


def test_without_an_identity_only_stamped_batches_are_sent():
    lane = lane_of(2)
    assert sent(lane, None) == []
    assert lane.next(ME) is not None
    lane.on_lost()
    assert sequences(sent(lane, None)) == [(0, 0)]


def test_sequences_wrap_around_to_zero():
    lane = lane_of(3)
    lane.next(ME)
    lane.pop()
    lane._sequence = SEQUENCE_MAX
    assert sequences(sent(lane)) == [(0, SEQUENCE_MAX), (0, 0)]


def test_after_a_batch_was_given_up_a_new_epoch_follows_the_settled_rest():
    lane = lane_of(3)
    sent(lane)
    lane.add(outgoing(3, deadline=9.0))
    (first, *_) = lane.remove_expired(2.0)
    assert first.number == 0
    assert len(lane) == 1  # the others have the same deadline
    lane.on_lost()
    assert sequences(sent(lane)) == [(1, 0)]

    lane = lane_of(1)
    for number in (1, 2):
        lane.add(outgoing(number, deadline=9.0))
    sent(lane)
    lane.add(outgoing(3, deadline=9.0))
    assert [each.number for each in lane.remove_expired(2.0)] == [0]
    lane.on_lost()
    assert sequences(sent(lane)) == [(0, 1), (0, 2)]  # the new one waits for these
    lane.pop()
    assert sent(lane) == []
    lane.pop()
    assert sequences(sent(lane)) == [(1, 0)]


def test_an_unsent_batch_is_given_up_without_a_gap():
    lane = lane_of(WINDOW, deadline=9.0)
    sent(lane)
    for _ in range(WINDOW):
        lane.pop()
    lane.add(outgoing(5, deadline=1.0))
    assert len(lane.remove_expired(2.0)) == 1
    lane.add(outgoing(6))
    assert sequences(sent(lane)) == [(0, WINDOW)]


def test_later_batches_get_new_stamps_after_a_refusal_that_the_leader_lost():
    lane = lane_of(4)
    stamps = sent(lane)
    lane.pop()
    assert lane.can_restamp(refused(stamps[1].sequence, 0))
    lane.restamp()
    assert sequences(sent(lane)) == [(1, 0), (1, 1), (1, 2)]


def test_a_batch_that_may_be_in_the_log_keeps_its_stamp():
    lane = lane_of(2)
    lane.add(outgoing(2, deadline=9.0))
    sent(lane)
    assert not lane.can_restamp(refused(0, 0))
    lane.pop()
    assert not lane.can_restamp(refused(1, 5))  # the leader has it already
    lane.remove_expired(2.0)
    lane.on_lost()
    sent(lane)
    assert not lane.can_restamp(refused(2, 1))  # the previous one may still arrive


def test_a_batch_that_an_earlier_leader_may_have_keeps_its_stamp():
    """It may lead again with its log. Then a batch with another stamp would be a duplicate."""
    lane = lane_of(3)
    sent(lane)
    lane.on_lost()  # its answers, which alone show its appends
    stamps = sent(lane)
    lane.pop()  # the new leader has refused it, and a later leader has lost that state
    assert not lane.can_restamp(refused(stamps[1].sequence, 0))


def test_a_batch_may_be_in_the_log_unless_each_sending_was_refused():
    """So its outcome is certain only if each broker refused it as a non-leader."""
    lane = lane_of(2)
    first, second = lane.next(ME), lane.next(ME)
    assert first is not None
    assert second is not None
    for number, batch in enumerate((first, second), 10):
        batch.number = number
    lane.on_refused(10)
    assert (first.unanswered, second.unanswered) == (0, 1)
    lane.on_lost()
    assert lane.next(ME) is first
    first.number = 20
    lane.on_refused(10)  # it was reported already
    assert first.unanswered == 1
    lane.on_refused(20)
    assert first.unanswered == 0


def test_batches_of_a_transaction_keep_their_stamps():
    lane = lane_of(3)
    mine = ProducerIdentity(7, 3, transaction=11)
    stamps = sent(lane, mine)
    assert [stamp.transaction for stamp in stamps] == [11] * 3
    lane.pop()
    assert not lane.can_restamp(refused(1, 0))
    lane.add(outgoing(4, deadline=9.0))
    lane.remove_expired(2.0)
    assert sequences(sent(lane, mine)) == [(3, 3)]
    lane.pop()
    lane.add(outgoing(5))
    assert sequences(sent(lane, ProducerIdentity(7, 4, transaction=12))) == [(4, 0)]


@pytest.mark.parametrize("transaction", [None, 5])
def test_after_the_last_epoch_another_producer_id_is_requested(transaction):
    lane = lane_of(1)
    lane.add(outgoing(1, deadline=9.0))
    last = ProducerIdentity(7, EPOCH_MAX, transaction)
    lane.next(last)
    lane.remove_expired(2.0)
    lane.on_lost()
    if transaction is not None:
        assert not lane.used_up(last)
        return
    assert lane.next(last) is None
    assert lane.used_up(last)
    assert not lane.used_up(None)
    assert sequences(sent(lane, ProducerIdentity(8, 0))) == [(0, 0)]


@pytest.mark.rule(
    "a retried batch is deduplicated: it is in the log once (idempotent producer)",
    "consistency/partition/producers.py",
    "client/writing/lanes.py",
)
@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from("awwwdlrfe"), max_size=60))
def test_batches_are_neither_duplicated_nor_lost_nor_reordered(events):
    """add · write (to the stream) · deliver · lose the connection · refuse · forget · expire.

    ``stream`` has the sent and undelivered batches. Those of a lost connection arrive late.
    """
    lane, state, log = Lane(), None, []
    stream: deque[tuple[int, Stamp, int]] = deque()
    late: deque[tuple[int, Stamp]] = deque()
    acknowledged, unknown, number, added, refusing = [], set(), 0, 0, False

    def taken(value: int, stamp: Stamp, keep: bool = True) -> object:
        nonlocal state
        verdict = producers.judge(state, stamp, int(keep))
        if isinstance(verdict, Accepted):
            state = producers.appended(state, stamp, len(log), int(keep), 0)
            if keep:
                log.append(value)
        return verdict

    def answer(value: int, stamp: Stamp, sending: int, keep: bool) -> None:
        verdict = taken(value, stamp, keep)
        head = lane.head(sending)
        if head is None:
            return
        if isinstance(verdict, Accepted | Duplicate):
            lane.pop()
            if keep or isinstance(verdict, Duplicate):
                acknowledged.append(value)
            return
        error = refused(stamp.sequence, verdict.expected)
        if verdict.reason is not producers.RefusalReason.FENCED and lane.can_restamp(error):
            lane.restamp()
        else:
            lane.pop()
            unknown.add(value)

    for event in events + ["w", "d"] * 200:
        if event == "a":
            batch = outgoing(-1, deadline=1.0)
            batch.partition = added  # its number in this test
            lane.add(batch)
            added += 1
        elif event == "w":
            batch = lane.next(ME)
            if batch is not None:
                assert batch.stamp is not None
                batch.number, number = number, number + 1
                stream.append((batch.partition, batch.stamp, batch.number))
        elif event == "d" and stream:
            answer(*stream.popleft(), keep=not refusing)
            refusing = False
        elif event == "d" and late:
            taken(*late.popleft())
        elif event == "l":
            late.extend((value, stamp) for value, stamp, _ in stream)
            stream.clear()
            lane.on_lost()
        elif event == "r":
            refusing = bool(stream)
        elif event == "f" and state is not None:
            stream.clear()  # a restart: batches in flight are lost
            late.clear()
            lane.on_lost()
            last = state.recent[-1].sequence if state.recent else -1
            state = ProducerState(state.epoch, last, state.recent) if state.recent else None
        elif event == "e" and lane.sent:
            head = lane._batches[0]
            head.deadline = 0.0
            (given_up,) = lane.remove_expired(0.5)
            unknown.add(given_up.partition)
            late.extend((value, stamp) for value, stamp, _ in stream)
            stream.clear()
            lane.on_lost()
    assert len(lane) == 0
    assert log == sorted(set(log))
    assert acknowledged == sorted(set(acknowledged))
    assert set(acknowledged) <= set(log)
    assert set(log) - set(acknowledged) <= unknown


# -- joined small batches ---------------------------------------------------------------


def small(rows: int, told: list[Settlement], joins: int = 8) -> Outgoing:
    batch = pa.record_batch({"n": list(range(rows))})
    return Outgoing(batch, 0, 1.0, told.append, joins=joins)


def test_batches_that_wait_for_the_window_are_joined_in_order():
    lane, told = Lane(), []
    for rows in range(1, WINDOW + 4):
        lane.add(small(rows, told))
        if rows <= WINDOW:
            assert lane.next(ME) is not None
    lane.add(small(2, told, joins=0))
    assert lane.next(ME) is None
    lane.pop().settle_all(Written("t", 0, 0, 1))
    together = lane.next(ME)
    assert together is not None
    assert together.stamp is not None
    assert together.stamp.sequence == WINDOW
    expected = [number for rows in (6, 7, 8) for number in range(rows)]
    assert together.whole().column("n").to_pylist() == expected
    assert together.rows == len(expected)
    assert len(lane) == WINDOW + 1
    together.settle_all(Written("t", 0, 100, together.rows))
    written = [(0, 1), (100, 6), (106, 7), (113, 8)]
    assert told == [Written("t", 0, offset, rows) for offset, rows in written]


def test_large_and_stamped_batches_are_not_joined():
    lane, told = Lane(), []
    for joins in (8, 0, JOINED_BYTES_MAX, 8, 8):
        lane.add(small(1, told, joins))
    assert [len(batch.others) for batch in iter(lambda: lane.next(ME), None)] == [0, 0, 0, 1]
    lane.on_lost()  # they keep their stamps, and so their rows
    lane.add(small(1, told))
    again = list(iter(lambda: lane.next(ME), None))
    assert [len(batch.others) for batch in again] == [0, 0, 0, 1, 0]
    assert [batch.stamp.sequence for batch in again if batch.stamp] == [0, 1, 2, 3, 4]


def test_batches_with_distant_deadlines_are_not_joined():
    lane, told = Lane(), []
    for deadline in (1.0, 1.5, 2.5, 2.6):
        batch = small(1, told)
        batch.deadline = deadline
        lane.add(batch)
    assert [len(batch.others) for batch in iter(lambda: lane.next(ME), None)] == [1, 1]


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_each_joined_batch_gets_the_outcome_of_its_rows(sizes, data):
    """The answer is an invalid record (after a changed setting), another error, or none."""
    told: list[Settlement] = []
    first = small(sizes[0], told)
    first.others = [small(rows, told) for rows in sizes[1:]]
    total = sum(sizes)
    bad = data.draw(st.integers(0, total - 1))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    details = {"kept": bad, "offset": 50 if bad else None, "record": bad}
    kept = Written("t", 3, 50, bad) if bad else None
    first.settle_all(Unacknowledged(InvalidRecord("x", **details), kept))
    for start, rows, settlement in zip(starts, sizes, told, strict=True):
        if start + rows <= bad:
            assert settlement == Written("t", 3, 50 + start, rows)
            continue
        assert isinstance(settlement, Unacknowledged)
        error, before = settlement.error, bad - start
        if before < 0:
            assert isinstance(error, RecordNotAttempted)
            assert (error.kept, settlement.kept) == (0, None)
        else:
            assert isinstance(error, InvalidRecord)
            assert error.kept == error.details["record"] == before
            assert error.offset == (50 + start if before else None)
            assert settlement.kept == (Written("t", 3, 50 + start, before) if before else None)
    told.clear()
    first.settle_all(Unacknowledged(UnknownOutcome("x", count=total, offset=50)))
    told_of = [(each.error.offset, each.error.details["count"], each.kept) for each in told]
    assert told_of == [(50 + start, rows, None) for start, rows in zip(starts, sizes, strict=True)]
    told.clear()
    first.settle_all(Unacknowledged(BrokerUnavailable("gone")))
    assert [(type(each.error), each.kept) for each in told] == [(BrokerUnavailable, None)] * len(
        sizes
    )


def test_joined_batches_of_a_transaction_fail_with_one_refused_record():
    """There a message is kept completely or not at all. Only the batch with the record is wrong."""
    told: list[Settlement] = []
    first = small(2, told)
    first.others = [small(2, told), small(2, told)]
    first.settle_all(Unacknowledged(InvalidRecord("x", kept=0, offset=None, record=3)))
    kinds = [RecordNotAttempted, InvalidRecord, RecordNotAttempted]
    assert [(type(each.error), each.kept) for each in told] == [(kind, None) for kind in kinds]
    assert told[1].error.details["record"] == 1
