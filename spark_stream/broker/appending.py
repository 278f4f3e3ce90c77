"""A DoPut: a stream of batches to one topic, each acknowledged by itself, in their order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.host import Host, HostedTopic
from spark_stream.broker.partition import Appended, Partition
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.consistency.producers import Stamp
from spark_stream.errors import (
    InternalError,
    InvalidRequest,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    UnknownPartition,
)
from spark_stream.wire.messages import Ack, AppendTo, Envelope, StampFacts
from spark_stream.wire.schemas import mismatch

logger = logging.getLogger(__name__)


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
) -> None:
    """Appends batch after batch. A refused batch is answered by its error and ends nothing.

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
    for batch, metadata in _batches(reader):
        envelope = _envelope(target, metadata)
        hosted = host.topic(hosted.topic.name, hosted.topic.id)  # it may have been altered
        acks.write(_answered(hosted, desk, request.transactional_id, envelope, batch).to_bytes())


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


def _answered(
    hosted: HostedTopic,
    desk: TransactionDesk,
    transactional_id: str | None,
    envelope: Envelope,
    batch: pa.RecordBatch,
) -> Ack:
    number, partition = envelope.number, envelope.partition
    try:
        # With no followers HW = LEO once the batch is in the log, so both isolation levels of a
        # producer are answered here at once.
        target = hosted.partition(partition)
        stamp = _stamp(envelope.stamp)
        if stamp is None or stamp.transaction == NO_TRANSACTION:
            done = target.append(batch, stamp)
        else:
            done = _in_transaction(target, desk, transactional_id, stamp, batch)
    except IsologError as error:
        return Ack(number=number, partition=partition, error=error.to_wire())
    except Exception:
        logger.exception("append to %s/%d", hosted.topic.name, partition)
        failure = InternalError(f"the append to {hosted.topic.name}/{partition} failed")
        return Ack(number=number, partition=partition, error=failure.to_wire())
    return Ack(
        number=number,
        partition=partition,
        offset=done.offset,
        count=done.count,
        duplicate=done.duplicate,
        partitions=len(hosted.partitions),
        error=done.refused.to_wire() if done.refused else None,
    )


def _stamp(facts: StampFacts | None) -> Stamp | None:
    if facts is None:
        return None
    transaction = NO_TRANSACTION if facts.transaction is None else facts.transaction
    return Stamp(facts.producer_id, facts.epoch, facts.sequence, transaction)


def _in_transaction(
    target: Partition,
    desk: TransactionDesk,
    transactional_id: str | None,
    stamp: Stamp,
    batch: pa.RecordBatch,
) -> Appended:
    if transactional_id is None:
        raise InvalidRequest("a batch in a transaction needs the stream's transactional_id")
    if not target.holds(stamp.transaction, stamp.producer_id):
        # On record before anything of it is in the log: so whoever decides knows of it.
        desk.join(transactional_id, stamp.transaction, stamp.producer_id, stamp.epoch, target)
    try:
        return target.append(batch, stamp)
    except (InvalidTransaction, ProducerFenced) as error:
        raise desk.refusal(transactional_id, stamp.transaction, error) from None
