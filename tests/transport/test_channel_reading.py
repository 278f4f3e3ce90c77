"""A channel that is read by the thread that waits, beside its loop."""

from __future__ import annotations

import random
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from spark_stream.protocol import Connection, Event, Lost, Ready, Received
from spark_stream.protocol.connection import StreamOpened
from spark_stream.transport import channel as channels
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.loop import READ, Loop, WakeUp
from spark_stream.transport.loop import Ready as Callback
from tests.examples import examples
from tests.support import eventually
from tests.transport.conftest import Begin


class StepLoop:
    """A loop whose turns are calls of the test, and the events for which it watches."""

    can_lend = True
    share_s = 60.0

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.events = 0
        self.ready: Callback = lambda _: None

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Do nothing. The test ticks."""

    def watch(self, sock: socket.socket, events: int, ready: Callback) -> None:
        self.events, self.ready = events, ready

    lend = watch

    def forget(self, sock: socket.socket) -> None:
        self.events = 0

    def turn(self) -> None:
        """Handle the socket if it is watched and readable, and then the requested calls."""
        if self.events & READ and select.select([self.sock], [], [], 0)[0]:
            self.ready(READ)
        for _ in range(len(self.soon)):
            callback, args = self.soon.popleft()
            callback(*args)


class Pair:
    """A client's channel with two streams, and the core of its broker."""

    def __init__(self) -> None:
        mine, self.peer = socket.socketpair()
        self.loop = StepLoop(mine)
        self.events: list[Event] = []
        self.broker = Connection(is_client=False, greeting=b"", now=0)
        connection = Connection(is_client=True, greeting=b"", now=0)
        self.channel = SocketChannel(
            cast(Loop, self.loop),
            mine,
            connection,
            self.events.append,
            handles_anywhere=lambda event: isinstance(event, Received) and event.stream == 1,
        )
        self.loop.turn()
        self._serve()
        self.loop.turn()
        for _ in range(2):
            self.channel.command(lambda core: core.open("m", b"", credit=1 << 20))
        self._serve()
        self.events.clear()
        self.sent: list[tuple[int, bytes]] = []

    def _serve(self) -> None:
        for event in self.broker.receive(memoryview(self.peer.recv(1 << 16)), 0):
            assert isinstance(event, Ready | StreamOpened)
        self._flush()

    def _flush(self) -> None:
        self.peer.sendall(b"".join(map(bytes, self.broker.output())))

    def send(self, stream: int) -> None:
        self.sent.append((stream, b"%d" % len(self.sent)))
        self.broker.send(*self.sent[-1])
        self._flush()

    @property
    def received(self) -> list[tuple[int, bytes]]:
        return [(each.stream, each.header) for each in self.events if isinstance(each, Received)]

    def close(self) -> None:
        self.peer.close()
        self.loop.sock.close()


