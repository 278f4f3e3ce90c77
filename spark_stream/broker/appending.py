"""A stream of batches to one topic, each acknowledged by itself.

The batches of a partition are appended and acknowledged in their order; those of different ones
do not wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from spark_stream.broker.ack_line import AckLine
from spark_stream.broker.answers import Answers
from spark_stream.broker.append import Append, AppendStream
from spark_stream.broker.append_queues import AppendQueues
from spark_stream.broker.host import Host
from spark_stream.broker.hosted import HostedTopic
from spark_stream.broker.joining import join_together
from spark_stream.broker.partition import Partition
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.consistency.producers import Stamp
from spark_stream.environment import Clock
from spark_stream.errors import InvalidRequest, IsologError, SchemaMismatch
from spark_stream.wire.evolution import evolves
from spark_stream.wire.messages import AppendTo, Envelope
from spark_stream.wire.schemas import mismatch

logger = logging.getLogger(__name__)


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
    held, or has to make its files, holds up no other. Those that join a transaction do so together.

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
    queues = AppendQueues(lambda batches: _join(desk, request.transactional_id, batches))
    line = AckLine(clock, request.timeout_ms / 1000)
    try:
        for batch, metadata in batches:
            envelope = _envelope(target, metadata)
            hosted = host.topic(hosted.topic.name, hosted.topic.id)  # it may have been altered
            answer = answers.next_place(envelope.partition)
            append = _StreamAppend(Append(stream, hosted, envelope, batch, answer), desk, line)
            waits = append.partition in queues or append.has_to_join
            if waits or not append.finish_at_once():
                queues.put(append)
    finally:
        queues.finish()
        line.finish()
    answers.raise_failure()


def _join(
    desk: TransactionDesk, transactional_id: str | None, batches: Sequence[_StreamAppend]
) -> None:
    """Let the partitions of these batches join their transactions; never raises.

    Where a batch's partition has not joined then, the append of the batch says why.
    """
    if transactional_id is None:
        return
    groups: dict[tuple[int, int, int], tuple[Stamp, list[Partition]]] = {}
    for partition, stamp in filter(None, (each.append.to_join for each in batches)):
        key = (stamp.transaction, stamp.producer_id, stamp.epoch)
        groups.setdefault(key, (stamp, []))[1].append(partition)
    for stamp, partitions in groups.values():
        try:
            desk.run(join_together(desk.finished, partitions, stamp, transactional_id))
        except IsologError:
            pass
        except Exception:
            logger.exception(
                "%d partitions join transaction %d", len(partitions), stamp.transaction
            )


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
        self.append = append
        self._desk = desk
        self._line = line
        self.partition = append.partition

    @cached_property
    def size(self) -> int:
        """What it holds of memory, in bytes; only who waits for the partition is asked."""
        return self.append.size

    @property
    def deadline(self) -> float:
        return self.append.deadline

    @property
    def has_to_join(self) -> bool:
        return self.append.to_join is not None

    def finish_at_once(self) -> bool:
        """Whether the partition need not be waited for."""
        if self.append.is_cold:
            return False
        if self._desk.run(self.append.finish_at_once()):
            return True
        return self._wait_in_line()

    def finish(self) -> None:
        self._desk.run(self.append.take())
        self._wait_in_line()

    def when_settled(self, heard: Callable[[], None]) -> None:
        assert self.append.pending is not None
        self.append.pending.when_settled(heard)

    def acknowledge(self) -> None:
        self._desk.run(self.append.finish())

    def _wait_in_line(self) -> bool:
        if self.append.pending is None:
            return False
        self._line.put(self)
        return True


def _envelope(target: Target, metadata: bytes) -> Envelope:
    if metadata:
        return Envelope.from_bytes(metadata)
    if target.partition is None:
        raise InvalidRequest("which partition? Name it in the path, or in a batch's app_metadata")
    return Envelope(partition=target.partition)
