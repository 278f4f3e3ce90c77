"""Lanes: the unanswered batches of a partition, their stamps and their stream.

Pure: no thread, no I/O.

A batch gets its stamp (producer id, epoch, sequence) when it is first sent, and keeps it in
retries, so that the leader detects duplicates. Invariants of a lane:

* batches are sent, and answered, in their order.
* at most ``WINDOW`` batches are sent and unanswered, because the leader remembers this number of a
  producer's last batches, and detects only duplicates of these.
* small batches that wait for the window are joined to one batch with one stamp, if none of them can
  be refused for its content.
* a sequence is one more than that of the previous batch, and each epoch begins at 0.
* a batch that was given up without an answer may or may not be in the log. If it is not, its
  sequence is a gap. So the other batches of its epoch are settled first. Then the lane continues in
  the next epoch. The leader refuses whatever still arrives in the old epoch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from spark_stream.client.connecting.routes import Route
from spark_stream.client.values import Written
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.partition.producers import (
    EPOCH_MAX,
    SEQUENCE_MAX,
    WINDOW,
    Stamp,
    following,
)
from spark_stream.errors import (
    IsologError,
    OutOfOrderSequence,
    RecordNotAttempted,
    UnknownOutcome,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.stream_messages import Ack, Acknowledged, BatchRefused
from spark_stream.wire.topic_messages import TopicDescription


class Unacknowledged(Struct, frozen=True):
    """The settlement of a batch that failed.

    ``kept`` acknowledges its first records. It needs an error that refuses the next record, because
    only such an error determines the records that stay in the log.

    Raises:
        ValueError: ``kept`` is not exactly the records before the one that ``error`` refuses.
    """

    error: IsologError
    kept: Written | None = None

    def __post_init__(self) -> None:
        if self.kept is not None and self.kept.count != self.error.details.get("record"):
            raise ValueError(f"{self.error.code} does not acknowledge {self.kept}")


logger = logger_of(__name__)

Settlement = Written | Unacknowledged
Settle = Callable[[Settlement], None]
"""Called once for each batch."""

JOINED_BYTES_MAX: Final = 1 << 20
"""The greatest size of joined batches together."""
JOINED_WITHIN_S: Final = 1.0
"""The greatest difference between the deadlines of joined batches."""

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_HALF: Final = SEQUENCE_MAX // 2


class ProducerIdentity(Struct, frozen=True):
    """A producer id with its epoch, outside or inside a transaction."""

    producer_id: int
    epoch: int
    transaction: int | None = None


class Outgoing(Struct):
    """A batch until it is settled. ``deadline`` is on the monotonic clock.

    A batch is encoded after the core's lock is released, so its rows never change once it is sent.
    Changed rows need a new object.

    ``stamp`` is None until it is sent. ``number`` is that of its last sending. ``unanswered``: the
    number of sendings without an answer. Unless it is 0, the batch may be in the log. ``joins``:
    its bytes, if it may be joined with others. ``others``: the batches joined to it, after its
    rows.
    """

    batch: pa.RecordBatch
    partition: int
    deadline: float
    settle: Settle
    stamp: Stamp | None = None
    number: int = -1
    unanswered: int = 0
    joins: int = 0
    others: list[Outgoing] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of records, with those of ``others``."""
        if not self.others:
            return int(self.batch.num_rows)
        return sum(each.num_rows for each in self._batches())

    def whole(self) -> pa.RecordBatch:
        """Return the batch to send, with the rows of ``others``."""
        return pa.concat_batches(self._batches()) if self.others else self.batch

    def _batches(self) -> list[pa.RecordBatch]:
        return [self.batch, *(each.batch for each in self.others)]

    def may_be_in_log(self, refusal: IsologError) -> bool:
        """Return whether the batch may be in the log from an earlier sending than the refused one.

        A leader that refuses a record has first checked that the batch is not a duplicate.
        """
        is_judged = "record" in refusal.details
        return isinstance(refusal, OutOfOrderSequence) or (self.unanswered > 1 and not is_judged)

    def settle_all(self, settlement: Settlement) -> None:
        """Settle this batch and those that were joined with it."""
        if not self.others:
            self.settle(settlement)
            return
        before = 0
        for each in (self, *self.others):
            rows = each.batch.num_rows
            try:
                each.settle(share_of(settlement, before, rows))
            except Exception:  # the others are settled too
                logger.exception("cannot report the outcome of %d records", rows)
            before += rows


def settlement_of(topic: str, batch: Outgoing, ack: Ack, error: IsologError | None) -> Settlement:
    """Return a batch's settlement by the leader's answer. ``error``: the one for its caller."""
    whole, written = isinstance(ack, Acknowledged), None
    if ack.offset is not None and (whole or ack.count):
        rows = batch.rows if whole else ack.count
        written = Written(topic, batch.partition, ack.offset, rows)
    if isinstance(ack, BatchRefused):
        return Unacknowledged(ack.error if error is None else error, written)
    assert written is not None
    return written


