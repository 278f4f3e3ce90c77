"""A stream of appends on real threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import isolog
from isolog.errors import TransactionAborted
from spark_stream.broker.process import Broker
from spark_stream.broker.serving import append_stream
from spark_stream.broker.serving.append_stream import AppendStream
from spark_stream.broker.serving.fetch_task import FetchTask
from spark_stream.broker.serving.serving import Serving
from spark_stream.transport.channel import SocketChannel
from spark_stream.wire.messages import FETCH
from spark_stream.wire.stream_messages import Fetch
from spark_stream.wire.transaction_messages import KillTransaction
from tests.broker.stamped import Appender, Owner
from tests.brokers import broker_here
from tests.support import (
    NUMBERS,
    Channel,
    act,
    eventually,
    needs_epoll,
    note_threads,
    numbers,
    range_of,
)


def note_calls(monkeypatch: pytest.MonkeyPatch, of: type, name: str, calls: list[str]) -> None:
    """Append the name of a method to ``calls`` before each of its calls."""
    call = getattr(of, name)

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(name)
        return call(*args, **options)

    monkeypatch.setattr(of, name, noted)


def test_batch_has_the_reason_if_its_transaction_is_aborted_just_before_its_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal happens between the check for a join and the append, so the partition refuses."""
    with broker_here(tmp_path) as broker:
        with isolog.connect(broker.address) as log:
            log.create_topic("t", partitions=1, schema=NUMBERS)
        with Channel(broker.address) as channel:
            owner = Owner(channel).begin()
            stream = Appender(channel, owner=owner.name)
            stream.put(0, 1, owner.producer, 0, epoch=owner.epoch, transaction=owner.number)
            transactions = broker.core.transactions
            appends = broker.core.host.topic("t").partition(0).appends
            take = appends.take

            kill = KillTransaction(transactional_id=owner.name)

            def take_after_the_seal(*asked: Any) -> Any:
                transactions.run(transactions.decisions.kill(kill))
                return take(*asked)

            monkeypatch.setattr(appends, "take", take_after_the_seal)
            error = stream.refused(
                1, 1, owner.producer, 1, epoch=owner.epoch, transaction=owner.number
            )
            assert isinstance(error, TransactionAborted)
            assert "an operator aborted it" in error.message


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker in this process whose appending threads linger for long."""
    monkeypatch.setattr(append_stream, "LINGER_S", 20.0)
    with broker_here(tmp_path) as found:
        with isolog.connect(found.address) as log:
            log.create_topic("t", partitions=2, schema=NUMBERS)
        yield found


def lingering(broker: Broker, channel: Channel) -> Appender:
    """Return a stream whose appending thread waits on its connection."""
    stream = Appender(channel)
    pool = broker._serving.append_pool

    def lingers() -> bool:
        stream.send(0)
        stream.ack()
        return pool._lingering > 0

    eventually(lingers)
    return stream


@needs_epoll
@pytest.mark.rule(
    "the appending thread of a client that waits for each acknowledgement",
    "broker/serving/append_stream.py",
    "broker/serving/pool.py",
)
def test_a_client_that_waits_for_each_acknowledgement_needs_one_thread(broker, monkeypatch):
    with Channel(broker.address) as channel:
        stream = lingering(broker, channel)
        pool, submitted = broker._serving.append_pool, list[str]()
        submit = pool.submit

        def count(*work: Any) -> bool:
            submitted.append(work[0].__name__)
            return submit(*work)

        monkeypatch.setattr(pool, "submit", count)
        for _ in range(100):
            stream.send(0)
            stream.ack()
        assert len(submitted) < 50  # each second the loop reads once


@needs_epoll
@pytest.mark.parametrize("slow", ["disk", "lock"])
def test_a_slow_disk_of_a_lingering_thread_delays_no_other_stream(broker, monkeypatch, slow):
    """Neither of another client nor of the same one."""
    partition = broker.core.host.topic("t").partition(0)
    state, hangs, goes_on = partition._state, threading.Event(), threading.Event()
    append = state.log.append

    def hang(*entry: Any) -> Any:
        hangs.set()
        assert goes_on.wait(60)
        return append(*entry)

    with Channel(broker.address) as channel, Channel(broker.address) as other:
        stream = lingering(broker, channel)
        last = stream.append(0, None)["offset"]
        if slow == "disk":
            monkeypatch.setattr(state.log, "append", hang)
            stream.send(0)
            assert hangs.wait(20)
        else:
            state.lock.acquire()
            stream.send(0)
        for each in (channel, other):
            assert act(each, "status")
            assert "offset" in Appender(each).append(1, None)
        if slow == "disk":
            goes_on.set()
        else:
            assert "offset" in stream.append(1, None)  # its acknowledgement is the first
            state.lock.release()
        assert stream.ack()["offset"] == last + 1


@pytest.mark.rule(
    "the order of an acknowledgement and of the reads that it wakes",
    "broker/serving/append_stream.py",
)
def test_an_append_is_acknowledged_before_it_wakes_five_hundred_readers(broker, monkeypatch):
    acknowledged, woken = threading.Event(), list[int]()
    wake = Serving._wake

    def wake_later(serving: Serving, readers: Any) -> None:
        assert acknowledged.wait(20)
        woken.append(len(readers))
        wake(serving, readers)

    serving = broker._serving
    monkeypatch.setattr(
        serving,
        "appends",
        structs.replace(serving.appends, wake=lambda each: wake_later(serving, each)),
    )
    with Channel(broker.address) as channel, Channel(broker.address) as readers:
        asked = Fetch(ranges=[range_of("t", 0, start=0, wait_ms=60_000)]).to_bytes()
        waiting = [readers.open(FETCH, b"", asked, end=True) for _ in range(500)]
        eventually(lambda: serving.fetches_waiting == 500)
        assert Appender(channel).append(0, None)["offset"] == 0
        assert woken == []
        acknowledged.set()
        for each in waiting:
            assert each.receive(30) is not None
    assert woken == [500]


@pytest.mark.rule(
    "the thread that serves the readers of a small append", "broker/serving/append_stream.py"
)
@pytest.mark.parametrize(("rows", "is_same"), [(1, True), (20_000, False)])
def test_the_thread_of_a_small_append_serves_a_waiting_reader(
    broker, monkeypatch, rows: int, is_same: bool
):
    with Channel(broker.address) as channel, Channel(broker.address) as readers:
        asked = Fetch(ranges=[range_of("t", 0, start=0, wait_ms=60_000)]).to_bytes()
        waiting = readers.open(FETCH, b"", asked, end=True)
        eventually(lambda: broker._serving.fetches_waiting == 1)
        appending = note_threads(monkeypatch, AppendStream, "_attempt")
        serving = note_threads(monkeypatch, FetchTask, "_run")
        assert Appender(channel).append(0, numbers(0, rows))["offset"] == 0
        assert waiting.receive(30) is not None  # the schema
        assert waiting.receive(30) is not None
    assert (serving[0] is appending[0]) is is_same


@pytest.mark.rule(
    "the packet of an acknowledgement and of the records for its client",
    "broker/serving/append_stream.py",
    "broker/serving/fetch_task.py",
)
@pytest.mark.parametrize(("is_same", "packets"), [(True, 1), (False, 2)])
def test_a_reader_gets_its_records_in_the_packet_of_their_acknowledgement(
    broker, monkeypatch, is_same: bool, packets: int
):
    with Channel(broker.address) as channel, Channel(broker.address) as other:
        reader = channel if is_same else other
        asked = Fetch(ranges=[range_of("t", 0, start=0, wait_ms=60_000)]).to_bytes()
        waiting = reader.open(FETCH, b"", asked, end=True)
        eventually(lambda: broker._serving.fetches_waiting == 1)
        stream = Appender(channel)
        assert stream.append(1, None)["offset"] == 0  # the stream is open, and has its credit
        sent = list[SocketChannel]()
        send = SocketChannel._send_some

        def note(channel: SocketChannel) -> int:
            if channel._pauses:  # the broker's side
                sent.append(channel)
            return send(channel)

        monkeypatch.setattr(SocketChannel, "_send_some", note)
        order = list[str]()
        for of, name in ((FetchTask, "_run"), (AppendStream, "_answer")):
            note_calls(monkeypatch, of, name, order)
        assert stream.append(0, None)["offset"] == 0
        assert waiting.receive(30) is not None  # the schema
        assert waiting.receive(30) is not None
        answers = list(sent)
    records_first = ["_run", "_answer"]
    assert order[:2] == (records_first if is_same else records_first[::-1])
    assert len(answers) == packets
    assert len(set(map(id, answers))) == packets


def test_an_acknowledgement_does_not_wait_for_a_reader_that_sends_nothing(broker, monkeypatch):
    monkeypatch.setattr(SocketChannel, "_tick", lambda _: None)  # it would send the rest
    with Channel(broker.address) as channel:
        asked = Fetch(ranges=[range_of("t", 0, start=0, wait_ms=60_000)]).to_bytes()
        channel.open(FETCH, b"", asked, end=True)
        eventually(lambda: broker._serving.fetches_waiting == 1)
        runs = list[FetchTask]()
        monkeypatch.setattr(FetchTask, "_run", lambda task: runs.append(task))
        stream = Appender(channel)
        assert stream.append(1, None)["offset"] == 0  # the stream is open, and has its credit
        assert stream.append(0, None)["offset"] == 0
    assert len(runs) == 1
