"""Clients that have stopped hold no threads; clients that are only slow notice nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from spark_stream.broker.keepalive import Keepalive, WatchedWriter
from spark_stream.broker.service import translated
from spark_stream.environment import SystemClock
from tests.conftest import ROOT
from tests.support import BrokerProcess, eventually

LIMIT_S = 0.5
CALLS = 12
CONF = f"keepalive_seconds = {LIMIT_S}\nidle_seconds = 2.0\n"

CLIENT = """
import json, sys
import pyarrow as pa, pyarrow.flight as fl

place, calls = sys.argv[1], int(sys.argv[2])
client = fl.connect(place)
batch = pa.record_batch([pa.array(["a" * 1000])], names=["text"])
held = []
for number in range(calls):
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("t", "0"), batch.schema)
    writer.write_batch(batch)
    answers.read()
    held.append((writer, answers))
    for extra in ({}, {"follow": True, "start": -1}):
        ticket = json.dumps({"topic": "t", "partition": 0, "start": 0} | extra)
        held.append(client.do_get(fl.Ticket(ticket)))
print("ready", flush=True)
sys.stdin.read()
"""


class FakeClock:
    """A clock that tests move."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def steady_us(self) -> int:
        raise AssertionError("not asked")

    wall_us = steady_us


@contextmanager
def client_with_open_calls(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of appends, of large reads and of reads that follow."""
    place = address.replace("unix:", "grpc+unix://") if "unix:" in address else f"grpc://{address}"
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, place, str(CALLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["tcp", "unix"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a short limit, and a topic ``t`` of 16 MB: more than a connection buffers."""
    listen = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path / 's'}"
    with BrokerProcess(tmp_path / "log", listen, conf=CONF) as process:
        with process.connect() as log:
            log.create_topic("t", schema=pa.schema([("text", pa.string())]))
            with log.producer() as producer:
                for _ in range(16):
                    producer.append("t", pa.table({"text": ["a" * 1000] * 1000}))
        yield process


def test_stopped_clients_give_their_threads_back_and_an_idle_broker_ends(
    guarded: BrokerProcess,
) -> None:
    broker = psutil.Process(guarded.pid)
    with ExitStack() as stack:
        with guarded.connect() as log, log.consumer("t") as consumer:
            next(consumer.batches())  # as long as it fetches, the broker is not idle
            client = stack.enter_context(client_with_open_calls(guarded.address))
        busy = broker.num_threads()
        os.kill(client.pid, signal.SIGSTOP)
        assert eventually(lambda: not broker.is_running() or broker.num_threads() <= busy - CALLS)
        # Its client is still there, stopped: nobody else has ended the calls.
        assert psutil.Process(client.pid).status() == psutil.STATUS_STOPPED
        guarded.wait(20.0)
    assert "connections ended" in guarded.said()
    assert guarded.process.returncode == 0


def test_a_client_that_is_only_slow_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "log", conf=f"keepalive_seconds = {LIMIT_S}\n") as process,
        process.connect() as log,
        log.producer() as producer,
    ):
        log.create_topic("t", schema=pa.schema([("n", pa.int64()), ("text", pa.string())]))
        for number in range(16):
            rows = {"n": range(number * 1000, number * 1000 + 1000), "text": ["a" * 1000] * 1000}
            producer.append("t", pa.table(rows))
        producer.flush()
        with log.consumer("t", isolation="read_committed") as consumer:
            batches = consumer.batches()
            seen = [next(batches)]
            eventually(lambda: "connections ended" in process.said())
            producer.append("t", pa.table({"n": [16_000], "text": ["last"]})).result(20)
            while sum(each.num_rows for each in seen) < 16_001:
                seen.append(next(batches))
        assert [n for each in seen for n in each.column("n").to_pylist()] == list(range(16_001))


def test_a_call_is_silent_when_its_client_owes_the_next_move() -> None:
    clock = FakeClock()
    keepalive = Keepalive(10.0, clock)
    with keepalive.call("ipv4:127.0.0.1:1") as call:
        with call.reading():
            clock.now += 10.0
            assert keepalive.silent_peers() == set()
            clock.now += 0.1
            assert keepalive.silent_peers() == {call.peer}
        with call.reading():  # another thread of the broker may still be at the batch before
            clock.now += 60.0
            assert keepalive.silent_peers() == set()
            with call.writing():
                clock.now += 11.0
                assert keepalive.silent_peers() == {call.peer}
            clock.now += 9.0
            assert keepalive.silent_peers() == set()
            clock.now += 2.0
            assert keepalive.silent_peers() == {call.peer}
    assert keepalive.silent_peers() == set()


def test_one_call_that_goes_on_keeps_the_others_of_its_tcp_connection() -> None:
    clock = FakeClock()
    keepalive = Keepalive(10.0, clock)
    for peer, silent in (("ipv6:%5B::1%5D:1", set()), ("unix:", {"unix:"})):
        with keepalive.call(peer) as quiet, keepalive.call(peer), quiet.reading():
            clock.now += 11.0
            assert keepalive.silent_peers() == silent


class GoneClient:
    """Where Flight writes to a client that left while the broker stood still."""

    def write(self, message: bytes) -> None:
        raise OSError("Unknown error writing metadata.")


def test_a_client_that_left_before_it_was_acknowledged_is_no_fault_of_the_broker(caplog):
    """Flight says so by a plain OSError, which would be logged with its trace."""
    watched = Keepalive(LIMIT_S, SystemClock())
    with (
        pytest.raises(fl.FlightCancelledError),
        translated("append"),
        watched.call("ipv4:127.0.0.1:1") as call,
    ):
        WatchedWriter(GoneClient(), call).write(b"")
    assert caplog.text == ""
