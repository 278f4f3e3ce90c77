"""The judgement of stamped batches: duplicates, gaps, fencing, open transactions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Kind
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.producers import (
    ENDED_AGE,
    IDLE_AGE,
    SEQUENCE_MAX,
    WINDOW,
    Accepted,
    Duplicate,
    ProducerState,
    RefusalReason,
    RefusedBatch,
    Stamp,
    appended,
    derived,
    ended,
    expired,
    following,
    judge,
    surplus,
)

DAY = 24 * 3_600 * 1_000_000


def written(count: int, *, epoch: int = 0, first: int = 0, transaction: int = -1) -> ProducerState:
    """A producer that has written ``count`` batches of two records, from offset 100 on."""
    state = None
    sequence = first
    for number in range(count):
        if state is None and first:
            state = ProducerState(epoch, (first - 1) % (SEQUENCE_MAX + 1))
        stamp = Stamp(7, epoch, sequence, transaction)
        state = appended(state, stamp, 100 + 2 * number, 2, number)
        sequence = following(sequence)
    assert state is not None
    return state


def refusal(state: ProducerState | None, stamp: Stamp, records: int = 2) -> RefusalReason:
    verdict = judge(state, stamp, records)
    assert isinstance(verdict, RefusedBatch), verdict
    return verdict.reason


# -- sequences ------------------------------------------------------------------------------------


def test_a_producers_first_batch_has_sequence_0():
    assert judge(None, Stamp(7, 0, 0), 2) == Accepted()
    assert judge(None, Stamp(7, 0, 1), 2) == RefusedBatch(RefusalReason.GAP, 0)


@pytest.mark.rule(
    "a retried batch is deduplicated: it is in the log once (idempotent producer)",
    "consistency/partition/producers.py",
    "client/writing/lanes.py",
)
@pytest.mark.parametrize("back", range(WINDOW))
def test_retries_of_the_last_five_batches_get_their_original_offsets(back):
    state = written(8)
    assert judge(state, Stamp(7, 0, 7 - back), 2) == Duplicate(100 + 2 * (7 - back), 2)


def test_an_older_batch_than_the_window_is_refused():
    assert refusal(written(8), Stamp(7, 0, 7 - WINDOW)) is RefusalReason.TOO_OLD


def test_a_batch_with_a_kept_sequence_and_another_count_is_refused():
    assert refusal(written(3), Stamp(7, 0, 2), records=3) is RefusalReason.OTHER_BATCH


@given(st.integers(1, 1_000_000))
def test_a_gap_is_refused_naming_the_sequence_that_is_missing(ahead):
    assert judge(written(3), Stamp(7, 0, 3 + ahead), 2) == RefusedBatch(RefusalReason.GAP, 3)


def test_sequences_wrap_from_the_greatest_to_0_and_to_nothing_else():
    state = written(3, first=SEQUENCE_MAX - 2)
    assert state.last_sequence == SEQUENCE_MAX
    assert judge(state, Stamp(7, 0, 0), 2) == Accepted()
    for sequence in (1, 2, SEQUENCE_MAX - 3):
        assert isinstance(judge(state, Stamp(7, 0, sequence), 2), RefusedBatch)
    assert judge(state, Stamp(7, 0, SEQUENCE_MAX), 2) == Duplicate(104, 2)


def test_duplicates_are_detected_across_the_wrap():
    state = written(4, first=SEQUENCE_MAX - 1)
    assert [batch.sequence for batch in state.recent] == [SEQUENCE_MAX - 1, SEQUENCE_MAX, 0, 1]
    assert judge(state, Stamp(7, 0, SEQUENCE_MAX), 2) == Duplicate(102, 2)
    assert judge(state, Stamp(7, 0, 2), 2) == Accepted()


def of_records(first: int, count: int, epoch: int = 0) -> Stamp:
    """The stamp of a batch of a Kafka producer, whose sequences count records."""
    last = (first + count - 1) % (SEQUENCE_MAX + 1)
    return Stamp(7, epoch, last, first=first)


@given(
    st.sampled_from([0, SEQUENCE_MAX - 40]),
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.data(),
)
def test_sequences_of_records_are_judged_as_in_kafka(start, counts, data):
    """Each batch is followed by a duplicate of a recent one, and by batches that do not fit."""
    state = ProducerState(0, (start - 1) % (SEQUENCE_MAX + 1)) if start else None
    first, offset = start, 0
    written_before: list[tuple[Stamp, int, int]] = []
    for count in counts:
        stamp = of_records(first, count)
        assert judge(state, stamp, count) == Accepted()
        state = appended(state, stamp, offset, count, 0)
        written_before.append((stamp, offset, count))
        offset += count
        first = following(stamp.sequence)
        again, at, rows = data.draw(st.sampled_from(written_before[-WINDOW:]))
        assert judge(state, again, rows) == Duplicate(at, rows)
        gap = data.draw(st.integers(1, 1_000))
        late = of_records((first + gap) % (SEQUENCE_MAX + 1), 2)
        assert judge(state, late, 2) == RefusedBatch(RefusalReason.GAP, first)
    if len(written_before) > WINDOW:
        oldest, _, rows = written_before[-WINDOW - 1]
        assert refusal(state, oldest, rows) is RefusalReason.TOO_OLD


def test_a_batch_that_overlaps_the_last_one_is_refused():
    state = appended(None, of_records(0, 10), 0, 10, 0)
    assert refusal(state, of_records(5, 5), 5) is RefusalReason.OTHER_BATCH
    assert refusal(state, of_records(5, 10), 10) is RefusalReason.TOO_OLD
    assert judge(state, of_records(0, 3, epoch=1), 3) == Accepted()
    assert refusal(state, of_records(3, 3, epoch=1), 3) is RefusalReason.GAP


def test_a_refused_batch_uses_up_its_sequence():
    state = appended(written(3), Stamp(7, 0, 3), -1, 0, 9)
    assert judge(state, Stamp(7, 0, 4), 2) == Accepted()
    assert judge(state, Stamp(7, 0, 2), 2) == Duplicate(104, 2)


# -- epochs ---------------------------------------------------------------------------------------


def test_a_new_epoch_starts_at_0():
    state = written(3)
    assert judge(state, Stamp(7, 1, 0), 2) == Accepted()
    assert judge(state, Stamp(7, 1, 3), 2) == RefusedBatch(RefusalReason.GAP, 0)
    assert appended(state, Stamp(7, 1, 0), 200, 2, 9).recent == (producers.RecentBatch(0, 200, 2),)


def test_sequences_may_continue_over_epochs():
    """As those of a Kafka producer, whose transactions have an epoch each."""
    state = ended(written(3, epoch=4), 4, 9)

    def judged(
        sequence: int, epoch: int = 5, since: int = 4
    ) -> Accepted | Duplicate | RefusedBatch:
        return judge(state, Stamp(7, epoch, sequence, 70, None, since), 2)

    assert judged(3) == Accepted()
    assert judged(2) == Duplicate(Offset(104), 2)
    assert judged(0) == Duplicate(Offset(100), 2)
    assert judged(5) == RefusedBatch(RefusalReason.GAP, 3)
    assert judged(0, since=5) == Accepted()  # the sequences of another producer begin
    assert judged(3, since=5) == RefusedBatch(RefusalReason.GAP, 0)
    later = appended(state, Stamp(7, 5, 3, 70, None, 4), 200, 2, 9)
    assert later.recent == (producers.RecentBatch(3, 200, 2),)
    assert refusal(later, Stamp(7, 5, 2, 70, None, 4)) is RefusalReason.TOO_OLD
    assert judge(None, Stamp(7, 5, 9, 70, None, 4), 2) == Accepted()  # the state has expired


@pytest.mark.rule("a producer of an older epoch is fenced", "consistency/partition/producers.py")
def test_an_old_epoch_is_fenced():
    state = appended(written(3), Stamp(7, 4, 0), 200, 2, 9)
    assert refusal(state, Stamp(7, 3, 0)) is RefusalReason.FENCED
    assert refusal(state, Stamp(7, 0, 3)) is RefusalReason.FENCED


def test_a_marker_with_a_higher_epoch_is_adopted():
    state = ended(written(3), 5, 9)
    assert state.epoch == 5
    assert refusal(state, Stamp(7, 0, 3)) is RefusalReason.FENCED
    assert refusal(state, Stamp(7, 5, 0)) is RefusalReason.ENDED
    assert judge(state, Stamp(7, 6, 0), 2) == Accepted()


# -- transactions ---------------------------------------------------------------------------------


def test_a_write_outside_of_its_open_transaction_is_refused():
    assert refusal(written(2, transaction=40), Stamp(7, 0, 2)) is RefusalReason.OUTSIDE
    assert refusal(written(2, transaction=40), Stamp(7, 0, 2, 41)) is RefusalReason.ANOTHER
    assert refusal(written(2, transaction=40), Stamp(7, 1, 0, 41)) is RefusalReason.ANOTHER


def test_a_delayed_batch_after_the_marker_is_refused():
    state = ended(written(2, transaction=40), 0, 9)
    assert not state.open
    assert refusal(state, Stamp(7, 0, 2, 40)) is RefusalReason.ENDED
    assert refusal(state, Stamp(7, 0, 1, 40)) is RefusalReason.ENDED
    after = appended(state, Stamp(7, 1, 0, 41), 300, 2, 9)
    assert (after.transaction, after.first_offset) == (41, 300)
    assert refusal(after, Stamp(7, 0, 2, 40)) in (RefusalReason.FENCED, RefusalReason.ANOTHER)


def test_a_transaction_begins_where_its_first_kept_batch_is():
    state = appended(None, Stamp(7, 0, 0, 40), -1, 0, 1)
    assert not state.open
    state = appended(state, Stamp(7, 0, 1, 40), 50, 2, 2)
    state = appended(state, Stamp(7, 0, 2, 40), 60, 2, 3)
    assert (state.transaction, state.first_offset) == (40, 50)


# -- expiry ---------------------------------------------------------------------------------------


def test_only_producers_without_an_open_transaction_expire():
    assert not expired(written(2, transaction=40), 10**18, DAY)
    assert expired(written(2), 2 + DAY, DAY)
    assert not expired(written(2), 1 + DAY, DAY)


def test_an_ended_transactions_state_is_kept_for_the_longest_delay_of_a_request():
    state = ended(written(2, transaction=40), 0, 10)
    assert not expired(state, 10 + ENDED_AGE, DAY)
    assert expired(state, 11 + ENDED_AGE, DAY)


# -- derivation -----------------------------------------------------------------------------------


@st.composite
def histories(draw):
    """Entries as a leader would have taken them, and the states it then had."""
    states: dict[int, ProducerState] = {}
    rows, offset = [], 0
    for now in range(draw(st.integers(0, 60))):
        producer = draw(st.integers(0, 3))
        known = states.get(producer)
        if known is not None and known.open and draw(st.booleans()):
            kind = draw(st.sampled_from([Kind.COMMIT, Kind.ABORT]))
            rows.append((offset, producer, known.transaction, now, 0, -1, known.epoch, kind))
            states[producer] = ended(known, known.epoch, now)
            continue
        epoch = 0 if known is None else known.epoch
        transaction = -1 if known is None else known.transaction
        sequence = 0 if known is None else following(known.last_sequence)
        if known is None or (not known.open and (known.ended or draw(st.booleans()))):
            epoch, sequence = (0 if known is None else known.epoch + 1), 0
            transaction = draw(st.sampled_from([-1, 100 + now]))
        stamp = Stamp(producer, epoch, sequence, transaction)
        count = draw(st.integers(1, 3))
        assert judge(known, stamp, count) == Accepted()
        rows.append((offset, producer, transaction, now, count, sequence, epoch, Kind.DATA))
        states[producer] = appended(known, stamp, offset, count, now)
        offset += count
    table = np.zeros(len(rows), ENTRY)
    names = (
        "base_offset",
        "producer_id",
        "transaction",
        "appended",
        "count",
        "base_sequence",
        "producer_epoch",
        "kind",
    )
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        table[name] = column
    cut = draw(st.integers(0, len(rows)))
    return [table[:cut], table[cut:]], states


@given(histories())
def test_derived_producer_states_equal_the_leaders(history):
    tables, states = history
    assert derived(tables, 60, DAY) == states


@given(histories(), st.integers(0, 80))
def test_expired_producers_are_not_derived(history, age):
    tables, states = history
    now = 70
    kept = {each: state for each, state in states.items() if not expired(state, now, age)}
    assert derived(tables, now, age) == kept


def test_followers_accept_the_leaders_decisions():
    """Gaps (a refused batch used up its sequence) and falling epochs are not judged again."""
    table = np.zeros(4, ENTRY)
    table["producer_id"], table["transaction"], table["count"] = 7, -1, 1
    table["base_offset"] = range(4)
    table["base_sequence"], table["producer_epoch"] = [0, 5, 0, 9], [3, 3, 1, 1]
    assert derived([table], 0, DAY)[7] == ProducerState(
        1, 9, (producers.RecentBatch(0, 2, 1), producers.RecentBatch(9, 3, 1))
    )


def test_entries_without_a_producer_derive_no_producer():
    table = np.zeros(2, ENTRY)
    table["producer_id"] = -1
    assert derived([table], 0, DAY) == {}
    assert derived([], 0, DAY) == {}


@pytest.mark.rule(
    "the limit of a partition's producer states", "consistency/partition/producers.py"
)
def test_ended_and_idle_producers_make_room_for_new_ones():
    now = 10 * IDLE_AGE
    idle = {n: ProducerState(0, used=now - IDLE_AGE - n) for n in range(4)}
    busy = {n: ProducerState(0, used=now - IDLE_AGE + 1) for n in range(4, 8)}
    over = {n: ProducerState(0, ended=True, used=now - n) for n in range(8, 12)}
    within = {n: ProducerState(0, transaction=3, used=0) for n in range(12, 20)}
    states = idle | busy | over | within
    assert surplus(states, now, 30) == []
    assert surplus(states, now, 20) == [11, 10]
    assert set(surplus(states, now, 10)) == {*idle, *over}
    assert surplus(busy | within, now, 10) == []


def test_the_newest_producers_are_derived_from_a_long_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    table = np.zeros(30, ENTRY)
    table["producer_id"], table["appended"], table["count"] = range(30), range(30), 1
    table["transaction"] = -1
    table["transaction"][3] = 7
    assert set(producers.derived([table], 30, DAY)) == {3, *range(20, 30)}
