"""A broker that is gone, stopped or started again: an error in time, no hang, no guess."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import isolog
from isolog.errors import (
    BrokerUnavailable,
    BufferFull,
    InvalidOption,
    IsologError,
    RequestTimeout,
    UnknownOutcome,
)
from tests.support import BrokerProcess, eventually, free_port, values

pytestmark = pytest.mark.slow  # every test here starts a broker, or uses one

TIMEOUT = 1.0
STALL = 15.0  # a shared machine may stand still so long; who hangs, hangs for longer


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds + STALL


@pytest.fixture
def gone(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """A client of a broker that was killed, with a topic ``t`` of ten records."""
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values(*"0123456789"))
        broker.kill()
        yield log


@pytest.fixture
def stopped(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """The same, but the broker was stopped (SIGSTOP): its connections live, nothing is answered."""
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values(*"0123456789"))
        broker.pause()
        yield log
        broker.resume()


CALLS = {
    "topics": lambda log: log.topics(),
    "describe": lambda log: log.describe("t"),
    "status": lambda log: log.status(),
    "create": lambda log: log.create_topic("u"),
    "delete": lambda log: log.delete_topic("t"),
    "read": lambda log: log.read("t"),
    "consumer": lambda log: log.consumer("t"),
}


@pytest.fixture(scope="module", params=["killed", "stopped"])
def lost(request, tmp_path_factory) -> Iterator[isolog.Log]:
    with (
        BrokerProcess(tmp_path_factory.mktemp("lost") / "log") as broker,
        broker.connect(timeout=TIMEOUT) as log,
    ):
        log.create_topic("t")
        if request.param == "killed":
            broker.kill()
        else:
            broker.pause()
        yield log


@pytest.mark.rule("what is retried, and when a call gives up", "client/connecting/connection.py")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_to_a_lost_broker_fails_in_time(lost, call):
    with within(TIMEOUT + 3), pytest.raises((RequestTimeout, BrokerUnavailable)) as caught:
        CALLS[call](lost)
    assert caught.value.retriable


def test_connecting_to_nobody_fails_in_time():
    with within(TIMEOUT + 3), pytest.raises(BrokerUnavailable, match="no broker answers"):
        isolog.connect(f"127.0.0.1:{free_port()}", timeout=TIMEOUT)


def test_connecting_to_a_stopped_broker_fails_in_time(broker):
    broker.pause()
    with within(TIMEOUT + 3), pytest.raises((RequestTimeout, BrokerUnavailable)):
        broker.connect(timeout=TIMEOUT)


def test_connecting_to_something_else_fails_in_time():
    """A port that accepts and says nothing, as a stopped broker's does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with within(TIMEOUT + 3), pytest.raises(IsologError):
            isolog.connect(address, timeout=TIMEOUT)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:port",
        "host:0",
        "host:65536",
        "host:-1",
        ",",
        "a:1,b",
        "http://a",
        "http://a:1",
        "a b:1",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address):
    with within(1), pytest.raises(InvalidOption, match="bootstrap"):
        isolog.connect(address)


def test_either_bootstrap_or_path(tmp_path):
    with pytest.raises(InvalidOption, match=r"bootstrap.*path"):
        isolog.connect()
    with pytest.raises(InvalidOption, match=r"bootstrap.*path"):
        isolog.connect("host:1", path=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_an_empty_path_is_not_the_working_directory(tmp_path, monkeypatch, create):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match="path is empty"):
        isolog.connect(path="", create=create)
    assert list(tmp_path.iterdir()) == []


def test_several_addresses_are_one_text(shared):
    with pytest.raises(InvalidOption, match="several with commas between"):
        isolog.connect([shared.address])


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5"])
def test_a_timeout_that_is_none_is_refused(shared, timeout):
    with pytest.raises(InvalidOption, match="timeout"):
        shared.connect(timeout=timeout)


def test_the_first_address_that_answers_is_taken(broker):
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    unknown = "no-such-host.invalid:9092"
    bootstrap = ", ".join([dead[0], unknown, broker.address, dead[1]])
    with within(10), isolog.connect(bootstrap, timeout=10) as log:
        log.create_topic("t")
        assert log.status().pid == broker.pid


def test_a_host_name_is_an_address(broker):
    port = broker.address.rpartition(":")[2]
    with isolog.connect(f"localhost:{port}") as log:
        assert log.status().pid == broker.pid