def unknown(topic: str, batch: Outgoing, reason: IsologError) -> UnknownOutcome:
    """Return the error of a batch that was sent and not answered."""
    sent = "a record was" if batch.rows == 1 else f"{batch.rows} records were"
    return UnknownOutcome(
        f"{topic}/{batch.partition}: {sent} sent, not acknowledged, and may be in the log;"
        f" the last error was: {reason.message}",
        topic=topic,
        partition=batch.partition,
    )


def share_of(settlement: Settlement, before: int, rows: int) -> Settlement:
    """Return the share of ``rows`` rows, after ``before`` others, of a joined batch's settlement.

    The client joins only rows that it finds valid. But a setting of the topic may have changed.
    Then the leader refuses one of the rows, and does not try the later ones.
    """
    whole = settlement if isinstance(settlement, Written) else settlement.kept
    written = None
    if whole is not None and whole.count > before:
        count = min(whole.count - before, rows)
        written = replace(whole, offset=whole.offset + before, count=count)
    if written is not None and written.count == rows:
        return written
    assert isinstance(settlement, Unacknowledged)
    error = settlement.error
    record, details = error.details.get("record"), dict(error.details)
    if record is None:
        if error.offset is not None:
            details |= {"offset": error.offset + before, "count": rows}
    elif before <= record < before + rows:
        first = None if written is None else written.offset
        details |= {
            "record": record - before,
            "kept": written.count if written else 0,
            "offset": first,
        }
    else:
        return Unacknowledged(
            RecordNotAttempted(
                f"not tried, because a batch that was sent with it was refused: {error.message}"
            )
        )
    return Unacknowledged(type(error)(error.message, hint=error.hint, **details), written)


