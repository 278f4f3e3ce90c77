"""A topic's batches on their way to one broker, which leads some of its partitions.

A channel has the lanes of these partitions, a stream while its broker is there, and a thread that
connects, and that writes where the callers do not write themselves. What happens to its stream it
tells its delivery, which decides where the lanes go then.

All channels of a delivery share its lock. It is the innermost: nothing that takes time or another
lock is called under it. One thread at a time writes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from spark_stream.client.connecting.link import BrokerLink
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.writing.appending import AppendStream
from spark_stream.client.writing.lanes import Identity, Lane, Outgoing
from spark_stream.errors import BrokerUnavailable, IsologError
from spark_stream.wire.messages import Ack, AppendTo, Envelope, TopicDescription

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


@dataclass(slots=True)
class Author:
    """The identity that a producer writes under at the moment; None until it has one."""

    identity: Identity | None = None
    transactional_id: str | None = None


@dataclass(slots=True, eq=False)
class PlacedLane:
    """The lane of a partition, and the channel that it is in with the way there, if it is in one.

    ``listed``: it is among those of its channel that may have something to send. ``reason``: why it
    was taken out of its last one; it looks for another after ``retry_at`` (monotonic clock).
    """

    partition: int
    lane: Lane
    channel: Channel | None = None
    route: Route | None = None
    listed: bool = False
    reason: IsologError | None = None
    retry_at: float = 0.0
    _failures: int = 0

    def failed(self, reason: IsologError) -> None:
        """It did not get through; the next try comes later each time."""
        pause = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self.reason = reason
        self.retry_at = time.monotonic() + pause

    def got_through(self) -> None:
        """A batch was answered."""
        self._failures = 0
        self.reason = None


class Owner(Protocol):
    """What a channel tells its delivery."""

    def answered(self, channel: Channel, stream: AppendStream, ack: Ack) -> None: ...

    def ended(self, channel: Channel, stream: AppendStream | None, reason: IsologError) -> None: ...

    def want(self) -> None: ...


class Channel:
    """To one broker, by ``link``, for one topic. Who calls what holds the lock says its docstring.

    ``request`` opens a stream; its ``transactional_id`` is the author's then.
    """

    def __init__(
        self,
        link: BrokerLink,
        router: Router,
        topic: TopicDescription,
        author: Author,
        request: AppendTo,
        lock: threading.Lock,
        owner: Owner,
    ) -> None:
        self.link = link
        self.lanes: dict[int, PlacedLane] = {}
        self.stream: AppendStream | None = None
        self._router = router
        self._topic = topic
        self._author = author
        self._request = request
        self._lock = lock
        self._work = threading.Condition(lock)
        self._owner = owner
        self._ready: deque[PlacedLane] = deque()
        self._pumping = False
        self._connecting = False  # from another thread than its own
        self._next_number = 0
        self._progress = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- lanes: the caller holds the lock ---------------------------------------------------------

    def place(self, placed: PlacedLane, route: Route) -> None:
        """The lane's batches go here from now on."""
        placed.channel, placed.route = self, route
        self.lanes[placed.partition] = placed
        self.list(placed)

    def remove(self, placed: PlacedLane) -> None:
        """The lane goes elsewhere; what of it is not answered will be sent again there."""
        placed.lane.lost()
        placed.channel = None
        self.lanes.pop(placed.partition, None)
        if placed.listed:
            self._ready.remove(placed)
            placed.listed = False

    def list(self, placed: PlacedLane) -> None:
        """The lane has something to send, if it is not told already."""
        if not placed.listed and placed.lane.sent < len(placed.lane):
            placed.listed = True
            self._ready.append(placed)

    def wake(self) -> None:
        """Has the channel's own thread connect, or send what is listed."""
        if self._thread is None and not (self._closed or self._connecting):
            self._thread = threading.Thread(
                target=self._run, name=f"isolog-append-{self._topic.name}", daemon=True
            )
            self._thread.start()
        if not self._pumping:  # whoever is at it looks once more before it ends
            self._work.notify()

    @property
    def waiting(self) -> bool:
        """Whether lanes have batches, and need a stream or the thread for them."""
        if self.stream is None:
            return any(len(each.lane) for each in self.lanes.values())
        return bool(self._ready)

    @property
    def under_way(self) -> bool:
        """Whether batches were sent and are not answered."""
        return any(each.lane.sent for each in self.lanes.values())

    def progressed(self) -> None:
        """The broker has answered."""
        self._progress = time.monotonic()

    def late(self, now: float) -> bool:
        """Whether a batch was not answered in its time, or none in the time of a call."""
        if any(each.lane.late(now) for each in self.lanes.values()):
            return True
        return self.under_way and now - self._progress > self._router.timeout_s

    def lost(self, stream: AppendStream | None) -> bool:
        """The stream has ended, or could not be opened; False: it was not the present one."""
        if stream is not self.stream:
            return False
        self.stream = None
        return True

    def alter(self, topic: TopicDescription) -> AppendStream | None:
        """The topic's schema was altered: what is sent from now on goes on another stream.

        The present one, if there is one, is the caller's to close.
        """
        self._topic = topic
        stream = self.stream
        if stream is None or not self.lost(stream):
            return None
        for placed in self.lanes.values():
            placed.lane.lost()
            self.list(placed)
        return stream

    # -- sending ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what can go now, from the calling thread."""
        with self._lock:
            if self._pumping:
                return  # the thread that is sending takes these too
            self._pumping = True
        while True:
            with self._lock:
                found = self._taken()
                if found is None:
                    self._pumping = False
                    if self.stream is None and self.waiting:  # its schema was altered
                        self.wake()
                    break
            stream, batch, epoch = found
            envelope = Envelope(
                number=batch.number,
                partition=batch.partition,
                stamp=batch.stamp,
                leader_epoch=epoch,
            )
            try:
                stream.write(batch.whole(), envelope.to_bytes())
            except BaseException:  # the caller was interrupted: the batch goes again in time
                with self._lock:
                    self._pumping = False
                    self.wake()
                raise

    def _taken(self) -> tuple[AppendStream, Outgoing, int | None] | None:
        """The next batch to send, with the stream and the leader epoch for it."""
        while self.stream is not None and self._ready:
            placed = self._ready[0]
            lane = placed.lane
            if not lane.sent:
                self.progressed()  # it owed nothing for this lane until now
            batch = lane.next(self._author.identity)
            if batch is not None:
                batch.number = self._next_number
                self._next_number += 1
                assert placed.route is not None
                return self.stream, batch, placed.route.epoch
            self._ready.popleft()
            placed.listed = False
            if lane.used_up(self._author.identity):
                self._author.identity = None
        return None

    # -- the channel's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (self._pumping or self._connecting or not self.waiting):
                    self._work.wait()
                if self._closed:
                    return
            if self.stream is None and not self._connected():
                continue
            self.pump()
            self._owner.want()

    def serve(self) -> None:
        """Connects and sends from the calling thread, which may wait, where no other does."""
        with self._lock:
            if self._thread or self._connecting or self._closed or self.stream or not self.waiting:
                return
            self._connecting = True
        try:
            connected = self._connected()
        finally:
            with self._lock:
                self._connecting = False
                self._work.notify()
        if connected:
            self.pump()

    def _connected(self) -> bool:
        """Whether there is a stream now; if not, the delivery has taken the lanes away."""
        try:
            self._connect()
        except IsologError as error:
            self._owner.ended(self, None, error)
            return False
        return True

    def _connect(self) -> None:
        topic = self._topic
        request = structs.replace(self._request, transactional_id=self._author.transactional_id)

        def answered(stream: AppendStream, ack: Ack) -> None:
            self._owner.answered(self, stream, ack)

        def ended(stream: AppendStream, reason: IsologError) -> None:
            self._owner.ended(self, stream, reason)

        shared = self.link.connect(self._router.timeout_s)
        stream = AppendStream(shared, topic, request, answered, ended)
        with self._lock:  # its answers wait for it
            if not self._closed and topic is self._topic:  # else it was altered meanwhile
                stream.start()
                self.stream = stream
                self._progress = time.monotonic()

    def break_off(self, reason: BrokerUnavailable) -> None:
        """Ends the stream and its connection; without the lock."""
        stream = self.stream
        if stream is not None:
            stream.break_off(reason)

    def close(self) -> None:
        """Waits for the last acknowledgements, and for the thread; without the lock."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            stream, thread = self.stream, self._thread
        if stream is not None:
            stream.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._router.timeout_s)
        with self._lock:
            self.lost(self.stream)
