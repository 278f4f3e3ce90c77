"""A DoPut: a stream of batches to one topic, each acknowledged by itself.

The batches of a partition are appended and acknowledged in their order; those of different ones
do not wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.append_queues import AppendQueues, Serialised
from spark_stream.broker.host import Host, HostedTopic
from spark_stream.broker.joining import TakeBatch, take_in_transaction
from spark_stream.broker.outcomes import Appended, Candidate, Taken
from spark_stream.broker.partition import Partition
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.consistency.producers import Stamp
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerBusy,
    InternalError,
    InvalidRequest,
    IsologError,
    RequestTimeout,
    UnknownPartition,
)
from spark_stream.wire.messages import Ack, AppendTo, Envelope, StampFacts
from spark_stream.wire.schemas import mismatch

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 0.005


class BatchReader(Protocol):
    """Where batches come from (Flight's reader)."""

    @property
    def schema(self) -> pa.Schema: ...

    def read_chunk(self) -> fl.FlightStreamChunk: ...


class AckWriter(Protocol):
    """Where acknowledgements go (Flight's metadata writer)."""

    def write(self, message: pa.Buffer | bytes) -> None: ...


@dataclass(frozen=True)
class Target:
    """What a DoPut's descriptor names; a path may name the partition of all its batches as well."""

    request: AppendTo
    partition: int | None = None


def target_of(descriptor: fl.FlightDescriptor) -> Target:
    """From a descriptor: an AppendTo message as its command, or the path [topic(, partition)]."""
    if descriptor.descriptor_type == fl.DescriptorType.PATH:
        path = [part.decode("utf-8", "replace") for part in descriptor.path]
        if not 1 <= len(path) <= 2 or not path[0]:
            raise InvalidRequest(f"a path is [topic] or [topic, partition], not {path}")
        number = _partition_of(path[1]) if len(path) == 2 else None
        return Target(AppendTo(topic=path[0][:255]), number)
    return Target(AppendTo.from_bytes(descriptor.command))


def _partition_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequest(f"{text[:40]!r} is not the number of a partition")
    if len(text) > 9:
        raise UnknownPartition(f"no topic has a partition {text[:40]}")
    return int(text)


def serve_appends(
    host: Host,
    desk: TransactionDesk,
    target: Target,
    reader: BatchReader,
    acks: AckWriter,
    clock: Clock,
) -> None:
    """Appends batch after batch. A refused batch is answered by its error and ends nothing.

    A batch is appended by this thread if its partition is free. Else it goes to the partition's
    queue, and the stream goes on with the next: a partition that is held holds up no other.

    Raises:
        UnknownTopic, SchemaMismatch, InvalidRequest: for the stream as a whole, before any batch.
    """
    request = target.request
    if request.isolation not in PRODUCER_LEVELS:
        raise InvalidRequest(
            f"a producer's isolation is {' | '.join(PRODUCER_LEVELS)}, not {request.isolation}"
        )
    hosted = host.topic(request.topic, request.topic_id)
    wrong = mismatch(hosted.topic.schema, reader.schema)
    if wrong is not None:
        raise wrong
    stream = _Stream(desk, request, Serialised(acks.write), clock)
    queues = AppendQueues()
    try:
        for batch, metadata in _batches(reader):
            envelope = _envelope(target, metadata)
            hosted = host.topic(hosted.topic.name, hosted.topic.id)  # it may have been altered
            append = _Append(stream, hosted, envelope, batch)
            if envelope.partition in queues or not append.finish_at_once():
                queues.put(append)
    finally:
        queues.finish()
    stream.acks.raise_failure()


def _batches(
    reader: BatchReader,
) -> Iterator[tuple[pa.RecordBatch, pa.Buffer | None]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except fl.FlightError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"the stream is not valid Arrow IPC: {error}") from None
        if chunk.data is None:
            raise InvalidRequest("a message without a batch")
        yield chunk.data, chunk.app_metadata


def _envelope(target: Target, metadata: pa.Buffer | None) -> Envelope:
    if metadata is not None and metadata.size:
        return Envelope.from_bytes(metadata.to_pybytes())
    if target.partition is None:
        raise InvalidRequest("which partition? Name it in the path, or in a batch's app_metadata")
    return Envelope(partition=target.partition)


@dataclass(frozen=True)
class _Stream:
    """What all appends of a stream share."""

    desk: TransactionDesk
    request: AppendTo
    acks: Serialised
    clock: Clock


class _Append:
    """One batch, from the stream to its acknowledgement.

    Its time begins when it is read. Over it, a batch that is not in the log yet is refused and may
    be sent again; of one that is in the log, and not as safe as it asked to be, the outcome is
    unknown.
    """

    def __init__(
        self, stream: _Stream, hosted: HostedTopic, envelope: Envelope, batch: pa.RecordBatch
    ) -> None:
        self._stream = stream
        self._hosted = hosted
        self._envelope = envelope
        self._batch = batch
        self._stamp = _stamp(envelope.stamp)
        self._deadline = stream.clock.monotonic() + stream.request.timeout_ms / 1000
        self._candidate: Candidate | None = None
        self._taken: Taken | None = None
        self.partition = envelope.partition

    @property
    def size(self) -> int:
        """What it holds of memory, in bytes."""
        return int(self._batch.nbytes)

    def finish_at_once(self) -> bool:
        """Appends and acknowledges if nothing has to be waited for; False: :meth:`finish` goes on.

        Appends of others take so little that a moment of patience is better than a thread.
        """
        return self._advance(_PATIENCE_S, wait=False)

    def finish(self) -> None:
        """Appends and acknowledges, or acknowledges why not."""
        left = self._left()
        if (self._taken is None and left <= 0) or not self._advance(max(0.0, left), wait=True):
            self._answer(self._late())

    def _advance(self, patience_s: float, *, wait: bool) -> bool:
        """One step on, to the acknowledgement if possible; False: the partition is held."""
        try:
            target = self._hosted.partition(self.partition)
            if self._taken is None:
                self._taken = self._take(target, patience_s)
            taken = self._taken
            if taken is None:
                return False
            if taken.pending is not None:
                taken.wake()  # who reads what is not replicated need not wait for that
                if not wait:
                    return False
                target.await_acknowledgement(taken, max(0.0, self._left()))
        except IsologError as error:
            self._answer(error)
        except pa.ArrowMemoryError:
            size = self._batch.nbytes
            self._answer(BrokerBusy(f"no memory to append a batch of {size} bytes"))
        except Exception:
            logger.exception("append to %s/%d", self._hosted.topic.name, self.partition)
            self._answer(
                InternalError(f"the append to {self._hosted.topic.name}/{self.partition} failed")
            )
        else:
            self._acknowledge(taken.appended)
            taken.wake()
        return True

    def _take(self, target: Partition, patience_s: float) -> Taken | None:
        if self._candidate is None:
            self._candidate = target.prepare(self._batch, self._stamp)
        stamp, isolation = self._stamp, self._stream.request.isolation
        if stamp is None or stamp.transaction == NO_TRANSACTION:
            return target.take(self._candidate, stamp, isolation, patience_s)
        owner, desk = self._stream.request.transactional_id, self._stream.desk
        if owner is None:
            raise InvalidRequest("a batch in a transaction needs the stream's transactional_id")
        batch = TakeBatch(target, self._candidate, stamp, isolation, patience_s)
        return desk.run(take_in_transaction(batch, owner))

    def _left(self) -> float:
        return self._deadline - self._stream.clock.monotonic()

    def _late(self) -> IsologError:
        timeout_ms = self._stream.request.timeout_ms
        return RequestTimeout(
            f"{self._hosted.topic.name}/{self.partition}: the batch was not appended: the partition"
            f" was held by others for {timeout_ms} ms",
            topic=self._hosted.topic.name,
            partition=self.partition,
        )

    def _answer(self, error: IsologError) -> None:
        self._write(
            Ack(number=self._envelope.number, partition=self.partition, error=error.to_wire())
        )

    def _acknowledge(self, done: Appended) -> None:
        self._write(
            Ack(
                number=self._envelope.number,
                partition=self.partition,
                offset=done.offset,
                count=done.count,
                duplicate=done.duplicate,
                partitions=len(self._hosted.partitions),
                error=done.refused.to_wire() if done.refused else None,
            )
        )

    def _write(self, ack: Ack) -> None:
        self._stream.acks.write(ack.to_bytes())


def _stamp(facts: StampFacts | None) -> Stamp | None:
    if facts is None:
        return None
    transaction = NO_TRANSACTION if facts.transaction is None else facts.transaction
    return Stamp(facts.producer_id, facts.epoch, facts.sequence, transaction)
