"""Appends of batches that another program has stamped, such as a Kafka producer.

A batch is sent once. After a failure the caller sends it again, with the same stamp, by which the
leader recognises a duplicate. The writer has no state of a producer. The caller sends the batches
of a producer to a partition in the order of their sequences. The writer keeps this order within a
schema only. So the caller awaits all answers before it sends in another schema.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import count
from typing import Final

import pyarrow as pa
from msgspec import Struct, field

from spark_stream.client.connecting.routes import Route
from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.lanes import Outgoing
from spark_stream.client.writing.loop import AppendStream
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.errors import IsologError
from spark_stream.transport.channel import ChannelWaits
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.stream_messages import Ack, AppendTo, BatchRefused, Envelope
from spark_stream.wire.topic_messages import TopicDescription

_IDLE_S: Final = 60.0
"""The time without a batch after which a stream is ended."""

_Place = tuple[str, int, str, str | None]
"""A topic's id and schema version, the address of its leader, and a transactional id."""


class PendingAck:
    """The pending answer to an append. A thread that waits for it may read the connection."""

    def __init__(self, route: Route, answers: ChannelWaits) -> None:
        self.route = route
        self.answer: Future[Ack] = Future()
        self._answers = answers

    def result(self, timeout_s: float | None) -> Ack:
        """Return the answer of the leader, which may refuse the batch.

        Raises:
            TimeoutError: There was no answer in time.
            IsologError: The stream ended before the answer.
        """
        left_s = self._answers.read_until(self.answer.done, timeout_s)
        return self.answer.result(left_s)


class _OpenStream(Struct, eq=False):
    """A stream to a leader, with the batches that it has not answered, by their numbers.

    ``error``: the error that ended it, or None.
    """

    place: _Place
    used: float
    stream: AppendStream
    answers: ChannelWaits = field(default_factory=ChannelWaits)
    waiting: dict[int, PendingAck] = field(default_factory=dict)
    error: IsologError | None = None


class StampedWriter:
    """The streams of appends with an isolation level. Thread-safe.

    There is one to each leader of a topic, for each schema of it and each transactional id.

    ``timeout_ms``: the longest time until an answer of a leader.
    """

    def __init__(self, topics: TopicsClient, isolation: Isolation, timeout_ms: int) -> None:
        self._topics = topics
        self._isolation = isolation
        self._timeout_ms = timeout_ms
        self._lock = new_lock()
        self._opening = new_lock(is_brief=False)
        self._streams: dict[int, _OpenStream] = {}
        self._by_place: dict[_Place, int] = {}
        self._numbers = count()

    def append(
        self,
        topic: TopicDescription,
        partition: int,
        batch: pa.RecordBatch,
        stamp: Stamp,
        transactional_id: str | None = None,
    ) -> PendingAck:
        """Send a batch in the schema of ``topic`` to the leader of the partition.

        Return its pending answer.

        A stamp with a transaction needs its ``transactional_id``.

        Raises:
            LeaderUnavailable, UnknownTopic, BrokerUnavailable, RequestTimeout: The leader was not
                found, or does not accept a connection. The batch was not sent.
            InternalError: The batch has another schema than ``topic``.
        """
        route = self._topics.router.route(topic.name, topic.id, partition)
        number = next(self._numbers)
        try:
            opened = self._stream_of(topic, route, transactional_id)
        except IsologError as error:
            self._topics.router.on_failed(route, error)
            raise
        with self._lock:
            if opened.error is not None:
                raise opened.error.again()
            opened.waiting[number] = pending = PendingAck(route, opened.answers)
        envelope = Envelope(
            number=number, partition=partition, stamp=stamp, leader_epoch=route.epoch
        )
        deadline = time.monotonic() + self._timeout_ms / 1_000
        try:
            opened.stream.send(
                envelope.to_bytes(), Outgoing(batch, partition, deadline, lambda _: None)
            )
        except BaseException:
            with self._lock:
                opened.waiting.pop(number, None)
            raise
        return pending

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            streams = list(self._streams.values())
            self._streams.clear()
            self._by_place.clear()
        for each in streams:
            each.stream.end()

    def _stream_of(
        self, topic: TopicDescription, route: Route, transactional_id: str | None
    ) -> _OpenStream:
        place = topic.id, topic.schema_version, route.address, transactional_id
        now = time.monotonic()
        with self._opening:
            with self._lock:
                known = self._streams.get(self._by_place.get(place, -1))
                if known is not None:
                    known.used = now
                    return known
            self._end_idle(now)
            shared = self._topics.router.link(route).connect(self._topics.router.timeout_s)
            number = next(self._numbers)
            opened = _OpenStream(
                place, now, AppendStream(number, shared, self._answered, self._ended)
            )
            with self._lock:
                self._streams[number] = opened
                self._by_place[place] = number
            request = AppendTo(
                topic=topic.name,
                topic_id=topic.id,
                transactional_id=transactional_id,
                isolation=self._isolation,
                timeout_ms=self._timeout_ms,
            )
            try:
                opened.stream.start(topic, request)
            except IsologError:
                self._remove(number)
                raise
            opened.answers.channel = opened.stream.channel
            return opened

    def _end_idle(self, now: float) -> None:
        with self._lock:
            idle = [
                number
                for number, each in self._streams.items()
                if not each.waiting and now - each.used > _IDLE_S
            ]
        for number in idle:
            opened = self._remove(number)
            if opened is not None:
                opened.stream.end()

    def _remove(self, number: int) -> _OpenStream | None:
        with self._lock:
            found = self._streams.pop(number, None)
            if found is not None and self._by_place.get(found.place) == number:
                del self._by_place[found.place]
        return found

    def _answered(self, number: int, ack: Ack) -> None:
        with self._lock:
            opened = self._streams.get(number)
            found = None if opened is None else opened.waiting.pop(ack.number, None)
        if opened is None or found is None:
            return
        if isinstance(ack, BatchRefused):
            self._topics.router.on_failed(found.route, ack.error)
        if ack.leader_epoch is not None:
            self._topics.router.on_answer(found.route, ack.leader_epoch)
        found.answer.set_result(ack)
        opened.answers.wake()

    def _ended(self, number: int, error: IsologError) -> None:
        opened = self._remove(number)
        if opened is not None:
            self._fail(opened, error)

    def _fail(self, opened: _OpenStream, error: IsologError) -> None:
        with self._lock:
            opened.error = error
            waiting, opened.waiting = opened.waiting, {}
        for each in waiting.values():
            self._topics.router.on_failed(each.route, error)
            each.answer.set_exception(error.again())
        opened.answers.wake()
