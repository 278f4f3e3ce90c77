"""Signal handlers that call a client, or raise an exception, during calls of the client."""

from __future__ import annotations

import concurrent.futures.thread
import dis
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pytest

from isolog.errors import InvalidRequest, ReentrantCall, UnknownOutcome
from spark_stream.client.writing import producer as producing
from tests.examples import examples, is_quick
from tests.support import values

pytestmark = pytest.mark.timeout(100)


def traced(call: Callable[[], object], trace: Callable[[FrameType, str, object], Any]) -> None:
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)


def interrupted(call: Callable[[], object], number: int, handler: Callable[[], object]) -> bool:
    """Send a signal before the line of this number. Return whether there is one."""
    lines, before = 0, signal.signal(signal.SIGUSR1, lambda *_: handler())

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "/spark_stream/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    try:
        traced(call, trace)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return lines >= number


@pytest.mark.rule(
    "calls of signal handlers",
    "transport/lifetime.py",
    "client/writing/sender.py",
)
@pytest.mark.parametrize("linger_ms", [0, pytest.param(60_000, marks=pytest.mark.full)])
def test_a_signal_handler_can_call_the_client_or_is_refused_immediately(log, topic, linger_ms):
    """The signal arrives at every seventh line of the client during a call."""
    log.create_topic(topic)
    other = log.producer()
    futures = [other.append(topic, values("first"))]
    futures[0].result(20)
    refused, worked = 0, 0
    for name in ("send", "flush", "close", "result", "other", "status"):
        number, is_reached = 1, True
        while is_reached:
            producer = log.producer(linger_ms=linger_ms)
            futures.append(producer.send(topic, b"1"))

            def handle(name: str = name, producer: Any = producer) -> None:
                nonlocal refused, worked
                began = time.monotonic()
                try:
                    if name in ("flush", "close"):
                        getattr(producer, name)()
                    elif name == "status":
                        log.status()
                    else:
                        sender = other if name == "other" else producer
                        futures.append(sender.send(topic, b"of the handler"))
                        if name == "other":
                            other.flush()
                        elif name == "result" and not linger_ms:
                            futures[-1].result()
                    worked += 1
                except ReentrantCall:
                    refused += 1
                assert time.monotonic() - began < 5

            def use(producer: Any = producer) -> None:
                futures.append(producer.send(topic, b"2", key=b"k"))
                futures.append(producer.append(topic, values("3")))

            try:
                is_reached = interrupted(use, number, handle)
            except InvalidRequest:
                assert name == "close"
            producer.close()
            number += 41 if is_quick() else 7
    other.close()
    assert refused > 10
    assert worked > 10
    acknowledged = [each for each in futures if each.exception(20) is None]
    assert log.read(topic).num_rows == len(acknowledged)
    assert len(acknowledged) > len(futures) - 10


class Interrupt(Exception):
    """An exception of a signal handler."""


_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME"}


@cache
def after_calls(code: CodeType) -> frozenset[int]:
    """Return the instructions before which CPython runs signal handlers, but for those of loops."""
    found = dis.get_instructions(code)
    return frozenset(
        following.offset for each, following in itertools.pairwise(found) if each.opname in _CALLS
    )


def interrupted_after_calls(
    call: Callable[[], object], number: int, handler: Callable[[], object]
) -> bool:
    """Call the handler after this number of calls in ``send``. Return whether there are as many."""
    calls = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal calls
        if frame.f_code is not producing.Producer.send.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in after_calls(frame.f_code):
            calls += 1
            if calls == number:
                handler()
        return trace

    traced(call, trace)
    return calls >= number


@pytest.mark.parametrize("raises", [True, False])
def test_an_interrupted_send_changes_no_other_record(log, topic, raises):
    """The signal arrives after each call of a send into an open batch."""
    log.create_topic(topic, partitions=4)
    sent: list[tuple[bytes, int | None, Any]] = []
    number, is_reached = 1, True
    while is_reached:
        producer = log.producer(linger_ms=60_000)

        def send(name: str, partition: int | None, producer: Any = producer) -> None:
            value = f"{name} {len(sent)}".encode()
            sent.append((value, partition, producer.send(topic, value, partition=partition)))

        def handle(send: Callable[[str, int], None] = send) -> None:
            if raises:
                raise Interrupt
            with suppress(ReentrantCall):
                send("of the handler", 3)

        send("first", 2)
        send("second", 1)
        with suppress(Interrupt):
            is_reached = interrupted_after_calls(lambda: send("interrupted", 0), number, handle)
        send("later", None)
        send("last", 1)
        producer.close()
        number += 1
    rows = {(row["partition"], row["offset"]): row["value"] for row in log.read(topic).to_pylist()}
    for value, partition, future in sent:
        written = future.result(20)
        assert rows[written.partition, written.offset] == value
        assert partition in (None, written.partition)
    assert number > 7