def test_a_send_to_a_killed_broker_fails_in_time(gone):
    producer = gone.producer(timeout_ms=1000)
    with within(8):
        error = producer.send("t", b"v").exception(8 + STALL)
        assert isinstance(error, BrokerUnavailable | UnknownOutcome)
        producer.close()


def test_sending_to_a_killed_broker_keeps_no_caller_waiting(gone):
    """The futures tell, in time; ``send`` itself does not look for a broker."""
    producer = gone.producer(timeout_ms=1000)
    with within(1):
        futures = [producer.send("t", b"v") for _ in range(100)]
    with within(10), pytest.raises(IsologError):
        producer.close()
    assert all(isinstance(future.exception(0), BrokerUnavailable) for future in futures)


def test_what_was_sent_and_not_answered_has_an_unknown_outcome(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=1000)
        producer.send("t", b"warm").result(20)
        broker.pause()
        sent = producer.append("t", values("a", "b"))
        with within(5):
            error = sent.exception(5 + STALL)
        assert isinstance(error, UnknownOutcome)
        assert not error.retriable
        assert "2 records" in error.message
        assert error.details["topic"] == "t"
        assert error.details["partition"] == 0
        with within(10):
            producer.close()
        broker.resume()
        # The outcome was unknown and now can be seen: the broker took both or none.
        assert eventually(lambda: log.read("t").num_rows in (1, 3))


def test_killed_with_appends_in_flight_their_outcome_is_unknown_if_nobody_comes_back(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=1000)
        producer.send("t", b"warm").result(20)
        broker.pause()
        # As many as may be on their way at once; what waits behind them is not sent.
        futures = [producer.append("t", values("a")) for _ in range(8)]
        broker.kill()
        with within(5):
            kinds = [type(future.exception(5 + STALL)) for future in futures]
        assert kinds == [UnknownOutcome] * 5 + [BrokerUnavailable] * 3
        producer.close()


@pytest.mark.parametrize("listen", ["tcp", "unix"])
def test_a_write_that_nobody_reads_ends_in_time(tmp_path, listen):
    """More than the transport takes in: the write itself is stuck, and must not be for ever."""
    where = "127.0.0.1:0" if listen == "tcp" else f"unix:{tmp_path}/s"
    with BrokerProcess(tmp_path / "log", where) as broker, broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=1000)
        producer.send("t", b"warm").result(20)
        broker.pause()
        outcomes: list[BaseException | None] = []

        def write() -> None:
            for _ in range(3):
                try:
                    outcomes.append(
                        producer.append("t", values(b"x" * (12 << 20))).exception(20 + STALL)
                    )
                except BufferFull as error:
                    outcomes.append(error)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
        assert len(outcomes) == 3
        # What went into the transport is unknown; what found no connection any more was never sent.
        assert isinstance(outcomes[0], UnknownOutcome)
        expected = UnknownOutcome | BufferFull | RequestTimeout | BrokerUnavailable
        assert all(isinstance(each, expected) for each in outcomes)
        with within(10):
            producer.close()
        broker.resume()


def test_many_sends_to_a_stopped_broker_end_in_time(stopped):
    """In flight, waiting, or asked for room: all is settled, everybody goes on."""
    producer = stopped.producer(timeout_ms=1000, buffer_bytes=200_000, batch_bytes=50_000)
    errors, futures = [], []
    with within(20):
        while len(errors) < 3:
            try:
                futures.append(producer.send("t", b"x" * 20_000))
            except BufferFull as error:
                errors.append(error)
            if any(future.done() for future in futures):
                break
        with pytest.raises((UnknownOutcome, BufferFull, RequestTimeout, BrokerUnavailable)):
            producer.close()
    assert all(future.done() for future in futures)


@pytest.mark.rule(
    "when a producer makes its caller wait (backpressure)", "client/writing/buffer.py"
)
def test_a_full_buffer_is_told_in_time(gone):
    producer = gone.producer(timeout_ms=500, buffer_bytes=1000)
    blocked = []

    def fill() -> None:
        try:
            while not blocked:
                producer.send("t", b"x" * 600)
        except BufferFull as error:
            blocked.append(error)

    threads = [threading.Thread(target=fill, daemon=True) for _ in range(3)]
    with within(15):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15 + STALL)
    assert blocked
    assert blocked[0].retriable
    assert "buffer_bytes is 1000" in blocked[0].message


