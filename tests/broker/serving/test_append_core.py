"""The rules of a stream of appends: order, answers, limits, queues, joins and deadlines."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import InvalidRequest
from spark_stream.broker.serving import append_core as module
from spark_stream.broker.serving.append_core import QUEUED_BYTES_MAX, AppendStreamCore, BatchPlace
from tests.examples import examples

Core = AppendStreamCore[int, int]
"""A core whose frames and batches are numbers."""


def taken(core: Core, frame: int, partition: int = 0, deadline: float = 60.0) -> BatchPlace[int]:
    """Receive and take a frame. Return the place of its batch."""
    core.receive(frame)
    assert core.begin_taking()
    assert core.next_frame() == frame
    assert core.next_frame() is None
    return core.add(partition, frame, deadline)


def send_all(core: Core) -> list[bytes]:
    sent = list(core.outbox)
    core.on_sent(len(sent))
    return sent


@pytest.fixture
def core() -> Core:
    return opened()


def opened() -> Core:
    found: Core = AppendStreamCore()
    assert found.next_frame() is None  # the opening of the stream ends
    return found


def test_frames_are_taken_once_in_order_by_one_thread(core):
    for number in range(3):
        core.receive(number)
    assert core.begin_taking()
    assert not core.begin_taking()
    assert [core.next_frame() for _ in range(4)] == [0, 1, 2, None]
    assert not core.begin_taking()
    core.receive(3)
    assert core.begin_taking()
    assert core.next_frame() == 3


def test_unsent_answers_apply_backpressure(core, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED_MAX", 2)
    places = [taken(core, number) for number in range(2)]
    core.receive(2)
    assert not core.begin_taking()
    core.answer(places[0], b"0")
    assert not core.begin_taking()  # the answer was not sent
    assert send_all(core) == [b"0"]
    assert core.begin_taking()


def test_queued_bytes_are_limited(core):
    for number in range(2):
        assert core.queue(taken(core, number, number), QUEUED_BYTES_MAX // 2)
    core.receive(2)
    assert not core.begin_taking()
    assert core.pop_first(core.first(0)) is None
    assert core.begin_taking()


def test_batches_of_a_partition_with_a_queue_are_queued_in_order(core):
    places = [taken(core, number) for number in range(3)]
    assert core.queue(places[0], 1)
    assert core.has_queue(0)
    assert not core.has_queue(1)
    assert not core.queue(places[1], 1)
    assert not core.queue(places[2], 1)
    assert core.first(0) is places[0]
    assert core.pop_first(places[0]) is places[1]
    assert core.pop_first(places[1]) is places[2]
    assert core.pop_first(places[2]) is None
    assert not core.has_queue(0)


def test_wait_for_a_held_partition_ends_once(core):
    place = taken(core, 0, deadline=5.0)
    core.queue(place, 1)
    first = core.hold(place)
    assert core.next_deadline() == 5.0
    assert core.resume(0, first)
    assert not core.resume(0, first)
    assert core.next_deadline() is None
    second = core.hold(place)
    assert not core.resume(0, first)
    assert core.expire(4.9) == []
    assert core.expire(5.0) == [place]
    assert not core.resume(0, second)
    core.pop_first(place)
    assert not core.resume(0, second)


def test_waiting_batch_is_settled_once(core):
    place = taken(core, 0, deadline=5.0)
    core.wait(place)
    assert core.settle(place)
    assert not core.settle(place)
    assert core.expire(9.0) == []
    other = taken(core, 1, deadline=5.0)
    core.wait(other)
    assert core.expire(5.0) == [other]
    assert not core.settle(other)


def test_earliest_deadline_is_found_among_later_batches(core):
    early, late = taken(core, 0, 0, deadline=9.0), taken(core, 1, 1, deadline=5.0)
    core.wait(early)
    core.wait(late)
    assert core.next_deadline() == 5.0
    assert core.expire(6.0) == [late]
    assert core.next_deadline() == 9.0


def test_answered_batches_are_freed_while_an_earlier_one_waits(core):
    core.wait(taken(core, 0, 0))
    for number in range(1, 1000):
        place = taken(core, number, number, deadline=60.0 + number)
        core.wait(place)
        core.settle(place)
        core.answer(place, b"")
        send_all(core)
        core.next_deadline()
    assert len(core._deadlines) < 200


def test_repeatedly_held_queue_has_one_deadline(core):
    place = taken(core, 0)
    core.queue(place, 1)
    for _ in range(1000):
        assert core.resume(0, core.hold(place))
        core.hold(place)
        core.expire(1.0)
    assert len(core._deadlines) == 1


def test_next_group_of_joins_gathers_while_a_group_joins(core):
    places = [taken(core, number, number) for number in range(4)]
    for place in places:
        core.queue(place, 1)
    assert core.join(places[0])
    assert core.next_group() == [places[0]]
    assert [core.join(place) for place in places[1:]] == [False] * 3
    assert core.next_group() == places[1:]
    core.end()
    assert core.next_group() == []
    for place in places:
        core.pop_first(place)
        core.answer(place, b"")
    send_all(core)
    assert core.is_over


def test_partitions_without_unanswered_batches_use_no_memory(core):
    """A client may use any number of partitions, even of partitions that do not exist."""
    tracemalloc.start()
    for partition in range(2_000):
        core.answer(taken(core, partition, partition), b"")
        send_all(core)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


def test_failed_stream_takes_no_frames_and_answers_the_taken_ones_first(core):
    place = taken(core, 0)
    core.receive(1)
    core.fail(InvalidRequest("no"))
    core.fail(InvalidRequest("another"))
    core.receive(2)
    assert not core.begin_taking()
    assert not core.is_over
    core.answer(place, b"0")
    assert not core.is_over
    assert send_all(core) == [b"0"]
    assert core.is_over
    assert core.failure is not None
    assert core.failure.message == "no"


@dataclass
class Run:
    """The events of a stream, in any order that the rules permit."""

    core: Core = field(default_factory=opened)
    came: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    tried: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    held: dict[int, int] = field(default_factory=dict)
    working: set[int] = field(default_factory=set)
    waiting: list[BatchPlace[int]] = field(default_factory=list)
    frames: int = 0
    partition_of: dict[int, int] = field(default_factory=dict)
    taking: bool = False
    now: float = 0.0

    def receive(self, partition: int) -> None:
        self.partition_of[self.frames] = partition
        self.came[partition].append(self.frames)
        self.core.receive(self.frames)
        self.frames += 1

    def take(self, becomes: int) -> None:
        """Take a frame. ``becomes``: 0 answered, 1 waiting, 2 held partition."""
        if not self.taking:
            self.taking = self.core.begin_taking()
        if not self.taking:
            return
        frame = self.core.next_frame()
        if frame is None:
            self.taking = False
            return
        partition = self.partition_of[frame]
        place = self.core.add(partition, frame, self.now + 1 + frame % 3)
        if self.core.has_queue(partition) or becomes == 2:
            if self.core.queue(place, 1):
                self.working.add(partition)
        else:
            self._through(place, becomes)

    def work_off(self, becomes: int) -> None:
        for partition in sorted(self.working)[:1]:
            place = self.core.first(partition)
            if becomes == 2 and self.now < place.deadline:
                self.held[partition] = self.core.hold(place)
                self.working.discard(partition)
                return
            self._through(place, 0 if becomes == 2 else becomes)
            if self.core.pop_first(place) is None:
                self.working.discard(partition)

    def let_go(self) -> None:
        for partition, wait in list(self.held.items())[:1]:
            del self.held[partition]
            if self.core.resume(partition, wait):
                self.working.add(partition)

    def settle(self, which: int) -> None:
        if self.waiting:
            place = self.waiting.pop(which % len(self.waiting))
            if self.core.settle(place):
                self._answer(place)

    def pass_time(self) -> None:
        self.now += 1
        for place in self.core.expire(self.now):
            if self.core.has_queue(place.partition) and (self.core.first(place.partition) is place):
                self.working.add(place.partition)
            else:
                self._answer(place)

    def send(self) -> None:
        for answer in send_all(self.core):
            number = int(answer)
            self.sent[self.partition_of[number]].append(number)

    def _through(self, place: BatchPlace[int], becomes: int) -> None:
        self.tried[place.partition].append(place.work)
        if becomes == 1:
            self.core.wait(place)
            self.waiting.append(place)
        else:
            self._answer(place)

    def _answer(self, place: BatchPlace[int]) -> None:
        self.core.answer(place, str(place.work).encode())


EVENTS = st.one_of(
    st.tuples(st.just("receive"), st.integers(0, 2)),
    st.tuples(st.just("take"), st.integers(0, 2)),
    st.tuples(st.just("work_off"), st.integers(0, 2)),
    st.tuples(st.just("settle"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["let_go", "pass_time", "send"])),
)


@pytest.mark.rule(
    "the order and the limits of a stream's appends and acknowledgements",
    "broker/serving/append_core.py",
)
@settings(max_examples=examples(1_000))
@given(st.lists(EVENTS, max_size=60))
def test_each_batch_is_tried_and_answered_once_in_the_order_of_its_partition(events):
    run = Run()
    for name, *more in events:
        getattr(run, name)(*more)
    run.core.end()
    for _ in range(10 * run.frames + 10):
        run.take(0)
        run.let_go()
        run.work_off(0)
        run.settle(0)
        run.send()
    assert run.core.is_over
    assert run.tried == run.came
    assert run.sent == run.came
    assert run.core.next_deadline() is None
