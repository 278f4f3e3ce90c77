"""The effect of a quota, without brokers: buckets, limits of principals, and waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import BrokerBusy, PermissionDenied
from spark_stream.access.callers import ANONYMOUS, OWNER, Caller, KnownBy
from spark_stream.access.rules import Operation, Quota
from spark_stream.broker.access.authorizer import ConnectionIdentity
from spark_stream.broker.access.quotas import Bucket, Quotas, Throttle
from spark_stream.broker.serving.throttling import (
    _STREAM_BYTES,
    ConnectionPlace,
    DelayedStart,
    ThrottledAppender,
)
from spark_stream.protocol import Cancelled, Received
from spark_stream.transport.server import IncomingConnection
from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT
from tests.clocks import FakeClock
from tests.examples import examples

ALICE, BOB = Caller("alice", KnownBy.USER), Caller("bob", KnownBy.TOKEN)
RATES = st.integers(1024, 1 << 40)
STEPS = st.lists(st.tuples(st.integers(0, 1 << 24), st.floats(0, 100)), min_size=1, max_size=50)


@pytest.mark.rule("the rate that a principal's quota permits", "broker/access/quotas.py")
@settings(max_examples=examples(1000))
@given(RATES, STEPS)
def test_a_stream_that_waits_for_its_marks_gets_the_rate_and_one_burst(rate: int, steps):
    """Charges and pauses are arbitrary. Each charge is made once the previous one is paid."""
    bucket, now, passed = Bucket(rate, 0.0), 0.0, 0
    for nbytes, idle_s in steps:
        mark = bucket.charge(nbytes, rate, now)
        passed += nbytes
        now += bucket.seconds_left(mark, rate, now)
        assert passed <= rate * (now + 1) * (1 + 1e-9) + 1
        assert bucket.seconds_left(mark, rate, now + 1e-6 * (1 + now)) == 0
        now += idle_s
    assert bucket.delayed_s <= now * (1 + 1e-9)


@settings(max_examples=examples(500))
@given(st.lists(st.tuples(RATES, st.integers(0, 1 << 24), st.floats(0, 10)), max_size=50))
def test_marks_are_paid_in_order_and_stay_paid_at_any_rate(steps):
    bucket, now = Bucket(1024, 0.0), 0.0
    marks: list[int] = []
    paid: set[int] = set()
    for rate, nbytes, passed_s in steps:
        now += passed_s
        marks.append(bucket.charge(nbytes, rate, now))
        left = [bucket.seconds_left(mark, rate, now) for mark in marks]
        assert left == sorted(left)
        assert all(left[each] == 0 for each in paid)
        paid |= {each for each, seconds in enumerate(left) if seconds == 0}


def test_a_principal_has_its_own_quota_or_the_default():
    limits = {
        "alice": Quota(write_bytes_per_s=1024),
        "bob": Quota(),
        "*": Quota(write_bytes_per_s=2048, connections=1),
    }
    quotas = Quotas(lambda: limits, FakeClock(), MEMORY_BYTES_DEFAULT)
    rates = [quotas.limit(each).write_bytes_per_s for each in (ALICE, BOB, ANONYMOUS, OWNER)]
    assert rates == [1024, None, 2048, None]
    assert [quotas.enter(ANONYMOUS), quotas.enter(ANONYMOUS)] == [True, False]
    assert [quotas.enter(OWNER), quotas.enter(OWNER)] == [True, True]
    quotas.leave(ANONYMOUS)
    assert quotas.enter(ANONYMOUS)


def test_changed_and_removed_quotas_apply_to_waiting_streams():
    clock, limits = FakeClock(), {"alice": Quota(write_bytes_per_s=1024, read_bytes_per_s=1024)}
    quotas = Quotas(lambda: limits, clock, MEMORY_BYTES_DEFAULT)
    mark = quotas.charge(ALICE, Operation.WRITE, 101 * 1024)

    def seconds_left(operation: Operation = Operation.WRITE) -> float:
        return quotas.seconds_left(ALICE, operation, mark)

    assert seconds_left() == 100
    assert quotas.seconds_left(ALICE, Operation.READ, 0) == 0, "each direction by itself"
    assert quotas.charge(BOB, Operation.WRITE, 1 << 30) == 0, "and each principal"
    limits["alice"] = Quota(write_bytes_per_s=10 * 1024)
    assert seconds_left() == 10
    clock.pass_us(4_000_000)
    assert seconds_left() == 6
    assert quotas.use()["alice"].write_delayed_s == pytest.approx(4)
    del limits["alice"]
    assert seconds_left() == 0
    assert quotas.charge(ALICE, Operation.WRITE, 1 << 30) == 0


# -- waits, with a loop whose time is the test's ---------------------------------------------------


class FakeLoop:
    """Timers that are due when the test advances the time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self._clock.monotonic() + delay_s, callback))

    def run_due(self) -> None:
        now = self._clock.monotonic()
        due = [each for each in self.timers if each[0] <= now]
        self.timers = [each for each in self.timers if each[0] > now]
        for _, callback in due:
            callback()


