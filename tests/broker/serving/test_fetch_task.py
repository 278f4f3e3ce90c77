"""Fetches that wait without a thread, and the events that end their waits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from isolog.errors import BrokerStopping
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.serving.fetch_task import FetchTask, FetchTasks, blocking_answers
from spark_stream.broker.serving.fetching import Answers, AwaitRecords
from spark_stream.broker.serving.pool import Pool
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.environment import SystemClock
from spark_stream.protocol import Cancelled, Credited
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.transport.loop import Loop
from tests.support import NUMBERS, eventually, numbers

DAY_US = 24 * 3_600 * 1_000_000
CLOCK = SystemClock()


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    log = PartitionLog.open(tmp_path, LogFormat(NUMBERS))
    return Partition("t", "id", 0, log, DAY_US, CLOCK)


@pytest.fixture
def tasks() -> Iterator[FetchTasks]:
    loop = Loop("test-fetches")
    pool = Pool(loop)
    yield FetchTasks(pool, pool, loop, CLOCK, 1 << 30)
    pool.stop()
    loop.close()


class FakeStream:
    """A stream whose credit and end the test controls."""

    def __init__(self, credit: int = 1 << 30) -> None:
        self.credit = credit
        self.over: Any = None
        self.channel: Any = None
        self.sent: list[tuple[bytes, int]] = []
        self.is_ended = False
        self.error: bytes | None = None
        self.handle: Any = None
        self.unsent = 0  # gathered frames

    def send(
        self, header: bytes, body: Any = b"", *, end: bool = False, more: bool = False
    ) -> bool:
        if end:
            self.is_ended = True
            self.unsent = 0
            return True
        if self.credit <= 0:
            return False
        self.credit -= 1
        self.sent.append((header, len(body)))
        self.unsent = self.unsent + 1 if more else 0
        return True

    def flush(self) -> None:
        self.unsent = 0

    def fail(self, error: bytes) -> None:
        self.error = error


def waiting(partition: Partition, seconds: float, replies: list[bool]) -> Answers:
    """Return a fetch that waits for the first record and then records its reply."""
    deadline = CLOCK.monotonic() + seconds
    replies.append((yield AwaitRecords(partition, Offset(0), Isolation.READ_UNCOMMITTED, deadline)))
    yield pa.record_batch({"n": pa.array([1])}), b"facts"


def begin(tasks: FetchTasks, stream: FakeStream, answers: Answers, ended: threading.Event) -> None:
    @contextlib.contextmanager
    def call() -> Iterator[None]:
        yield
        ended.set()

    FetchTask(tasks, stream, NUMBERS, answers, call()).begin()  # type: ignore[arg-type]


@pytest.mark.rule(
    "the end of a fetch's wait, which needs no thread", "broker/serving/fetch_task.py"
)
def test_five_hundred_waiting_fetches_use_no_thread_and_one_append_ends_all(partition, tasks):
    threads = threading.active_count()
    streams, replies, ended = [], [], []
    for _ in range(500):
        stream, end = FakeStream(), threading.Event()
        begin(tasks, stream, waiting(partition, 60, replies), end)
        streams.append(stream)
        ended.append(end)
    assert tasks.waiting == 500
    assert threading.active_count() == threads
    partition.append(numbers(0, 1))
    for each in ended:
        assert each.wait(30)
    assert replies == [True] * 500
    assert tasks.waiting == 0
    assert all(stream.is_ended and len(stream.sent) == 2 for stream in streams)
    assert tasks.pool.threads <= 16


def test_fetch_ends_empty_at_its_deadline(partition, tasks):
    stream, replies, ended = FakeStream(), [], threading.Event()
    begin(tasks, stream, waiting(partition, 0.05, replies), ended)
    assert ended.wait(30)
    assert replies == [False]
    assert stream.is_ended
    assert partition._state.waiters._reads == {}


def test_fetch_of_a_disconnected_reader_ends(partition, tasks):
    stream, replies, ended = FakeStream(), [], threading.Event()
    begin(tasks, stream, waiting(partition, 600, replies), ended)
    stream.over = Cancelled(1)
    stream.handle(stream.over)
    assert ended.wait(30)
    assert tasks.waiting == 0
    assert partition._state.waiters._reads == {}


def test_closing_of_the_partition_ends_the_wait_with_its_error(partition, tasks):
    stream, replies, ended = FakeStream(), [], threading.Event()
    begin(tasks, stream, waiting(partition, 600, replies), ended)
    partition.close()
    assert ended.wait(30)
    assert stream.error is not None
    assert BrokerStopping.code.encode() in stream.error


@pytest.mark.parametrize("blocks", [False, True])
def test_change_of_the_topic_just_before_the_wait_ends_it(partition, tasks, monkeypatch, blocks):
    """The change has woken the reads that waited, and this one is not among them."""
    real, altered, replies = partition.wait_beyond, threading.Event(), []

    def wait_beyond(*args: Any, **named: Any) -> int | None:
        altered.set()
        partition.wake_reads()
        return real(*args, **named)

    def answers() -> Answers:
        level, deadline = Isolation.READ_UNCOMMITTED, CLOCK.monotonic() + 600
        replies.append(
            (yield AwaitRecords(partition, Offset(0), level, deadline, False, altered.is_set))
        )

    monkeypatch.setattr(partition, "wait_beyond", wait_beyond)
    if blocks:
        assert list(blocking_answers(answers(), CLOCK, lambda: None)) == []
    else:
        stream, ended = FakeStream(), threading.Event()
        begin(tasks, stream, answers(), ended)
        assert ended.wait(30)
    assert replies == [False]
    assert partition._state.waiters._reads == {}


def test_fetch_waits_for_credit_without_loss(partition, tasks):
    def many() -> Answers:
        for number in range(100):
            yield pa.record_batch({"n": pa.array([number])}), b"%d" % number

    stream, ended = FakeStream(credit=0), threading.Event()
    begin(tasks, stream, many(), ended)
    while not ended.is_set():
        stream.credit += 3
        stream.handle(Credited(1))
        eventually(lambda: ended.is_set() or stream.credit <= 0)
    assert [header for header, _ in stream.sent] == [b"", *(b"%d" % each for each in range(100))]


def test_gathered_answers_are_flushed_before_a_wait(partition, tasks):
    def answers() -> Answers:
        yield pa.record_batch({"n": pa.array([1])}), b"first"
        level = Isolation.READ_UNCOMMITTED
        yield AwaitRecords(partition, Offset(0), level, CLOCK.monotonic() + 600)
        yield pa.record_batch({"n": pa.array([2])}), b"second"
        yield pa.record_batch({"n": pa.array([3])}), b"third"

    stream, ended = FakeStream(credit=3), threading.Event()
    begin(tasks, stream, answers(), ended)
    eventually(lambda: tasks.waiting == 1)
    assert ([header for header, _ in stream.sent], stream.unsent) == ([b"", b"first"], 0)
    partition.append(numbers(0, 1))
    eventually(lambda: len(stream.sent) == 3 and stream.unsent == 0)
    assert not ended.is_set()
    stream.credit += 1
    stream.handle(Credited(1))
    assert ended.wait(30)
    assert (len(stream.sent), stream.unsent) == (4, 0)


def test_large_answers_are_sent_immediately(partition, tasks):
    def answers() -> Answers:
        for number in range(3):
            yield pa.record_batch({"n": pa.array(range(9_000))}), b"%d" % number
        level = Isolation.READ_UNCOMMITTED
        yield AwaitRecords(partition, Offset(0), level, CLOCK.monotonic() + 600)

    class Watched(FakeStream):
        most = 0

        def send(self, *args: Any, **settings: Any) -> bool:
            is_sent = super().send(*args, **settings)
            self.most = max(self.most, self.unsent)
            return is_sent

    stream, ended = Watched(), threading.Event()
    begin(tasks, stream, answers(), ended)
    eventually(lambda: tasks.waiting == 1)
    assert (len(stream.sent), stream.most) == (4, 1)  # only the schema was gathered
    stream.over = Cancelled(1)
    stream.handle(stream.over)
    assert ended.wait(30)


def test_append_during_the_start_of_a_wait_ends_the_wait(partition, tasks):
    for number in range(200):
        stream, replies, ended = FakeStream(), [], threading.Event()
        offset = Offset(number)

        def answers(offset=offset, replies=replies) -> Answers:
            deadline = CLOCK.monotonic() + 60
            level = Isolation.READ_UNCOMMITTED
            replies.append((yield AwaitRecords(partition, offset, level, deadline)))

        appended = threading.Thread(target=partition.append, args=(numbers(number, 1),))
        appended.start()
        begin(tasks, stream, answers(), ended)
        assert ended.wait(30)
        assert replies == [True]
        appended.join()


class SlowQuota:
    """A quota that permits a frame only when the test does."""

    def __init__(self) -> None:
        self.charged = self.paid = 0
        self.looks = 0

    def charge(self, nbytes: int) -> int:
        self.charged += 1
        return self.charged

    def seconds_left(self, mark: int) -> float:
        self.looks += 1
        return 0.001 if mark > self.paid else 0.0


def paused(tasks: FetchTasks, stream: FakeStream) -> tuple[SlowQuota, threading.Event]:
    """Start a fetch of three answers above its quota."""
    quota, ended = SlowQuota(), threading.Event()

    def answers() -> Answers:
        for number in range(3):
            yield pa.record_batch({"n": pa.array([number])}), b"%d" % number

    @contextlib.contextmanager
    def call() -> Iterator[None]:
        yield
        ended.set()

    FetchTask(tasks, stream, NUMBERS, answers(), call(), quota).begin()  # type: ignore[arg-type]
    return quota, ended


def test_fetch_above_its_quota_sends_each_answer_once_in_order(tasks):
    stream = FakeStream()
    quota, ended = paused(tasks, stream)
    for expected in ([], [b""], [b"", b"0"], [b"", b"0", b"1"]):
        seen = quota.looks
        stream.handle(Credited(1))
        eventually(lambda seen=seen: quota.looks > seen + 3)
        assert [header for header, _ in stream.sent] == expected
        assert stream.unsent == (expected == [b""]), "no answer is held during a pause"
        quota.paid += 1
    assert ended.wait(30)
    assert [header for header, _ in stream.sent] == [b"", b"0", b"1", b"2"]
    assert stream.is_ended


def test_cancelled_fetch_ends_during_a_pause_for_its_quota(tasks):
    stream = FakeStream()
    _, ended = paused(tasks, stream)
    stream.over = Cancelled(1)
    stream.handle(stream.over)
    assert ended.wait(30)
    assert stream.sent == []
