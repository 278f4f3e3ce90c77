"""A stream of batches to one topic, each acknowledged by itself.

The batches of a partition are appended and acknowledged in their order; those of different ones
do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from spark_stream.broker.ack_line import AckLine
from spark_stream.broker.answers import Answers
from spark_stream.broker.append import Append, AppendStream
from spark_stream.broker.append_queues import AppendQueues
from spark_stream.broker.host import Host
from spark_stream.broker.hosted import HostedTopic
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.environment import Clock
from spark_stream.errors import InvalidRequest, SchemaMismatch
from spark_stream.wire.evolution import evolves
from spark_stream.wire.messages import AppendTo, Envelope
from spark_stream.wire.schemas import mismatch


@dataclass(frozen=True)
class Target:
    """What a stream of appends names; it may name the partition of all its batches as well."""

    request: AppendTo
    partition: int | None = None


def serve_appends(
    host: Host,
    desk: TransactionDesk,
    target: Target,
    schema: pa.Schema,
    batches: Iterator[tuple[pa.RecordBatch, bytes]],
    write: Callable[[bytes], None],
    clock: Clock,
) -> None:
    """Appends batch after batch. A refused batch is answered by its error and ends nothing.

    A batch is appended by this thread if its partition is free and needs no preparation. Otherwise
    it goes to the partition's queue, and the stream goes on with the next: a partition that is
    held, or has to make its files or join a transaction first, holds up no other.

    Raises:
        UnknownTopic, SchemaMismatch, InvalidRequest: for the stream as a whole, before any batch.
    """
    request = target.request
    if request.isolation not in PRODUCER_LEVELS:
        raise InvalidRequest(
            f"a producer's isolation is {' | '.join(PRODUCER_LEVELS)}, not {request.isolation}"
        )
    hosted = host.topic(request.topic, request.topic_id)
    _check_fits(host, hosted, schema)
    answers, stream = Answers(write), AppendStream(request, clock, desk.finished)
    queues, line = AppendQueues(), AckLine(clock, request.timeout_ms / 1000)
    try:
        for batch, metadata in batches:
            envelope = _envelope(target, metadata)
            hosted = host.topic(hosted.topic.name, hosted.topic.id)  # it may have been altered
            answer = answers.next_place(envelope.partition)
            append = _StreamAppend(Append(stream, hosted, envelope, batch, answer), desk, line)
            waits = append.partition in queues or append.needs_preparation
            if waits or not append.finish_at_once():
                queues.put(append)
    finally:
        queues.finish()
        line.finish()
    answers.raise_failure()


def _check_fits(host: Host, hosted: HostedTopic, schema: pa.Schema) -> None:
    """SchemaMismatch if a stream's schema neither is the topic's nor may become that.

    Who writes in an earlier schema of the topic goes on; so does who has heard of a newer one
    before this broker.
    """
    if _misfit(hosted.topic, schema) is not None:
        host.refresh()
        wrong = _misfit(host.topic(hosted.topic.name, hosted.topic.id).topic, schema)
        if wrong is not None:
            raise wrong


def _misfit(topic: Topic, schema: pa.Schema) -> SchemaMismatch | None:
    wrong = mismatch(topic.schema, schema)
    if wrong is None or not topic.earlier:
        return wrong
    # Where no nulls are taken, each batch is looked at; what its schema says does not count.
    taken = pa.schema([each.with_nullable(True) for each in topic.schema])
    return None if evolves(schema, taken) else wrong


class _StreamAppend:
    """An append whose steps this thread, one of the queues', or the line's takes."""

    def __init__(self, append: Append, desk: TransactionDesk, line: AckLine) -> None:
        self._append = append
        self._desk = desk
        self._line = line
        self.partition = append.partition
        self.needs_preparation = append.needs_preparation

    @cached_property
    def size(self) -> int:
        """What it holds of memory, in bytes; only who waits for the partition is asked."""
        return self._append.size

    @property
    def deadline(self) -> float:
        return self._append.deadline

    def finish_at_once(self) -> bool:
        """Whether the partition need not be waited for."""
        if self._desk.run(self._append.finish_at_once()):
            return True
        return self._wait_in_line()

    def finish(self) -> None:
        self._desk.run(self._append.take())
        self._wait_in_line()

    def when_settled(self, heard: Callable[[], None]) -> None:
        assert self._append.pending is not None
        self._append.pending.when_settled(heard)

    def acknowledge(self) -> None:
        self._desk.run(self._append.finish())

    def _wait_in_line(self) -> bool:
        if self._append.pending is None:
            return False
        self._line.put(self)
        return True


def _envelope(target: Target, metadata: bytes) -> Envelope:
    if metadata:
        return Envelope.from_bytes(metadata)
    if target.partition is None:
        raise InvalidRequest("which partition? Name it in the path, or in a batch's app_metadata")
    return Envelope(partition=target.partition)