class FakeStream:
    """A stream, and the messages that it got."""

    def __init__(self) -> None:
        self.over: Cancelled | None = None
        self.has_ended = False
        self.granted = 0
        self.error = b""
        self.handle: Any = None

    def send(self, header: bytes) -> bool:
        return True

    def grant_credit(self, size: int) -> None:
        self.granted += size

    def fail(self, error: bytes) -> None:
        self.error = error


@settings(max_examples=examples(300))
@given(
    st.integers(1024, 1 << 24),
    st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 400)), max_size=60),
)
def test_all_credit_is_granted_once_it_is_paid(rate: int, frames):
    """The frames have arbitrary sizes, and arbitrary pauses between them."""
    clock = FakeClock()
    loop, stream = FakeLoop(clock), FakeStream()
    quotas = Quotas(lambda: {"alice": Quota(write_bytes_per_s=rate)}, clock, MEMORY_BYTES_DEFAULT)
    throttle = Throttle(quotas, ALICE, Operation.WRITE)
    appender = ThrottledAppender(stream, throttle, loop)  # type: ignore[arg-type]
    received = 0
    for size, pause_ms in frames:
        appender.grant_credit(size)
        received += size
        assert stream.granted <= rate * (clock.monotonic() + 1) + 1
        clock.pass_us(1000 * pause_ms)
        loop.run_due()
        assert len(loop.timers) <= 1
    while stream.granted < received:
        clock.pass_us(500_000)
        loop.run_due()
        assert clock.monotonic() <= sum(each[1] for each in frames) / 1000 + received / rate + 2
    assert stream.granted == received


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_connection_beyond_its_quota_is_refused_in_time(is_freed: bool):
    clock = FakeClock()
    loop = FakeLoop(clock)
    quotas = Quotas(lambda: {"alice": Quota(connections=1)}, clock, MEMORY_BYTES_DEFAULT)
    assert quotas.enter(ALICE)
    refused: list[str] = []
    incoming = IncomingConnection("host:1")
    incoming.refuse = lambda code, message: refused.append(code)  # type: ignore[method-assign]
    identity = ConnectionIdentity("host:1", None)
    place = ConnectionPlace(quotas, loop, identity, incoming)  # type: ignore[arg-type]
    place.take()
    assert not loop.timers, "nobody knows yet who calls"
    identity.caller = ALICE
    place.take()
    streams, served = [FakeStream() for _ in range(3)], list[Any]()
    for each in streams:
        place.take()
        place.hold(served.append, each)  # type: ignore[arg-type]
    streams[1].over = Cancelled(1)
    if is_freed:
        quotas.leave(ALICE)
    for _ in range(120):
        clock.pass_us(100_000)
        loop.run_due()
    if is_freed:
        assert served == [streams[0], streams[2]]
        assert (refused, quotas.use()["alice"].connections) == ([], 1)
        incoming.on_lost()
        assert quotas.use() == {}
    else:
        assert served == []
        assert refused == [BrokerBusy.code]
        assert b"BROKER_BUSY" in streams[0].error
        incoming.on_lost()
        quotas.leave(ALICE)
        place.take()
        assert quotas.use() == {}, "a connection that is over takes no place"


