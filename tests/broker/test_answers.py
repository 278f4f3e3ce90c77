"""A stream's answers: those of a partition leave in the order of its batches, one at a time."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.broker import answers as module
from spark_stream.broker.answers import Answers

Batches = list[tuple[int, int]]
"""(partition, number) of each batch, in the order in which they came."""


@st.composite
def done_in_any_order(draw: st.DrawFn) -> tuple[Batches, Batches]:
    """Batches as they came, and as they were done."""
    partitions = draw(st.lists(st.integers(0, 2), max_size=12))
    came = [(partition, number) for number, partition in enumerate(partitions)]
    return came, draw(st.permutations(came))


@given(done_in_any_order())
def test_each_leaves_once_all_before_it_in_its_partition_are_done(given_batches):
    came, done = given_batches
    written: list[bytes] = []
    answers = Answers(written.append)
    places = {each: answers.next_place(each[0]) for each in came}
    left: Batches = []
    for count, each in enumerate(done, start=1):
        places[each](repr(each).encode())
        ready = set(done[:count])
        due = [
            one for one in came if {two for two in came if two <= one and two[0] == one[0]} <= ready
        ]
        left += sorted(set(due) - set(left))
        assert written == [repr(one).encode() for one in left]
    assert sorted(left) == sorted(came)


def test_of_partitions_without_unanswered_batches_nothing_is_kept():
    """A client may name any number, of partitions that there are not too."""
    answers = Answers(lambda _: None)
    tracemalloc.start()
    for partition in range(2_000):
        answers.next_place(partition)(b"")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


def test_one_thread_at_a_time_writes_and_none_overtakes() -> None:
    written: list[bytes] = []
    inside = threading.Lock()

    def write(message: bytes) -> None:
        assert inside.acquire(blocking=False)
        written.append(message)
        inside.release()

    answers = Answers(write)
    count, threads = 400, 4
    places = [answers.next_place(0) for _ in range(count)]

    def give(first: int) -> None:
        for number in reversed(range(first, count, threads)):
            places[number](b"%d" % number)

    givers = [threading.Thread(target=give, args=(first,)) for first in range(threads)]
    for each in givers:
        each.start()
    for each in givers:
        each.join()
    answers.raise_failure()
    assert written == [b"%d" % number for number in range(count)]


def test_after_a_failed_write_nothing_is_written_and_everything_counts_as_answered(monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED_MAX", 2)
    tried: list[bytes] = []

    def write(message: bytes) -> None:
        tried.append(message)
        raise ValueError("gone")

    answers = Answers(write)
    for number in range(5):
        answers.next_place(0)(b"%d" % number)
    assert tried == [b"0"]
    with pytest.raises(ValueError, match="gone"):
        answers.raise_failure()


def test_a_stream_with_too_many_unanswered_batches_is_slowed(monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED_MAX", 2)
    answers = Answers(lambda _: None)
    first = answers.next_place(0)
    answers.next_place(1)
    found: list[Callable[[bytes], None]] = []
    third = threading.Thread(target=lambda: found.append(answers.next_place(1)))
    third.start()
    third.join(0.1)
    assert not found
    first(b"")
    third.join(10)
    assert found