def test_flush_can_be_given_a_time(stopped):
    producer = stopped.producer(timeout_ms=2000)
    producer.send("t", b"v")
    with within(1.5), pytest.raises(TimeoutError, match="1 record"):
        producer.flush(timeout=0.2)
    with pytest.raises((BrokerUnavailable, RequestTimeout)):  # not even an id to write under
        producer.close()


def test_a_consumer_of_a_killed_broker_fails_in_time(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("a"))
        with log.consumer("t") as consumer:
            records = consumer.records()
            next(records)
            broker.kill()
            with within(TIMEOUT + 6), pytest.raises(BrokerUnavailable):
                next(records)


def test_a_consumer_of_a_stopped_broker_fails_in_time(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("a"))
        with log.consumer("t") as consumer:
            records = consumer.records()
            next(records)
            broker.pause()
            with within(20), pytest.raises((RequestTimeout, BrokerUnavailable)):
                next(records)
            broker.resume()


def test_everybody_goes_on_after_a_restart_at_the_same_address(broker):
    with broker.connect(timeout=20) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer, log.consumer("t") as consumer:
            records = consumer.records()
            producer.send("t", b"before", partition=0).result(20)
            assert next(records).value == b"before"
            for number, end in enumerate([broker.kill, broker.terminate, broker.kill]):
                end()
                broker.restart()
                assert producer.send("t", str(number), partition=0).result(20).offset == number + 1
                assert next(records).value == str(number).encode()
                assert log.describe("t").partitions[0].log_end_offset == number + 2
        assert log.read("t").num_rows == 4


def test_a_read_goes_on_where_it_was_when_the_broker_came_back(broker):
    """The broker dies between two fetches of one read: the caller sees nothing of it."""
    with broker.connect(timeout=20) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for _ in range(10):
                producer.append("t", values(*[b"x" * 1_000_000] * 6))
        with log.consumer("t") as consumer:
            rows = 0
            for number, batch in enumerate(consumer.batches(until="latest")):
                rows += batch.num_rows
                if number == 1:
                    broker.kill()
                    broker.restart()
        assert rows == 60
        assert consumer.position() == {("t", 0): 60}


def test_calls_made_while_the_broker_restarts_wait_for_it(broker):
    with broker.connect(timeout=20) as log:
        log.create_topic("t")
        broker.kill()
        back = threading.Timer(0.5, broker.restart)
        back.start()
        try:
            assert log.topics() == ["t"]
        finally:
            back.join()


def test_the_broker_stops_promptly_though_clients_hold_streams_open(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t", partitions=4)
        producer = log.producer(timeout_ms=1000)
        producer.send("t", b"v").result(20)
        consumer = log.consumer("t")
        records = consumer.records()
        next(records)
        with within(5):
            assert broker.terminate() == 0
        assert not (Path(broker.directory) / "broker.json").exists()
        consumer.close()
        producer.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_with_appends_in_flight_loses_nothing(broker, number):
    """What the broker did not take before it stopped, the next one gets: all once, in order."""
    with broker.connect(timeout=20) as log:
        log.create_topic("t", partitions=2)
        producers = [log.producer() for _ in range(2)]
        acknowledged: list[list[int]] = [[], []]
        sent = [0, 0]
        stop = threading.Event()

        def write(which: int) -> None:
            while not stop.is_set():
                first = sent[which]
                sent[which] += 3
                rows = values(*[str(first + n) for n in range(3)])
                producers[which].append("t", rows, partition=which).result(20)
                acknowledged[which].append(first)

        threads = [threading.Thread(target=write, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = [len(each) for each in acknowledged]
            eventually(lambda: all(len(a) > b + 20 for a, b in zip(acknowledged, before)))  # noqa: B905, B023
            broker.signal(number)
            assert broker.wait() == 0
            broker.restart()
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        for producer in producers:
            producer.close()
        for which in range(2):
            table = log.read("t", start={1 - which: -1})
            found = [int(value.as_py()) for value in table["value"]]
            assert found == list(range(sent[which]))
            assert found == [first + n for first in acknowledged[which] for n in range(3)]
    assert "cut" not in broker.log_text()
    assert "Traceback" not in broker.log_text()
