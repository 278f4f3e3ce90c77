"""One topic's batches on their way to the leader: sent, answered, and sent again if need be.

A batch that was entered is settled exactly once: by its acknowledgement, by an error that the
broker gave it, or when its time is over. When a stream breaks, what it did not answer goes out
again on the next, in its order and under its old stamps: the leader knows what it has already. So a
lost connection, or a broker that comes back in time, costs nothing but the wait.

What was sent and not answered in time has an *unknown outcome*. What was never sent has the error
that kept it from being sent.

Locks: ``_lock`` is the innermost, and nothing that takes time or another lock is called under it.
One thread at a time writes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.values import TopicDescription
from spark_stream.client.writing.appending import AppendStream
from spark_stream.client.writing.lanes import Identity, Lane, Outgoing, Settle
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InternalError,
    IsologError,
    OutOfOrderSequence,
    UnknownOutcome,
    from_wire,
)
from spark_stream.wire.messages import AppendTo, Envelope

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


@dataclass(slots=True)
class Author:
    """The identity that a producer writes under at the moment; None until it has one."""

    identity: Identity | None = None
    transactional_id: str | None = None


class Delivery:
    """To one topic, for any thread. ``wanted`` is called when :meth:`serve` has something to do."""

    def __init__(
        self,
        connection: Connection,
        topic: TopicDescription,
        author: Author,
        request: AppendTo,
        wanted: Callable[[Delivery], None],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._author = author
        self._request = request
        self._wanted = wanted
        self._lock = threading.Lock()
        self._stream: AppendStream | None = None
        self._pumping = False
        self._lanes: dict[int, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._next_number = 0
        self._reason: IsologError | None = None
        self._failures = 0
        self._progress = 0.0
        self.retry_at = 0.0
        """When, on the monotonic clock, :meth:`serve` may try again."""
        self.partitions = len(topic.partitions)
        """How many the topic has, as the last answer said."""

    @property
    def live(self) -> bool:
        """Whether a batch that is entered now can go at once."""
        return self._stream is not None and self._author.identity is not None

    @property
    def topic(self) -> TopicDescription:
        """Where the batches go."""
        return self._topic

    def enter(self, batch: pa.RecordBatch, partition: int, settle: Settle) -> None:
        """Takes charge of a batch, which goes after the earlier ones of its partition.

        :meth:`pump` sends it.
        """
        deadline = time.monotonic() + self._request.timeout_ms / 1000
        with self._lock:
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = Lane()
            lane.add(Outgoing(batch, partition, deadline, settle))
            self._list(lane)

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
                    wanting = self._wanting()
                    break
            stream, batch = found
            envelope = Envelope(number=batch.number, partition=batch.partition, stamp=batch.stamp)
            try:
                stream.write(batch.batch, envelope.to_bytes())
            except BaseException:  # the caller was interrupted: the batch goes again in time
                with self._lock:
                    self._pumping = False
                raise
        if wanting:
            self._wanted(self)

    def serve(self) -> None:
        """Connects if need be, and sends. A failure is tried again later, or settles the batches.

        For the one thread that may wait for a connection.
        """
        if self._stream is None and any(map(len, self._lanes.values())):
            try:
                self._connect()
            except IsologError as error:
                self.postpone(error)
                return
        with self._lock:
            for lane in self._lanes.values():
                self._list(lane)
        self.pump()

    def postpone(self, error: IsologError) -> None:
        """After a failure before anything was sent: tries again later if that may help."""
        if not _passing(error):
            self.clear(error)
            return
        with self._lock:
            self._pause(error)
        self._wanted(self)

    def expire(self) -> None:
        """Settles the batches whose time is over. To be called now and then.

        A stream on which nothing was answered in time ends, and with it its connection.
        """
        now = time.monotonic()
        with self._lock:
            stream = self._stream
            late = any(lane.late(now) for lane in self._lanes.values())
            under_way = any(lane.sent for lane in self._lanes.values())
            stuck = under_way and now - self._progress > self._connection.timeout_s
        if stream is not None and (late or stuck):
            stream.break_off(self._silence())
        with self._lock:
            over = [batch for lane in self._lanes.values() for batch in lane.expired(now)]
            reason = self._reason or self._silence()
        for batch in over:
            batch.settle(-1, self._outcome(batch, reason))
        if over:
            self._wanted(self)

    def clear(self, error: IsologError) -> None:
        """Settles all that is not answered with the error; answers that still come are ignored."""
        with self._lock:
            left = [batch for lane in self._lanes.values() for batch in lane.cleared()]
        for batch in left:
            batch.settle(-1, error)

    def close(self) -> None:
        """Waits for the last acknowledgements."""
        stream = self._stream
        if stream is not None:
            stream.close()

    # -- sending --------------------------------------------------------------------------------

    def _list(self, lane: Lane) -> None:
        if not lane.listed and lane.sent < len(lane):
            lane.listed = True
            self._ready.append(lane)

    def _taken(self) -> tuple[AppendStream, Outgoing] | None:
        """The next batch to send, with the stream for it; the caller holds the lock."""
        while self._stream is not None and self._ready:
            lane = self._ready[0]
            if not lane.sent:
                self._progress = time.monotonic()
            batch = lane.next(self._author.identity)
            if batch is not None:
                batch.number = self._next_number
                self._next_number += 1
                return self._stream, batch
            self._ready.popleft()
            lane.listed = False
            if lane.used_up(self._author.identity):
                self._author.identity = None
        return None

    def _wanting(self) -> bool:
        """Whether something waits for a stream or an identity."""
        if self._stream is not None and self._author.identity is not None:
            return False
        return any(map(len, self._lanes.values()))

    def _connect(self) -> None:
        request = self._request.model_copy(
            update={"transactional_id": self._author.transactional_id}
        )
        link = self._connection.link()
        stream = link.once(
            lambda client, _: AppendStream(
                link, client, self._topic, request, self._answered, self._ended
            ),
            self._connection.timeout_s,
        )
        # Before anybody can write to it; its answers wait for the lock.
        with self._lock:
            stream.start()
            self._stream = stream
            self._progress = time.monotonic()

    # -- answers --------------------------------------------------------------------------------

    def _answered(self, stream: AppendStream, ack: dict[str, Any]) -> None:
        refused = ack.get("error")
        error = from_wire(refused) if isinstance(refused, dict) else None
        if isinstance(error, BrokerStopping):
            self._ended(stream, error)
            return
        self.partitions = ack.get("partitions", self.partitions)
        with self._lock:
            lane = self._lanes.get(ack["partition"])
            if stream is not self._stream or lane is None:
                return
            batch = lane.head(ack["number"])
            if batch is None:
                return  # settled meanwhile, or sent again
            self._progress = time.monotonic()
            self._failures = 0
            self._reason = None
            if isinstance(error, OutOfOrderSequence) and lane.begins_anew(error):
                lane.anew()
                batch = None
            else:
                lane.pop()
            self._list(lane)
            more = lane.listed
        if batch is not None:
            offset = ack.get("offset")
            batch.settle(-1 if offset is None else int(offset), self._told(batch, error))
        if more:
            self._wanted(self)

    def _ended(self, stream: AppendStream, reason: IsologError) -> None:
        with self._lock:
            if stream is not self._stream:
                return
            self._stream = None
            for lane in self._lanes.values():
                lane.lost()
                self._list(lane)
            self._pause(reason)
            waiting = any(map(len, self._lanes.values()))
        if not _passing(reason):
            self.clear(reason)
        elif waiting:
            self._wanted(self)

    def _pause(self, reason: IsologError) -> None:
        self._reason = reason
        pause = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self.retry_at = time.monotonic() + pause

    # -- outcomes -------------------------------------------------------------------------------

    def _told(self, batch: Outgoing, error: IsologError | None) -> IsologError | None:
        """The error as the caller gets it."""
        if isinstance(error, OutOfOrderSequence) and self._author.transactional_id is None:
            return self._unknown(batch, error)
        return error

    def _outcome(self, batch: Outgoing, reason: IsologError) -> IsologError:
        return reason if batch.stamp is None else self._unknown(batch, reason)

    def _unknown(self, batch: Outgoing, reason: IsologError) -> IsologError:
        name = self._topic.name
        return UnknownOutcome(
            f"{name}/{batch.partition}: {batch.batch.num_rows} records were sent and not"
            f" acknowledged: {reason.message}",
            topic=name,
            partition=batch.partition,
        )

    def _silence(self) -> IsologError:
        return BrokerUnavailable(
            f"no acknowledgement from {self._connection.address} in"
            f" {self._request.timeout_ms / 1000:g} s"
        )


def _passing(error: IsologError) -> bool:
    """Whether another try may help: nothing is wrong with what was asked."""
    return error.retriable or isinstance(error, InternalError)
