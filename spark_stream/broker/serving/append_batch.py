"""One batch, from its stream to its acknowledgement.

A batch's timeout starts when the batch is read. After the timeout, a batch that is not in the log
is refused and may be retried. A batch that is in the log without its acknowledgement has an unknown
outcome.

A batch is appended by method calls. Only two steps read or write the metadata store and are
scripts: the join of a partition before its first batch of a transaction, and the lookup of the
reason why a batch of an ended transaction is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import pyarrow as pa
from msgspec import Struct, field

from spark_stream.broker.counts import BrokerCounts
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.waiters import (
    Acknowledgement,
    Appended,
    AppendResult,
    Candidate,
    WakeUp,
    unknown_outcome,
)
from spark_stream.broker.scripting.coordinator import StreamJoins
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerBusy,
    InternalError,
    InvalidTransaction,
    IsologError,
    NotLeader,
    ProducerFenced,
    RequestTimeout,
)
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import Script
from spark_stream.wire.stream_messages import Ack, Acknowledged, AppendTo, BatchRefused, Envelope

logger = logger_of(__name__)

_PATIENCE_S: Final = 0.005


class StreamFacts(Struct, frozen=True):
    """The shared facts of a stream's appends."""

    request: AppendTo
    clock: Clock
    joins: StreamJoins
    counts: BrokerCounts = field(default_factory=BrokerCounts)


class AttemptResult(Enum):
    """The result of an attempt to append a batch."""

    READY = "ready"
    """The partition can take the batch."""
    UNJOINED = "unjoined"
    """The partition must first join the batch's transaction."""
    HELD = "held"
    """Another thread holds the partition's lock."""
    REFUSED = "refused"
    """The partition refused the batch for a reason that its transaction's record has."""
    PENDING = "pending"
    """The batch is in the log, and its acknowledgement is pending."""
    ANSWERED = "answered"
    """The batch has its answer."""


