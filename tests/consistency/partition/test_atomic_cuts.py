"""Atomic cuts against a search through all of them. Extents kept up against extents derived."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Kind
from spark_stream.consistency.partition import atomic_cuts
from spark_stream.consistency.partition.atomic_cuts import Spans, greatest_cut, least_cut, next_cut
from tests.examples import examples

Records = list[int]
"""Of one partition: the transaction of each record by offset. -1: none."""


ENDLESS = 1 << 30


@pytest.fixture(params=[0, 1, ENDLESS], ids=["by clusters", "a step, then by clusters", "by steps"])
def steps_max(request, monkeypatch):
    """The steps that are taken before the rest goes by clusters: each way finds the same cuts."""
    monkeypatch.setattr(atomic_cuts, "_STEPS_MIN", request.param)
    monkeypatch.setattr(atomic_cuts, "_STEP_EXTENTS", ENDLESS)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that few transactions already lie in several blocks."""
    monkeypatch.setattr(atomic_cuts, "_RECENT_MAX", 3)


def spans_of(records: Records) -> Spans:
    spans = Spans()
    for offset, transaction in enumerate(records):
        if transaction >= 0:
            spans.on_appended(transaction, 100 + transaction, offset, offset)
    return spans


def snapshots(partitions: list[Records]):
    return [spans_of(records).snapshot() for records in partitions]


def is_atomic(cut, partitions: list[Records], lower=None) -> bool:
    """Whether no transaction lies on both sides. What is below ``lower`` is not looked at."""
    lower = lower or [0] * len(cut)
    below, above = set(), set()
    for end, start, records in zip(cut, lower, partitions, strict=True):
        below |= {each for each in records[start:end] if each >= 0}
        above |= {each for each in records[max(start, end) :] if each >= 0}
    return not below & above


def all_cuts(low, high):
    return itertools.product(
        *(range(first, last + 1) for first, last in zip(low, high, strict=True))
    )


partitions = st.lists(st.lists(st.integers(-1, 5), min_size=0, max_size=6), min_size=1, max_size=3)


@st.composite
def bounded(draw):
    found = draw(partitions)
    return found, [draw(st.integers(0, len(records))) for records in found]


@pytest.mark.rule(
    "no `read_atomic` read has a part of a transaction: it stops at an atomic cut",
    "consistency/partition/atomic_cuts.py",
    "scripts/readers.py",
)
@pytest.mark.usefixtures("small_blocks", "steps_max")
@settings(max_examples=examples(250), deadline=None)
@given(bounded())
def test_greatest_cut_equals_a_search_through_all_cuts(drawn):
    found, bounds = drawn
    cut = greatest_cut(bounds, snapshots(found)).tolist()
    sound = [each for each in all_cuts([0] * len(bounds), bounds) if is_atomic(each, found)]
    assert tuple(cut) in sound
    assert cut == np.max(sound, axis=0).tolist()


@pytest.mark.usefixtures("small_blocks", "steps_max")
@settings(max_examples=examples(250), deadline=None)
@given(bounded(), st.data())
def test_least_cut_equals_a_search_through_all_cuts(drawn, data):
    found, bounds = drawn
    spans = snapshots(found)
    limit = greatest_cut(bounds, spans).tolist()
    floors = [data.draw(st.integers(0, each)) for each in limit]
    cut = least_cut(floors, limit, spans).tolist()
    sound = [each for each in all_cuts(floors, limit) if is_atomic(each, found)]
    assert tuple(cut) in sound
    assert cut == np.min(sound, axis=0).tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks", "steps_max")
@settings(max_examples=examples(250), deadline=None)
@given(bounded(), st.data())
def test_the_next_cut_makes_progress(drawn, data):
    found, bounds = drawn
    spans = snapshots(found)
    lower = [data.draw(st.integers(0, each)) for each in bounds]
    upper = [data.draw(st.integers(0, len(records))) for records in found]
    cut = next_cut(lower, upper, bounds, spans).tolist()
    assert all(low <= each <= bound for low, each, bound in zip(lower, cut, bounds, strict=True))
    assert is_atomic(cut, found, lower)
    if (np.array(upper) <= lower).all():
        assert cut == lower
    elif bounds == [len(records) for records in found]:
        assert cut != lower  # all is decided


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks", "steps_max")
@settings(max_examples=examples(250), deadline=None)
@given(bounded(), st.data())
def test_from_an_atomic_cut_the_next_one_is_the_greatest_within_the_limit(drawn, data):
    found, bounds = drawn
    spans = snapshots(found)
    lower = greatest_cut([data.draw(st.integers(0, each)) for each in bounds], spans).tolist()
    upper = [data.draw(st.integers(low, len(each))) for low, each in zip(lower, found, strict=True)]
    cut = next_cut(lower, upper, bounds, spans).tolist()
    within = greatest_cut(np.minimum(upper, bounds), spans).tolist()
    if within != lower:
        assert cut == within
    elif upper != lower:
        greatest = greatest_cut(bounds, spans).tolist()
        assert cut != lower or greatest == lower
        target = np.minimum(upper, greatest)
        if (target > lower).any():
            assert cut == least_cut(target, greatest, spans).tolist()


@dataclass
class Written:
    """A partition's entries in the making."""

    rows: list[tuple[int, int, int, Kind]]  # transaction, producer id, count, kind

    def tables(self, split: int):
        table = np.zeros(len(self.rows), ENTRY)
        offset = 0
        for number, (transaction, producer, count, kind) in enumerate(self.rows):
            row = table[number]
            row["entry_index"], row["base_offset"], row["count"] = number, offset, count
            row["transaction"], row["producer_id"], row["kind"] = transaction, producer, kind
            offset += count
        return [table[:split], table[split:]]