@pytest.mark.rule("the reader of a connection", "transport/reading_turn.py", "transport/channel.py")
def test_events_keep_their_order_whichever_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can happen during a wait happens, in random order."""
    for seed in range(examples(300)):
        chance, pair = random.Random(seed), Pair()
        answers: list[int] = []  # that the waits have wanted until now

        def is_done(pair: Pair = pair, answers: list[int] = answers) -> bool:
            return sum(stream == 1 for stream, _ in pair.received) >= len(answers)

        def wait(
            sock: socket.socket,
            wake_up: WakeUp,
            timeout_s: float,
            pair: Pair = pair,
            chance: random.Random = chance,
            is_done: Callable[[], bool] = is_done,
        ) -> bool:
            choice = chance.random()
            if choice < 0.4:
                pair.send(chance.choice((1, 2)))
            elif choice < 0.6:
                pair.loop.turn()
            elif choice < 0.7:
                pair.channel._tick()
            elif choice < 0.75:
                pair.channel.read_until(is_done)  # within the wait
            elif choice < 0.8:
                pair.loop.ready(READ)  # an event from before the wait
            elif choice < 0.85:
                pair.channel.wake()
            return bool(select.select([sock], [], [], 0)[0])

        monkeypatch.setattr(channels, "wait_readable", wait)
        for _ in range(chance.randrange(1, 8)):
            answers.append(1)
            if chance.random() < 0.5:
                pair.send(chance.choice((1, 2)))
            pair.channel.read_until(is_done, 60)
            if not is_done():
                pair.send(1)
            while not is_done() or pair.loop.soon:
                pair.loop.turn()
        pair.loop.turn()
        assert pair.received == pair.sent, seed
        assert pair.loop.events & READ, seed
        pair.close()


def test_an_answer_is_handled_on_the_thread_that_waits_for_it() -> None:
    pair = Pair()
    pair.send(1)
    assert pair.channel.read_until(lambda: bool(pair.received), 20) is not None
    assert pair.received == [(1, b"0")]
    assert not pair.loop.soon
    pair.close()


def test_a_thread_passes_events_of_other_streams_to_the_loop() -> None:
    pair = Pair()
    pair.send(2)
    pair.send(1)
    pair.channel.read_until(lambda: bool(pair.received), 20)
    assert pair.received == []
    assert not pair.loop.events & READ  # nobody receives before the loop has handled the event
    pair.loop.turn()
    assert pair.received == [(2, b"0"), (1, b"1")]
    pair.close()


def test_the_loop_reports_a_connection_that_ends_during_a_wait() -> None:
    pair = Pair()
    pair.peer.close()
    pair.channel.read_until(lambda: False, 20)
    assert pair.events == []
    pair.loop.turn()
    assert isinstance(pair.events[-1], Lost)
    pair.close()


def test_a_wait_ends_with_its_timeout_and_gives_the_socket_back() -> None:
    pair = Pair()
    began = time.monotonic()
    assert pair.channel.read_until(lambda: False, 0.05) == 0
    assert time.monotonic() - began >= 0.05
    assert pair.loop.events & READ
    pair.close()


def test_another_thread_ends_a_wait() -> None:
    pair, done = Pair(), threading.Event()

    def finish() -> None:
        while pair.channel._wake_up is None:
            time.sleep(0.001)
        done.set()
        pair.channel.wake()

    other = threading.Thread(target=finish)
    other.start()
    left_s = pair.channel.read_until(done.is_set, 60)
    other.join()
    assert left_s is not None
    assert left_s > 1
    pair.close()


def test_a_signal_handler_runs_before_or_after_an_event_on_the_main_thread() -> None:
    """Its exception ends the wait, and leaves no event half handled."""
    pair = Pair()
    received, handle = list[Event](), pair.channel._handle

    def slow(event: Event) -> None:
        signal.raise_signal(signal.SIGUSR1)
        received.append(event)
        handle(event)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pair.channel._handle = slow
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        pair.send(1)
        with pytest.raises(KeyboardInterrupt):
            pair.channel.read_until(lambda: False, 60)
        assert len(received) == len(pair.received) == 1
        assert signal.getsignal(signal.SIGUSR1) is interrupt
        assert pair.channel._turn.is_loops
    finally:
        signal.signal(signal.SIGUSR1, before)
    pair.close()


def test_a_signal_handler_ends_a_wait_on_the_main_thread() -> None:
    pair = Pair()
    main = threading.get_ident()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        while pair.channel._wake_up is None:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    other = threading.Thread(target=send)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pair.channel.read_until(lambda: False, 60)
    finally:
        signal.signal(signal.SIGUSR1, before)
        other.join()
    assert pair.channel._turn.is_loops
    pair.close()


def test_many_threads_wait_on_one_connection(place: Begin) -> None:
    """Each gets its own answers, while one of them reads for all."""
    channel = cast(Any, place).connect()
    failures: list[str] = []

    def call(number: int) -> None:
        for turn in range(40):
            sent = b"%d-%d" % (number, turn)
            answer = channel.call("echo", sent, b"", 30)
            if bytes(answer.header) != sent:
                failures.append(f"{sent!r}: {answer!r}")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    channel.close()


def test_only_threads_that_read_need_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have a thread for each of its clients, and 1,024 descriptors."""
    made = list[WakeUp]()
    monkeypatch.setattr(channels, "WakeUp", lambda: made.append(WakeUp()) or made[-1])
    monkeypatch.setattr(channels, "_WAKE_UPS", channels.WakeUps())
    pair, is_over = Pair(), threading.Event()
    for _ in range(3):  # one after the other
        reader = threading.Thread(target=pair.channel.read_until, args=(is_over.is_set, 60))
        reader.start()
        eventually(lambda: pair.channel._turn.waiting is not None)
        waiting = [
            threading.Thread(target=pair.channel.read_until, args=(lambda: False, 60))
            for _ in range(20)
        ]
        for each in waiting:
            each.start()
        for each in waiting:
            each.join(60)
        is_over.set()
        pair.channel.wake()
        reader.join(60)
        is_over.clear()
    assert len(made) == 1
    channels._WAKE_UPS.close()
    pair.close()


def test_the_loop_reads_for_a_thread_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> WakeUp:
        raise OSError("too many open files")

    monkeypatch.setattr(channels, "WakeUp", fails)
    monkeypatch.setattr(channels, "_WAKE_UPS", channels.WakeUps())
    pair = Pair()
    assert pair.channel.read_until(lambda: False, 60) == pytest.approx(60, abs=30)
    pair.send(1)
    pair.loop.turn()
    assert pair.received == pair.sent
    pair.close()