@pytest.mark.rule("the wait of a connection above its quota", "broker/serving/throttling.py")
@pytest.mark.parametrize("freed_after_s", [None, 9.93, 0.02])
def test_a_connection_that_keeps_opening_streams_waits_once(freed_after_s):
    """It opens a stream every 20 ms, some between the last check for a place and its end."""
    clock = FakeClock()
    loop = FakeLoop(clock)
    quotas = Quotas(lambda: {"alice": Quota(connections=2)}, clock, MEMORY_BYTES_DEFAULT)
    assert [quotas.enter(ALICE), quotas.enter(ALICE)] == [True, True]
    refused: list[float] = []
    incoming = IncomingConnection("host:1")
    incoming.refuse = lambda code, message: refused.append(clock.monotonic())  # type: ignore[method-assign]
    identity = ConnectionIdentity("host:1", ALICE)
    place = ConnectionPlace(quotas, loop, identity, incoming)  # type: ignore[arg-type]
    begun, has_freed = clock.monotonic(), False
    freed_at = None if freed_after_s is None else begun + freed_after_s
    for _ in range(750):
        place.take()
        if not place.is_taken:
            place.hold(lambda _: None, FakeStream())  # type: ignore[arg-type]
        if (
            freed_after_s is not None
            and not has_freed
            and clock.monotonic() - begun > freed_after_s
        ):
            has_freed = True
            quotas.leave(ALICE)
            quotas.leave(ALICE)
        clock.pass_us(20_000)
        loop.run_due()
        assert len(loop.timers) <= 1
    if freed_at is None:
        assert [each - begun for each in refused] == [pytest.approx(10, abs=0.5)]
        incoming.on_lost()
        assert quotas.use()["alice"].connections == 2
    else:
        assert (refused, quotas.use()["alice"].connections) == ([], 1)
        incoming.on_lost()
        assert quotas.use() == {}


def test_waiting_bytes_of_a_principal_are_limited_to_its_share():
    quotas = Quotas(dict, FakeClock(), memory_bytes=1 << 30)
    part = (1 << 30) // 16
    assert [quotas.hold(ALICE, part), quotas.hold(ALICE, 1)] == [True, False]
    assert quotas.hold(BOB, part)
    quotas.release(ALICE, part)
    assert quotas.hold(ALICE, part)


def test_a_waiting_connection_holds_at_most_its_principals_share():
    clock = FakeClock()
    loop = FakeLoop(clock)
    quotas = Quotas(lambda: {"alice": Quota(connections=1)}, clock, memory_bytes=1 << 29)
    assert quotas.enter(ALICE)
    refused: list[str] = []
    incoming = IncomingConnection("host:1")
    incoming.refuse = lambda code, message: refused.append(code)  # type: ignore[method-assign]
    identity = ConnectionIdentity("host:1", ALICE)
    place = ConnectionPlace(quotas, loop, identity, incoming)  # type: ignore[arg-type]
    place.take()
    streams = [FakeStream() for _ in range(3)]
    for each in streams:
        place.hold(lambda _: None, each, 12 << 20)  # type: ignore[arg-type]
    assert refused == [BrokerBusy.code]
    assert [bool(each.error) for each in streams] == [True, True, True]
    place.hold(lambda _: None, FakeStream(), 32 << 20)  # type: ignore[arg-type]
    assert refused == [BrokerBusy.code]
    assert quotas.hold(ALICE, 32 << 20), "nothing is held any more"


