"""Clients of a broker that was killed, stopped or restarted: timely errors, no hang, no guess."""

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

pytestmark = pytest.mark.slow  # every test here uses a broker process

TIMEOUT = 1.0
STALL = 15.0  # for pauses of a shared machine, and shorter than a hang


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds + STALL


@pytest.fixture
def killed(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """A client of a broker that was killed, with a topic ``t`` of ten records."""
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values(*"0123456789"))
        broker.kill()
        yield log


@pytest.fixture
def stopped(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """The same, but the broker was stopped (SIGSTOP): connections stay open without answers."""
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


@pytest.mark.quick("killed-create", "killed-read", "stopped-describe", "stopped-consumer")
@pytest.mark.rule("retries and timeouts of calls", "client/connecting/connection.py")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_to_a_lost_broker_fails_by_its_timeout(lost, call):
    with within(TIMEOUT + 3), pytest.raises((RequestTimeout, BrokerUnavailable)) as caught:
        CALLS[call](lost)
    assert caught.value.retriable


def test_connect_to_an_unused_port_fails_by_its_timeout():
    with within(TIMEOUT + 3), pytest.raises(BrokerUnavailable, match="no broker answers"):
        isolog.connect(f"127.0.0.1:{free_port()}", timeout=TIMEOUT)


def test_connect_to_a_stopped_broker_fails_by_its_timeout(broker):
    broker.pause()
    with within(TIMEOUT + 3), pytest.raises((RequestTimeout, BrokerUnavailable)):
        broker.connect(timeout=TIMEOUT)


def test_connect_to_a_silent_server_fails_by_its_timeout():
    """The port accepts connections and sends no byte, as that of a stopped broker."""
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
def test_invalid_address_is_refused_immediately(address):
    with within(1), pytest.raises(InvalidOption, match="bootstrap"):
        isolog.connect(address)


def test_bootstrap_and_path_are_alternatives(tmp_path):
    with pytest.raises(InvalidOption, match=r"bootstrap.*path"):
        isolog.connect()
    with pytest.raises(InvalidOption, match=r"bootstrap.*path"):
        isolog.connect("host:1", path=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_empty_path_is_refused(tmp_path, monkeypatch, create):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match="path is empty"):
        isolog.connect(path="", create=create)
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_is_one_text_of_addresses(shared):
    with pytest.raises(InvalidOption, match="several with commas between"):
        isolog.connect([shared.address])


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5"])
def test_invalid_timeout_is_refused(shared, timeout):
    with pytest.raises(InvalidOption, match="timeout"):
        shared.connect(timeout=timeout)


def test_connect_uses_the_first_address_that_answers(broker):
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    unknown = "no-such-host.invalid:9092"
    bootstrap = ", ".join([dead[0], unknown, broker.address, dead[1]])
    with within(10), isolog.connect(bootstrap, timeout=10) as log:
        log.create_topic("t")
        assert log.status().pid == broker.pid


def test_bootstrap_may_be_a_host_name(broker):
    port = broker.address.rpartition(":")[2]
    with isolog.connect(f"localhost:{port}") as log:
        assert log.status().pid == broker.pid


def test_send_to_a_killed_broker_fails_by_its_timeout(killed):
    producer = killed.producer(timeout_ms=1000)
    with within(8):
        error = producer.send("t", b"v").exception(8 + STALL)
        assert isinstance(error, BrokerUnavailable | UnknownOutcome)
        producer.close()


@pytest.mark.full  # the test above has the timeout
def test_send_to_a_killed_broker_does_not_block_its_caller(killed):
    """The futures fail by the timeout. ``send`` itself does not connect."""
    producer = killed.producer(timeout_ms=1000)
    with within(1):
        futures = [producer.send("t", b"v") for _ in range(100)]
    with within(10), pytest.raises(IsologError):
        producer.close()
    assert all(isinstance(future.exception(0), BrokerUnavailable) for future in futures)


def test_batch_without_an_answer_has_an_unknown_outcome(broker):
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
        # The outcome is now visible: the broker stored both records or neither.
        assert eventually(lambda: log.read("t").num_rows in (1, 3))


@pytest.mark.full  # outcomes: tests/client/writing/test_core.py
def test_only_batches_in_flight_have_an_unknown_outcome_after_a_kill(broker):
    with broker.connect(timeout=TIMEOUT) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=1000)
        producer.send("t", b"warm").result(20)
        broker.pause()
        # The maximum number of batches is in flight. The batches behind them are not sent.
        futures = [producer.append("t", values("a")) for _ in range(8)]
        broker.kill()
        with within(5):
            kinds = [type(future.exception(5 + STALL)) for future in futures]
        assert kinds == [UnknownOutcome] * 5 + [BrokerUnavailable] * 3
        producer.close()


@pytest.mark.full  # sends: the tests above
@pytest.mark.quick("tcp")
@pytest.mark.parametrize("listen", ["tcp", "unix"])
def test_blocked_write_to_a_stopped_broker_ends_by_its_timeout(tmp_path, listen):
    """The batch exceeds the buffers of the transport, so the write itself blocks."""
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
        # Only the first batch has surely been in flight. Later ones may find no connection.
        assert isinstance(outcomes[0], UnknownOutcome)
        expected = UnknownOutcome | BufferFull | RequestTimeout | BrokerUnavailable
        assert all(isinstance(each, expected) for each in outcomes)
        with within(10):
            producer.close()
        broker.resume()


@pytest.mark.full  # one send: a test above
def test_all_sends_to_a_stopped_broker_end_by_their_timeout(stopped):
    """Batches in flight, queued batches and callers that wait for buffer space all end."""
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


@pytest.mark.rule("the backpressure of a producer", "client/writing/buffer.py")
def test_full_buffer_raises_by_the_timeout(killed):
    producer = killed.producer(timeout_ms=500, buffer_bytes=1000)
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


@pytest.mark.full  # one send: a test above
def test_flush_takes_a_timeout(stopped):
    producer = stopped.producer(timeout_ms=2000)
    producer.send("t", b"v")
    with within(1.5), pytest.raises(TimeoutError, match="1 record"):
        producer.flush(timeout=0.2)
    with pytest.raises((BrokerUnavailable, RequestTimeout)):  # the producer has not even an id
        producer.close()


def test_consumer_of_a_killed_broker_fails_by_its_timeout(broker):
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


@pytest.mark.full  # the first test has a consumer, and the one above a killed broker
def test_consumer_of_a_stopped_broker_fails_by_its_timeout(broker):
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


@pytest.mark.full  # the test below has a reader
def test_clients_continue_after_a_restart_at_the_same_address(broker):
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


def test_read_continues_at_its_position_after_a_restart(broker):
    """The broker is killed between two fetches of one read. The read raises no error."""
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


def test_calls_wait_for_a_broker_that_restarts(broker):
    with broker.connect(timeout=20) as log:
        log.create_topic("t")
        broker.kill()
        back = threading.Timer(0.5, broker.restart)
        back.start()
        try:
            assert log.topics() == ["t"]
        finally:
            back.join()


def test_broker_stops_promptly_under_open_streams(broker):
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


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_with_appends_in_flight_loses_no_record(broker, number):
    """Batches without an answer are retried after the restart. All are stored once, in order."""
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