def test_a_handler_that_closes_the_log_or_a_producer_aborts_the_open_transaction(
    shared, log, topic
):
    """The signal arrives during a flush. Otherwise readers would wait for the timeout."""
    log.create_topic(topic)
    for name, number in itertools.product(("log", "producer"), (1, 40, 100, 200, 10**6)):
        own = shared.connect()
        producer = own.producer(transactional_id=f"{topic}-{name}-{number}")
        producer.begin_transaction()
        producer.send(topic, b"1")
        closes = own.close if name == "log" else producer.close

        def close(closes: Callable[[], None] = closes) -> None:
            with suppress(ReentrantCall):
                closes()

        with suppress(InvalidRequest):  # it is closed
            interrupted(producer.flush, number, close)
        closes()  # has an effect if the handler's call was refused
        found = log.describe_transaction(f"{topic}-{name}-{number}")
        assert found.state == "aborted", (name, number)


@pytest.mark.timeout(30)
def test_a_handler_that_interrupts_a_thread_pool_of_the_program_can_read(log, topic):
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        producer.append(topic, values("1"), 0)
        producer.append(topic, values("2"), 1)
    with concurrent.futures.thread._global_shutdown_lock:  # each submit takes it
        assert log.read(topic).num_rows == 2
        assert log.cluster().brokers


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
def test_exceptions_of_signal_handlers_leave_a_client_that_can_be_closed(log, topic):
    """The signals arrive at random instructions. Each acknowledged record is in the log once."""
    log.create_topic(topic, partitions=2)
    chance, acknowledged, numbers = random.Random(7), [], iter(range(10**9))
    fired = threading.Event()

    def handle(*_: object) -> None:
        fired.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handle)
    begin, count = threading.Event(), examples(500)
    delays = [chance.random() * 0.004 for _ in range(count)]

    def interrupt() -> None:
        for delay in delays:
            begin.wait()
            begin.clear()
            until = time.perf_counter() + delay
            while time.perf_counter() < until:
                pass
            os.kill(os.getpid(), signal.SIGUSR1)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        for turn in range(count):
            name = f"{topic}-{turn % 5}" if turn % 4 == 0 else None
            producer = log.producer(transactional_id=name, linger_ms=turn % 3)
            futures: list[tuple[bytes, Any]] = []
            try:
                if name is not None:
                    producer.begin_transaction()
                fired.clear()
                begin.set()
                while not fired.is_set():
                    value = b"%d" % next(numbers)
                    key = value if turn % 2 else None
                    futures.append((value, producer.send(topic, value, key=key)))
                    if len(futures) % 7 == 0:
                        value = b"%d" % next(numbers)
                        futures.append((value, producer.append(topic, values(value), 0)))
                    if turn % 2:  # this thread reads its answer
                        futures[-1][1].result(30)
                    elif len(futures) % 50 == 0:
                        producer.flush()
            except (KeyboardInterrupt, UnknownOutcome):
                pass
            with suppress(UnknownOutcome):
                producer.close()
            for value, future in futures:
                if future.exception(30) is None and name is None:
                    acknowledged.append(value)
    finally:
        interrupter.join(60)
        signal.signal(signal.SIGUSR1, before)
    gc.collect()
    stored = log.read(topic)["value"].to_pylist()
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
    assert len(acknowledged) > count


@pytest.mark.parametrize(
    ("caller", "name"), [("_hand_over", "parts"), ("parts", "batch"), ("_send", "call_soon")]
)
def test_an_interrupt_between_two_changes_leaves_a_producer_consistent(log, topic, caller, name):
    """For example during the creation of an Arrow batch. The records are sent later."""
    log.create_topic(topic)
    sent: list[bytes] = []
    for place in range(100):
        producer = log.producer()
        lines = 0

        def interrupt(frame: FrameType, event: str, _: object, place: int = place) -> Any:
            nonlocal lines
            called = None if frame.f_back is None else frame.f_back.f_code.co_name
            if (called, frame.f_code.co_name, event) == (caller, name, "line"):
                lines += 1
                if lines == place + 1:
                    raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            for _ in range(3):
                value = b"%d.%d" % (place, len(sent))
                producer.send(topic, value)
                sent.append(value)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        producer.close()
        if lines <= place:
            break
    assert 0 < place < 99
    stored = log.read(topic)["value"].to_pylist()
    assert len(stored) == len(set(stored))
    assert set(sent) <= set(stored)


def test_a_producer_can_be_closed_if_an_interrupt_came_before_its_first_record(
    log, topic, monkeypatch
):
    """The call comes before the producer's thread has closed it because of the interrupt."""
    log.create_topic(topic)
    producer = log.producer(linger_ms=60_000)
    monkeypatch.setattr(producer._sender, "_give_up", lambda: None)

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "add" and "/writing/buffer.py" in frame.f_code.co_filename:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            producer.send(topic, b"1")
    finally:
        sys.settrace(None)
    producer.close()
    assert log.read(topic).num_rows == 0


def test_a_consumer_can_be_closed_by_a_signal_handler(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.append(topic, values(*"12345")).result(20)
    number, is_reached = 1, True
    while is_reached:
        consumer = log.consumer(topic)

        def close(consumer: Any = consumer) -> None:
            with suppress(ReentrantCall):
                consumer.close()

        def read(consumer: Any = consumer) -> None:
            with suppress(InvalidRequest):  # it is closed
                consumer.poll(5, 3)

        is_reached = interrupted(read, number, close)
        consumer.close()
        number += 61 if is_quick() else 23
