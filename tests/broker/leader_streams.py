"""The other end of a leader's stream of replication, in a test's hands."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_stream.broker.links import LedPartitions
from spark_stream.broker.replication.leader_stream import LeaderStream
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.environment import Clock, SystemClock
from spark_stream.protocol import Received
from spark_stream.wire.replication_messages import (
    Agreed,
    Follow,
    OpenReplication,
    Said,
    Welcome,
    unpack,
)
from tests.broker.local_broker import LocalBroker
from tests.support import eventually


class Follower:
    """The other end of a leader's stream: says what it is told to, and notes what it hears."""

    def __init__(self, stream: LeaderStream) -> None:
        self._stream = stream
        self._said: queue.Queue[Said | None] = queue.Queue()
        self.heard: list[Said] = []

    def say(self, message: Said | None) -> None:
        self._said.put(message)

    def receive(self) -> Received | None:
        message = self._said.get()
        if message is None:
            return None
        packed = message.pack()
        assert isinstance(packed, bytes)
        return Received(1, packed, b"", end=False)

    def listen(self) -> None:
        for header, body in self._stream.messages():
            self.heard.append(unpack(header, body))

    def has_heard(self, kind: type[Said], number: int) -> bool:
        return any(isinstance(each, kind) and each.slot == number for each in self.heard)  # type: ignore[union-attr]


@contextmanager
def followed(
    leader: LocalBroker, follower: LocalBroker, partitions: int, clock: Clock | None = None
) -> Iterator[Follower]:
    """The follower has a session for each of so many partitions of ``t``; slots are numbered so."""
    opened = OpenReplication(
        stream="s",
        follower=follower.id,
        proof="",
        window_bytes=16 << 20,
    )
    welcome = Welcome(1, "")
    led = LedPartitions(leader.host)
    stream = LeaderStream(opened, welcome, led, ReplicationSettings(), clock or SystemClock())
    found = Follower(stream)
    threads = [
        threading.Thread(target=found.listen),
        threading.Thread(target=stream.take_all, args=(found,)),
    ]
    for each in threads:
        each.start()
    try:
        for number in range(partitions):
            copy = follower.replica("t", number)
            place = (number, copy.topic_id, number, int(copy.leader_epoch))
            found.say(Follow(*place, follower.generation, copy.following.history()))
            eventually(lambda number=number: found.has_heard(Agreed, number))
        yield found
    finally:
        found.say(None)
        for each in threads:
            each.join(60)