def extents(spans: Spans) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for block in spans.snapshot().blocks:
        columns = (block.transactions, block.producers, block.firsts, block.lasts)
        for number, producer, first, last in zip(*(each.tolist() for each in columns), strict=True):
            low, high = found.get((number, producer), (first, last))
            found[number, producer] = (min(low, first), max(high, last))
    return found


steps = st.lists(
    st.tuples(st.integers(-1, 8), st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=40
)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=examples(400), deadline=None)
@given(steps, st.integers(0, 40), st.integers(0, 30), st.booleans())
def test_maintained_extents_equal_derived_ones(taken, split, gone, look):
    written, spans, ended = Written([]), Spans(), set()
    offset = 0
    for transaction, branch, count, commits in taken:
        key = (transaction, 10 * transaction + branch)
        if transaction < 0 or key in ended:
            written.rows.append((-1, -1, count + 1, Kind.DATA))
            offset += count + 1
        elif count:
            written.rows.append((*key, count, Kind.DATA))
            spans.on_appended(*key, offset, offset + count - 1)
            offset += count
        else:
            ended.add(key)
            written.rows.append((*key, 0, Kind.COMMIT if commits else Kind.ABORT))
            if not commits:
                spans.on_aborted(*key)
        if look:
            spans.snapshot()
    derived = Spans.derived(written.tables(min(split, len(written.rows))))
    assert extents(spans) == extents(derived)
    for each in (spans, derived):
        each.on_evicted(gone)
    kept = {key: (max(gone, low), high) for key, (low, high) in extents(spans).items()}
    # After a partial removal, the rest may begin later than the whole.
    for found in (extents(spans), extents(derived)):
        assert {key: last for key, (_, last) in found.items()} == {
            key: last for key, (_, last) in kept.items() if last >= gone
        }
        assert all(first >= gone for first, _ in found.values())


@pytest.mark.usefixtures("small_blocks")
def test_a_snapshot_does_not_change():
    spans = spans_of([1, 2, 1, 3, 4, 5, 6, 7])
    before = spans.snapshot()
    spans.on_aborted(1, 101)
    spans.on_appended(8, 108, 8, 8)
    spans.on_evicted(5)
    assert greatest_cut([2], [before]).tolist() == [0]
    assert greatest_cut([6], [spans.snapshot()]).tolist() == [6]


@pytest.mark.usefixtures("small_blocks", "steps_max")
def test_the_cut_does_not_move_while_transactions_overlap_without_end():
    overlapping = [0, *(each for k in range(1, 50) for each in (k, k - 1)), 49]
    spans = [spans_of(overlapping).snapshot()]
    assert greatest_cut([80], spans).tolist() == [0]
    assert greatest_cut([100], spans).tolist() == [100]
    assert next_cut([0], [10], [100], spans).tolist() == [100]


def crosswise(length: int, count: int, breaks: tuple[int, ...] = ()) -> list[Records]:
    """Each transaction overlaps the next one, but for breaks, in one partition: in turn in each."""
    found: list[Records] = [[] for _ in range(count)]
    for number in range(length):
        pair = (number, number + 1)
        found[number % count] += pair if number in breaks else (*pair, *pair)
    return found


@pytest.mark.usefixtures("small_blocks", "steps_max")
@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 6), st.integers(2, 3), st.sets(st.integers(0, 5), max_size=2), st.data())
def test_cuts_of_chains_across_partitions_equal_those_of_all_cuts(length, count, breaks, data):
    found = crosswise(length, count, tuple(breaks))
    spans = snapshots(found)
    bounds = [data.draw(st.integers(0, len(records))) for records in found]
    sound = [each for each in all_cuts([0] * count, bounds) if is_atomic(each, found)]
    greatest = greatest_cut(bounds, spans)
    assert greatest.tolist() == np.max(sound, axis=0).tolist()
    floors = [data.draw(st.integers(0, each)) for each in greatest.tolist()]
    sound = [each for each in sound if all(np.array(each) >= floors)]
    assert least_cut(floors, greatest, spans).tolist() == np.min(sound, axis=0).tolist()


@pytest.mark.parametrize("count", [2, 3, 16])
def test_a_chain_of_twenty_thousand_transactions_is_followed_to_its_end(count):
    """Each link is a separate step: there are 20,000 of them, twice."""
    middle, length = 10_000, 20_000
    found = crosswise(length, count, (middle,))
    spans = snapshots(found)
    ends = [len(records) for records in found]
    bounds = list(ends)
    bounds[(length - 1) % count] -= 1  # within the last two
    # The break parts its pair, so a cut may lie between the two. Elsewhere between the pairs.
    cut = [4 * len(range(place, middle, count)) for place in range(count)]
    cut[middle % count] += 1
    assert greatest_cut(bounds, spans).tolist() == cut
    assert greatest_cut(ends, spans).tolist() == ends
    one = [1] + [0] * (count - 1)
    assert next_cut([0] * count, one, ends, spans).tolist() == cut
    assert least_cut(one, ends, spans).tolist() == cut
    beyond = [offset + 1 for offset in cut]
    assert next_cut(cut, beyond, ends, spans).tolist() == ends
    assert next_cut(cut, beyond, bounds, spans).tolist() == cut