class Lane:
    """The unanswered batches of a partition, in order. The first ``sent`` are in flight."""

    def __init__(self) -> None:
        self.sent = 0
        self._batches: deque[Outgoing] = deque()
        self._given: ProducerIdentity | None = None
        self._used: ProducerIdentity | None = None
        self._sequence = 0
        self._gap = False

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Outgoing) -> None:
        """Add a batch at the end."""
        self._batches.append(batch)

    def revise(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Replace each unsettled batch by a copy with the changed rows."""
        self._batches = deque(
            replace(
                batch,
                batch=change(batch.batch),
                others=[replace(each, batch=change(each.batch)) for each in batch.others],
            )
            for batch in self._batches
        )

    def next(self, identity: ProducerIdentity | None) -> Outgoing | None:
        """Return the batch to send now, with its stamp. None if there is none, or it has to wait.

        ``identity`` is that of the producer. Without it only batches that already have a stamp can
        be sent.
        """
        if self.sent == min(len(self._batches), WINDOW):
            return None
        batch = self._batches[self.sent]
        if batch.stamp is None:
            if identity is None or not self._ready_for(identity):
                return None
            self._join(batch)
            batch.stamp = self._stamp()
        batch.unanswered += 1
        self.sent += 1
        return batch

    def _join(self, batch: Outgoing) -> None:
        """Join this batch with the small ones that wait after it.

        It has no stamp yet, so later ones have none, because batches are stamped in order.
        """
        at = self.sent + 1
        others = list(batch.others)
        while batch.joins and at < len(self._batches):
            following = self._batches[at]
            size = batch.joins + following.joins
            if not following.joins or size > JOINED_BYTES_MAX:
                break
            if following.deadline > batch.deadline + JOINED_WITHIN_S:
                break  # it has a later deadline, and must not be given up with the other
            others += [following, *following.others]
            following.others = []
            batch.joins = size
            del self._batches[at]
        batch.others = others

    def used_up(self, identity: ProducerIdentity | None) -> bool:
        """Return whether the producer needs another id, because this one has no epoch left."""
        if not self._gap or self._used is None or self._used.epoch < EPOCH_MAX:
            return False
        return identity is not None and identity.transaction is None and identity == self._given

    def late(self, now: float) -> bool:
        """Return whether a batch in flight is past its deadline."""
        return self.sent > 0 and self._batches[0].deadline < now

    def head(self, number: int) -> Outgoing | None:
        """Return the batch whose answer is next if it has this number, else None."""
        found = self._batches[0] if self.sent else None
        return found if found is not None and found.number == number else None

    def on_refused(self, number: int) -> None:
        """Record that the batch with this number was refused. It stays in the lane for a retry."""
        for batch in self._batches:
            if batch.number == number and batch.unanswered:
                batch.unanswered -= 1
                batch.number = -1  # an answer counts once

    def pop(self) -> Outgoing:
        """Remove the first batch, which was answered, and return it."""
        self.sent -= 1
        return self._batches.popleft()

    def on_lost(self) -> None:
        """Record that the stream was lost. Unanswered batches have to be sent again."""
        self.sent = 0

    def on_not_taken(self) -> None:
        """Record that no batch in flight is in the log.

        The stream was refused when it was opened, or the topic was deleted with its records.
        """
        for batch in itertools.islice(self._batches, self.sent):
            batch.unanswered -= 1

    def can_restamp(self, error: OutOfOrderSequence) -> bool:
        """Return whether the refused first batch, and all later ones, may get new stamps.

        They may if no leader has this batch or can accept it. All earlier batches are answered, but
        the leader expects the sequence of one that it refused. A batch that was sent to an earlier
        leader may be in its log, and so in the partition if it leads again.
        """
        stamp = self._batches[0].stamp
        if self._gap or stamp is None or stamp.transaction != NO_TRANSACTION or stamp.sequence == 0:
            return False
        sent_before = (each.unanswered - (at < self.sent) for at, each in enumerate(self._batches))
        return not any(sent_before) and self._ahead(error, stamp.sequence)

    def restamp(self) -> None:
        """Give all batches new stamps in the next epoch."""
        self._batches = deque(replace(batch, stamp=None, unanswered=0) for batch in self._batches)
        self.sent = 0
        self._gap = True

    def remove_expired(self, now: float) -> list[Outgoing]:
        """Remove the batches that are past their deadlines, and return them."""
        found = []
        while self._batches and self._batches[0].deadline < now:
            batch = self._batches.popleft()
            self.sent = max(0, self.sent - 1)
            self._gap |= batch.stamp is not None
            found.append(batch)
        return found

    def remove_all(self) -> Iterator[Outgoing]:
        """Remove all batches, yielding each."""
        self.sent = 0
        self._gap |= bool(self._batches)
        while self._batches:
            yield self._batches.popleft()

    def _ready_for(self, identity: ProducerIdentity) -> bool:
        """Return whether a new batch can be stamped. Change identity or epoch first if needed."""
        if identity == self._given and not (self._gap and identity.transaction is None):
            return True
        if self.sent or self.used_up(identity):
            return False
        if identity != self._given or self._used is None:
            self._given = self._used = identity
        else:
            self._used = replace(self._used, epoch=self._used.epoch + 1)
        self._sequence = 0
        self._gap = False
        return True

    def _stamp(self) -> Stamp:
        assert self._used is not None
        sequence, self._sequence = self._sequence, following(self._sequence)
        used = self._used
        transaction = NO_TRANSACTION if used.transaction is None else used.transaction
        return Stamp(used.producer_id, used.epoch, sequence, transaction)

    @staticmethod
    def _ahead(error: OutOfOrderSequence, sequence: int) -> bool:
        """Return whether the leader expects a sequence before this one."""
        expected = error.details.get("expected")
        if not isinstance(expected, int):
            return False
        return 0 < (sequence - expected) % (SEQUENCE_MAX + 1) <= _HALF


class PlacedLane(Struct, eq=False):
    """The lane of a partition, with its stream, or None, and its last route.

    ``reason``: the error that ended its last stream. It gets another stream from ``retry_at`` on.
    """

    partition: int
    lane: Lane = field(default_factory=Lane)
    stream: LaneStream | None = None
    route: Route | None = None
    reason: IsologError | None = None
    retry_at: float = 0.0
    failures: int = 0

    def on_failed(self, reason: IsologError, now: float) -> None:
        """Record a failure. The pause before the next try grows each time."""
        self.retry_at = now + pause(self.failures)
        self.failures += 1
        self.reason = reason


class LaneStream(Struct, eq=False):
    """A stream to one broker, for one topic. ``progress``: the time of its last answer."""

    number: int
    address: str
    target: TopicLanes
    lanes: dict[int, PlacedLane] = field(default_factory=dict)
    is_open: bool = False
    progress: float = 0.0

    def late(self, now: float, call_s: float) -> bool:
        """Return whether a batch is past its deadline, or no answer came for ``call_s``."""
        lanes = [each.lane for each in self.lanes.values() if each.lane.sent]
        if any(lane.late(now) for lane in lanes):
            return True
        return bool(lanes) and now - self.progress > call_s


class TopicLanes(Struct, eq=False):
    """A topic's lanes and streams. ``finding``: the lanes whose leaders are being looked up."""

    topic: TopicDescription
    lanes: dict[int, PlacedLane] = field(default_factory=dict)
    streams: dict[str, LaneStream] = field(default_factory=dict)  # by address
    finding: list[PlacedLane] | None = None


def pause(failures: int) -> float:
    """Return the pause after this number of consecutive failures, in seconds."""
    return min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2.0 ** min(failures, 10))