@pytest.mark.parametrize("ending", ["served", "cancelled", "connection lost", "too many bytes"])
def test_a_waiting_connection_releases_its_bytes(ending: str):
    clock = FakeClock()
    loop = FakeLoop(clock)
    quotas = Quotas(lambda: {"alice": Quota(connections=1)}, clock, memory_bytes=1 << 29)
    assert quotas.enter(ALICE)
    incoming = IncomingConnection("host:1")
    incoming.refuse = lambda code, message: None  # type: ignore[method-assign]
    identity = ConnectionIdentity("host:1", ALICE)
    place = ConnectionPlace(quotas, loop, identity, incoming)  # type: ignore[arg-type]
    place.take()
    stream, served = FakeStream(), list[Any]()
    place.hold(served.append, stream, 1000)  # type: ignore[arg-type]
    frame = Received(1, b"", bytes(500), False)
    stream.handle(frame)
    assert quotas.held_bytes == 1000 + frame.size
    if ending == "served":
        quotas.leave(ALICE)
    elif ending == "cancelled":
        stream.over = Cancelled(1)
        quotas.leave(ALICE)
    elif ending == "connection lost":
        incoming.on_lost()
    else:
        stream.handle(Received(1, b"", bytes(33 << 20), False))
    clock.pass_us(100_000)
    loop.run_due()
    assert quotas.held_bytes == 0
    assert served == ([stream] if ending == "served" else [])
    if ending != "connection lost":
        incoming.on_lost()
    assert quotas.held_bytes == 0


DELAYED_ENDINGS = ["started", "cancelled", "denied", "denied at the opening", "too many bytes"]


@pytest.mark.rule(
    "the bytes that a principal's quota counts as held", "broker/serving/throttling.py"
)
@given(
    st.lists(st.tuples(st.sampled_from(DELAYED_ENDINGS), st.integers(0, 1 << 20)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_each_stream_that_waits_for_its_quota_releases_its_bytes(endings, random):
    """Streams end in any order. Each of them starts or ends once."""
    clock = FakeClock()
    loop = FakeLoop(clock)
    limits = {"alice": Quota(write_bytes_per_s=1024)}
    quotas = Quotas(lambda: limits, clock, MEMORY_BYTES_DEFAULT)
    throttle = Throttle(quotas, ALICE, Operation.WRITE)
    throttle.charge(1 << 30)
    held = {}
    denied: set[int] = set()
    outcomes: dict[int, list[object]] = {number: [] for number in range(len(endings))}

    def check(number: int, *, is_open: bool) -> None:
        if number in denied:
            raise PermissionDenied("not allowed")

    delayed, streams = [], [FakeStream() for _ in endings]
    for number, ((ending, nbytes), stream) in enumerate(zip(endings, streams, strict=True)):
        if ending == "denied at the opening":
            denied.add(number)
        each = DelayedStart(
            quotas,
            ALICE,
            throttle,
            loop,  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            partial(check, number),
            partial(outcomes[number].append, "started"),
            outcomes[number].append,
        )
        delayed.append(each)
        each.begin(nbytes)
        if not outcomes[number]:
            held[number] = _STREAM_BYTES + nbytes
            assert each.hold(nbytes)
            held[number] += nbytes
        assert quotas.held_bytes == sum(held.values())
    waiting = list(held)
    random.shuffle(waiting)
    for number in waiting:
        ending = endings[number][0]
        if ending == "started":
            continue
        if ending == "cancelled":
            streams[number].over = Cancelled(1)
        elif ending == "denied":
            denied.add(number)
        else:
            assert not delayed[number].hold(1 << 30)
        clock.pass_us(500_000)
        loop.run_due()
        del held[number]
        assert quotas.held_bytes == sum(held.values())
    limits.clear()
    clock.pass_us(500_000)
    loop.run_due()
    expected: dict[str, type | None] = {
        "cancelled": type(None),
        "denied": PermissionDenied,
        "denied at the opening": PermissionDenied,
        "too many bytes": BrokerBusy,
        "started": str,
    }
    assert [list(map(type, outcomes[each])) for each in outcomes] == [
        [expected[ending]] for ending, _ in endings
    ]
    assert quotas.held_bytes == 0
