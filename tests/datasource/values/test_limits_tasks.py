"""Ranges to tasks: every record once, the minimum number of tasks, and few for few records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.datasource.values.limits import SHARED_RECORDS, Splitting, tasks
from spark_stream.datasource.values.offsets import Range

sizes = st.lists(st.integers(1, 200) | st.integers(1, 10**7), max_size=12)


def ranges_of(found: list[int]) -> list[Range]:
    return [
        Range("t", "id", number, 10 * number, 10 * number + size)
        for number, size in enumerate(found)
    ]


def joined(found: list[tuple[Range, ...]]) -> list[Range]:
    """Join the pieces to ranges."""
    whole: list[Range] = []
    for each in (piece for task in found for piece in task):
        if whole and (whole[-1].partition, whole[-1].end) == (each.partition, each.start):
            start = whole.pop().start
        else:
            start = each.start
        whole.append(Range("t", "id", each.partition, start, each.end))
    return whole


@pytest.mark.rule("the ranges of a Spark task", "datasource/values/limits.py")
@given(sizes, st.none() | st.integers(1, 40), st.none() | st.integers(100_000, 10**8))
def test_every_record_is_in_one_task_and_in_its_order(found, least, most):
    asked = ranges_of(found)
    made = tasks(asked, Splitting(least, most))
    assert joined(made) == asked
    assert all(piece.start < piece.end for task in made for piece in task)


@given(sizes, st.integers(1, 40))
def test_minimum_number_of_tasks_is_reached_if_there_are_as_many_records(found, least):
    made = tasks(ranges_of(found), Splitting(min_partitions=least))
    assert len(made) >= min(least, sum(found))


@given(st.lists(st.integers(1, 300), max_size=12), st.integers(1, 50))
def test_no_task_exceeds_the_maximum_of_records(found, most):
    made = tasks(ranges_of(found), Splitting(max_records=most))
    assert all(sum(each.end - each.start for each in task) <= most for task in made)


def test_a_split_is_in_proportion_to_the_sizes():
    made = tasks(ranges_of([900, 100]), Splitting(min_partitions=10))
    pieces = [(each.partition, each.end - each.start) for task in made for each in task]
    assert pieces == [(0, 100)] * 9 + [(1, 100)]


def test_small_ranges_share_a_task_and_large_ones_do_not():
    assert len(tasks(ranges_of([1] * 64), Splitting())) == 1
    assert len(tasks(ranges_of([SHARED_RECORDS] * 4), Splitting())) == 4
    assert [len(task) for task in tasks(ranges_of([10, 10, SHARED_RECORDS, 10]), Splitting())] == [
        *(2, 1, 1)
    ]


def test_a_piece_keeps_the_lineage_of_the_whole():
    whole = Range("t", "id", 0, 0, 10, lineage=((1, 10),))
    made = tasks([whole], Splitting(min_partitions=3))
    assert {each.lineage for task in made for each in task} == {((1, 10),)}
