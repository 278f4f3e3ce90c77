"""One batch, from a stream to its acknowledgement, as scripts.

A batch's time begins when it is read. When the time is over, a batch that is not in the log is
refused and may be sent again. If it is in the log, and not as safe as it asked to be, its outcome
is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa
from msgspec import Struct, field

from spark_stream.broker.counts import BrokerCounts
from spark_stream.broker.host.hosted import HostedTopic
from spark_stream.broker.partition.outcomes import (
    Acknowledgement,
    Appended,
    Candidate,
    Taken,
    WakeUp,
    unknown_outcome,
    wake_all,
)
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.scripting.joining import (
    AwaitAcknowledgement,
    TakeBatch,
    WriterOf,
    take_in_transaction,
)
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerBusy,
    InternalError,
    InvalidRequest,
    IsologError,
    NotLeader,
    RequestTimeout,
)
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import Script
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.wire.append_messages import Ack, Acknowledged, AppendTo, BatchRefused, Envelope

logger = logger_of(__name__)

_PATIENCE_S: Final = 0.005


def _ignore(_: bytes) -> None:
    """Take an answer that nothing waits for."""


class StreamFacts(Struct, frozen=True):
    """What all appends of a stream share. ``known``: as ``joining.take_in_transaction``."""

    request: AppendTo
    clock: Clock
    decisions: Decisions
    wake: Callable[[tuple[WakeUp, ...]], None] = wake_all
    counts: BrokerCounts = field(default_factory=BrokerCounts)
    known: set[WriterOf] = field(default_factory=set)


class Append:
    """One batch that a client has sent; ``answer_with`` is called once, with its answer."""

    def __init__(
        self,
        stream: StreamFacts,
        hosted: HostedTopic,
        envelope: Envelope,
        batch: pa.RecordBatch,
        answer_with: Callable[[bytes], None] = _ignore,
    ) -> None:
        self._stream = stream
        self.answer_with = answer_with
        self._hosted = hosted
        self._envelope = envelope
        self._batch: pa.RecordBatch | None = batch
        self._stamp = envelope.stamp
        self.deadline = stream.clock.monotonic() + stream.request.timeout_ms / 1000
        self._candidate: Candidate | None = None
        self._taken: Taken | None = None
        self._target: Partition | None = None
        self.held: Partition | None = None
        """The partition, if others held it."""
        self.partition = envelope.partition

    @property
    def size(self) -> int:
        """How much memory it holds, in bytes."""
        return 0 if self._batch is None else int(self._batch.nbytes)

    @property
    def pending(self) -> Acknowledgement | None:
        """What it waits for, once it is in the log and not as safe as it asked to be."""
        return None if self._taken is None else self._taken.pending

    @property
    def is_cold(self) -> bool:
        """Whether its partition has to make files before it; several do that at the same time."""
        found = self._hosted.replicas.get(self.partition)
        return isinstance(found, Partition) and found.is_empty

    @property
    def to_join(self) -> tuple[Partition, Stamp] | None:
        """The partition that has to join its transaction before it, and its stamp; else None."""
        stamp = self._stamp
        if stamp is None or stamp.transaction == NO_TRANSACTION:
            return None
        found = self._hosted.replicas.get(self.partition)
        if not isinstance(found, Partition):
            return None
        return (
            None
            if found.transactions.has_joined(stamp.transaction, stamp.producer_id)
            else (found, stamp)
        )

    def try_once(self) -> Script[bool]:
        """Append and acknowledge the batch, or answer why not; never raise.

        Return False if it is in the log and :attr:`pending`, or if others hold the partition
        (:attr:`held` is then true). Others' appends are short, so it waits for them briefly.
        """
        left = self._seconds_left()
        if left <= 0:  # its time passed while it waited for its turn
            self._answer(self._late())
            return True
        return (yield from self._advance(min(_PATIENCE_S, left), wait=False))

    def finish(self) -> Script[None]:
        """Do as :meth:`try_once` with all the time that it has, and settle what is pending."""
        left = self._seconds_left()
        late = self._taken is None and left <= 0
        if late or not (yield from self._advance(max(0.0, left), wait=True)):
            self._answer(self._late())

    def _advance(self, patience_s: float, *, wait: bool) -> Script[bool]:
        """Go on, to the answer if possible; return False if the batch has to wait."""
        try:
            target = self._target
            if target is None:
                target = self._hosted.partition(self.partition)
                target.check_leader_epoch(self._envelope.leader_epoch)
            if self._taken is None:
                batch = self._candidate_for(target, patience_s)
                stamp = self._stamp
                if stamp is None or stamp.transaction == NO_TRANSACTION:
                    self._taken = yield batch
                else:
                    self._taken = yield from self._take_inside(batch, stamp)
            taken = self._taken
            if taken is None:
                self.held = target
                return False
            self._target = target  # even if it leads no more: it knows the batch's outcome
            if taken.pending is not None:
                self._batch = self._candidate = None  # all that is left to do is to wait
                self._stream.wake(taken.take_woken())  # reads that need no replication
                if not wait:
                    return False
                yield AwaitAcknowledgement(target, taken, max(0.0, self._seconds_left()))
        except IsologError as error:
            self._answer(self._outcome(error))
        except pa.ArrowMemoryError:
            self._answer(BrokerBusy(f"no memory to append a batch of {self.size} bytes"))
        except Exception:
            logger.exception("append to %s/%d", self._hosted.topic.name, self.partition)
            where = f"{self._hosted.topic.name}/{self.partition}"
            self._answer(InternalError(f"the append to {where} failed; it may be in the log"))
        else:
            self._acknowledge(taken.appended, int(target.leader_epoch))
            self._stream.wake(taken.take_woken())
        return True

    def _outcome(self, error: IsologError) -> IsologError:
        """Return the error that the client gets.

        It is UnknownOutcome for a batch without a stamp that is in the log: if it is sent again,
        nobody can tell that it is a duplicate.
        """
        taken = self._taken
        if taken is None or self._stamp is not None or not isinstance(error, NotLeader):
            return error
        name = self._hosted.topic.name
        why = f"may not be in the next leader's: {error.message}"
        return unknown_outcome(taken.appended, name, self.partition, why)

    def _candidate_for(self, target: Partition, patience_s: float) -> TakeBatch:
        if self._candidate is None:
            assert self._batch is not None
            self._candidate = target.appends.prepare(self._batch, self._stamp)
        isolation = self._stream.request.isolation
        return TakeBatch(target, self._candidate, self._stamp, isolation, patience_s)

    def _take_inside(self, batch: TakeBatch, stamp: Stamp) -> Script[Taken | None]:
        name = self._stream.request.transactional_id
        if name is None:
            raise InvalidRequest("a batch in a transaction needs the stream's transactional_id")
        facts = self._stream
        return (yield from take_in_transaction(facts.decisions, batch, stamp, name, facts.known))

    def _seconds_left(self) -> float:
        return self.deadline - self._stream.clock.monotonic()

    def _late(self) -> IsologError:
        timeout_ms = self._stream.request.timeout_ms
        return RequestTimeout(
            f"{self._hosted.topic.name}/{self.partition}: the batch was not appended: the partition"
            f" was held by others for {timeout_ms} ms",
            topic=self._hosted.topic.name,
            partition=self.partition,
        )

    def _tell(self, message: bytes) -> None:
        """Give the answer; keep nothing that is large, or refers to this batch."""
        answer_with, self.answer_with = self.answer_with, _ignore
        self._batch = self._candidate = None
        request = self._stream.request
        taken_s = request.timeout_ms / 1000 - self._seconds_left()
        self._stream.counts.appends[request.isolation].observe(taken_s)
        answer_with(message)

    def _answer(self, error: IsologError) -> None:
        self._stream.counts.refused.add(error.code)
        refused = BatchRefused(
            number=self._envelope.number, partition=self.partition, error=error, count=0
        )
        self._tell(refused.to_bytes())

    def _acknowledge(self, done: Appended, leader_epoch: int) -> None:
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
        self._tell(answer.to_bytes())


def joins_of(batches: Iterable[Append]) -> list[tuple[Stamp, list[Partition]]]:
    """Return which partitions have to join which transactions before these batches."""
    groups: dict[tuple[int, int, int], tuple[Stamp, list[Partition]]] = {}
    for partition, stamp in filter(None, (each.to_join for each in batches)):
        key = (stamp.transaction, stamp.producer_id, stamp.epoch)
        groups.setdefault(key, (stamp, []))[1].append(partition)
    return list(groups.values())
