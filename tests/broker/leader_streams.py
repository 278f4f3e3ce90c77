"""The other end of a leader's stream of replication, driven by a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from spark_stream.broker.replication.interfaces import Background, ReplicationContext
from spark_stream.broker.replication.leader_stream import LeaderStream
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.serving.pool import Pool
from spark_stream.environment import Clock, SystemClock
from spark_stream.protocol import VERSION, Bytes, Received, StreamOver
from spark_stream.transport.loop import Loop
from spark_stream.transport.streams import Handle, Stream, ignore
from spark_stream.wire.replication_messages import (
    Agreed,
    Follow,
    OpenReplication,
    Said,
    Welcome,
    unpack,
)
from tests.broker.local_broker import LocalBroker
from tests.broker.replication.nodes import identity
from tests.support import eventually


class Follower:
    """The stream of a leader, and its other end, which notes received messages and sends others."""

    def __init__(self) -> None:
        self.handle: Handle = ignore
        self.heard: list[Said] = []
        self._is_over = False

    def say(self, message: Said) -> None:
        packed = message.pack()
        assert isinstance(packed, bytes)
        self.handle(Received(1, packed, b"", end=False))

    def send(self, header: Bytes, body: Bytes = b"", *, end: bool = False) -> bool:
        if self._is_over:
            raise StreamOver("it is over")
        if not end:
            self.heard.append(unpack(header, body))
        return True

    version = VERSION

    def grant_credit(self, size: int) -> None:
        """Unlimited credit."""

    def fail(self, error: bytes) -> None:
        self._is_over = True

    def has_heard(self, kind: type[Said], number: int) -> bool:
        return any(isinstance(each, kind) and each.slot == number for each in self.heard)  # type: ignore[union-attr]


@contextmanager
def followed(
    leader: LocalBroker, follower: LocalBroker, partitions: int, clock: Clock | None = None
) -> Iterator[Follower]:
    """The follower has a session for each of so many partitions of ``t``, in slot order."""
    opened = OpenReplication(
        stream="s",
        follower=follower.id,
        proof="",
        window_bytes=16 << 20,
    )
    found, loop = Follower(), Loop("a leader's stream")
    pool = Pool(loop)
    stream = LeaderStream(
        ReplicationContext(
            identity(leader.id),
            ReplicationSettings(),
            clock or SystemClock(),
            Background(pool.submit, pool.submit_after, loop.call_later),
        ),
        opened,
        Welcome(1, ""),
        cast(Stream, found),
        leader.host,
        lambda _: None,
        None,
    )
    stream.begin()
    try:
        for number in range(partitions):
            copy = follower.replica("t", number)
            place = (number, copy.topic_id, number, int(copy.leader_epoch))
            found.say(Follow(*place, follower.generation, copy.following.history()))
            eventually(lambda number=number: found.has_heard(Agreed, number))
        yield found
    finally:
        stream.end()
        pool.stop()
        loop.close()