class Append:
    """The append of one batch."""

    def __init__(
        self,
        stream: StreamFacts,
        hosted: HostedTopic,
        envelope: Envelope,
        batch: pa.RecordBatch,
    ) -> None:
        self._stream = stream
        self._hosted = hosted
        self._envelope = envelope
        self._batch: pa.RecordBatch | None = batch
        self._stamp = stamp = envelope.stamp
        is_outside = stamp is None or stamp.transaction == NO_TRANSACTION
        self._transactional = None if is_outside else stamp
        self.deadline = stream.clock.monotonic() + stream.request.timeout_ms / 1000
        self._candidate: Candidate | None = None
        self._target: Partition | None = None  # of the last attempt
        self._taken: AppendResult | None = None
        self._refusal: IsologError | None = None
        self.partition = envelope.partition
        self.answer = b""
        """The answer for the client, or empty."""

    @property
    def size(self) -> int:
        """The memory that it holds, in bytes."""
        return 0 if self._batch is None else int(self._batch.nbytes)

    @property
    def prepared_bytes(self) -> int:
        """The size of the prepared batch without compression. 0 without one."""
        return 0 if self._candidate is None else self._candidate.nbytes

    @property
    def pending(self) -> Acknowledgement | None:
        """The pending acknowledgement of a batch that is in the log, or None."""
        return None if self._taken is None else self._taken.pending

    @property
    def is_cold(self) -> bool:
        """Whether its partition must create its files first. Partitions do that in parallel."""
        found = self._hosted.replicas.get(self.partition)
        return isinstance(found, Partition) and found.is_empty

    @property
    def held(self) -> Partition:
        """The partition of the last attempt, whose lock another thread held."""
        assert self._target is not None
        return self._target

    @property
    def to_join(self) -> tuple[Partition, Stamp] | None:
        """The partition that must join its transaction first, with its stamp, or None."""
        stamp = self._transactional
        if stamp is None:
            return None
        found = self._hosted.replicas.get(self.partition)
        if not isinstance(found, Partition):
            return None
        return (
            None
            if found.transactions.has_joined(stamp.transaction, stamp.producer_id)
            else (found, stamp)
        )

    def take_woken(self) -> tuple[WakeUp, ...]:
        """Remove and return the callbacks of the reads to wake."""
        return () if self._taken is None else self._taken.take_woken()

    def prepare(self) -> AttemptResult:
        """Inspect and encode the batch for its partition, or answer with an error. Never raise."""
        if self._seconds_left() <= 0:  # the batch was queued for too long
            return self._refuse(self._late())
        try:
            self._target = target = self._hosted.partition(self.partition)
            target.check_leader_epoch(self._envelope.leader_epoch)
            if self._candidate is None:
                assert self._batch is not None
                self._candidate = target.appends.prepare(self._batch, self._stamp)
        except Exception as error:
            return self._fail(error)
        stamp = self._transactional
        if stamp is None or self._stream.joins.has_joined(target, stamp):
            return AttemptResult.READY
        return AttemptResult.UNJOINED

    def take(self) -> AttemptResult:
        """Append and acknowledge a READY batch, or answer with an error. Never raise.

        The attempt waits briefly for the lock, because most appends of other threads are short.
        """
        target, candidate = self._target, self._candidate
        assert target is not None
        assert candidate is not None
        isolation = self._stream.request.isolation
        try:
            taken = target.appends.take(candidate, self._stamp, isolation, self._patience_s())
        except (InvalidTransaction, ProducerFenced) as error:
            if self._transactional is None:
                return self._refuse(error)
            self._refusal = error
            return AttemptResult.REFUSED
        except Exception as error:
            return self._fail(error)
        if taken is None:
            return AttemptResult.HELD
        self._taken = taken
        if taken.pending is None:
            return self._acknowledge(taken.appended, int(target.leader_epoch))
        self._batch = self._candidate = None  # the acknowledgement needs neither
        return AttemptResult.PENDING

    def join(self) -> Script[AttemptResult]:
        """Join the partition to the batch's transaction, after :attr:`AttemptResult.UNJOINED`.

        Return READY, HELD or, if the transaction refuses the producer, ANSWERED.
        """
        target, stamp = self._target, self._transactional
        assert target is not None
        assert stamp is not None
        try:
            joined = yield from self._stream.joins.join(target, stamp, self._patience_s())
        except Exception as error:
            return self._fail(error)
        return AttemptResult.READY if joined else AttemptResult.HELD

    def explain(self) -> Script[AttemptResult]:
        """Answer with the reason for the refusal, after :attr:`AttemptResult.REFUSED`."""
        stamp, refusal = self._transactional, self._refusal
        assert stamp is not None
        assert refusal is not None
        try:
            return self._refuse((yield from self._stream.joins.explain(stamp, refusal)))
        except Exception as error:
            return self._fail(error)

    def finish(self) -> None:
        """Answer a batch whose acknowledgement is settled, or whose timeout has passed."""
        target, taken = self._target, self._taken
        assert target is not None  # it has the outcome even if it no longer leads
        assert taken is not None
        try:
            target.appends.await_acknowledgement(taken, 0)
        except Exception as error:
            self._fail(error)
        else:
            self._acknowledge(taken.appended, int(target.leader_epoch))

    def _fail(self, error: Exception) -> AttemptResult:
        """Answer a failed attempt with its error."""
        if isinstance(error, IsologError):
            return self._refuse(self._outcome(error))
        if isinstance(error, pa.ArrowMemoryError):
            return self._refuse(BrokerBusy(f"no memory to append a batch of {self.size} bytes"))
        where = f"{self._hosted.topic.name}/{self.partition}"
        logger.error("append to %s failed", where, exc_info=error)
        return self._refuse(InternalError(f"the append to {where} failed; it may be in the log"))

    def _outcome(self, error: IsologError) -> IsologError:
        """Return the error for the client.

        It is UnknownOutcome for a batch without a stamp that is in the log, because a retry of such
        a batch would not be recognised as a duplicate.
        """
        taken = self._taken
        if taken is None or self._stamp is not None or not isinstance(error, NotLeader):
            return error
        name = self._hosted.topic.name
        why = f"perhaps not in the next leader's: {error.message}"
        return unknown_outcome(taken.appended, name, self.partition, why)

    def _patience_s(self) -> float:
        return max(0.0, min(_PATIENCE_S, self._seconds_left()))

    def _seconds_left(self) -> float:
        return self.deadline - self._stream.clock.monotonic()

    def _late(self) -> IsologError:
        timeout_ms = self._stream.request.timeout_ms
        return RequestTimeout(
            f"{self._hosted.topic.name}/{self.partition}: the batch was not appended, because other"
            f" requests held the partition for {timeout_ms} ms",
            topic=self._hosted.topic.name,
            partition=self.partition,
        )

    def _refuse(self, error: IsologError) -> AttemptResult:
        self._stream.counts.refused.add(error.code)
        refused = BatchRefused(
            number=self._envelope.number, partition=self.partition, error=error, count=0
        )
        return self._answer(refused)

    def _acknowledge(self, done: Appended, leader_epoch: int) -> AttemptResult:
        answer: Ack
        if done.refused is None:
            answer = Acknowledged(
                number=self._envelope.number,
                partition=self.partition,
                offset=done.offset,
                count=done.count,
                duplicate=done.duplicate,
                partitions=self._hosted.topic.partitions,
                leader_epoch=leader_epoch,
            )
        else:
            self._stream.counts.refused.add(done.refused.code)
            answer = BatchRefused(
                number=self._envelope.number,
                partition=self.partition,
                error=done.refused,
                offset=done.offset,
                count=done.count,
                duplicate=done.duplicate,
                partitions=self._hosted.topic.partitions,
                leader_epoch=leader_epoch,
            )
        return self._answer(answer)

    def _answer(self, answer: Ack) -> AttemptResult:
        self.answer = answer.to_bytes()
        self._batch = self._candidate = None
        request = self._stream.request
        taken_s = request.timeout_ms / 1000 - self._seconds_left()
        self._stream.counts.appends[request.isolation].observe(taken_s)
        return AttemptResult.ANSWERED


def group_joins(batches: Iterable[Append]) -> list[tuple[Stamp, list[Partition]]]:
    """Return the partitions that must join before these batches, grouped by their stamps."""
    groups: dict[tuple[int, int, int], tuple[Stamp, list[Partition]]] = {}
    for partition, stamp in filter(None, (each.to_join for each in batches)):
        key = (stamp.transaction, stamp.producer_id, stamp.epoch)
        groups.setdefault(key, (stamp, []))[1].append(partition)
    return list(groups.values())
