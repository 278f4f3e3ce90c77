"""A producer's decisions: the stream and the stamp of each batch, retries and timeouts.

Pure: no thread, lock, clock or socket. Methods take an event and the time. Actions are appended to
two queues, and the shell (``loop``) carries them out in order: :attr:`ProducerCore.out` one
instruction at a time, on any thread; :attr:`ProducerCore.outcomes` before the thread of the event
does anything else. Each result of an action comes back as another event.

Invariants:

* a submitted batch is settled exactly once: by its acknowledgement, by an error of its leader, by
  :meth:`~ProducerCore.discard`, or at its deadline;
* an error never becomes an acknowledgement;
* the lane of a partition (``lanes``) keeps its order, its window and its stamps, whichever stream
  carries its batches. It is on at most one stream, which leads to the known leader;
* a batch that was sent and may be in the log gets UnknownOutcome if it is given up. A batch that
  was never sent, or certainly not appended, gets the error that prevented it. In a transaction an
  error of the leader is passed on unchanged, because a failed write aborts the transaction.

Transitions of a lane: *homeless* → (leaders found) → *placed* on an opening or open stream → (the
stream is lost, or the broker does not lead) → homeless again, after a pause that grows with each
failure. Unanswered batches of a stream go to the present leader, in their order and with their old
stamps, by which the leader detects duplicates. Transitions of a stream: *opening* → *open* →
closed. Each topic has one stream to each leader.

Order of effects: ``DoubtRoute`` comes before ``FindLeaders``, ``TopicChanged`` before the
settlement of the same answer, and ``AllSettled`` after everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.connecting.routes import Route
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.lanes import (
    LaneStream,
    Outgoing,
    PlacedLane,
    ProducerIdentity,
    Settle,
    Settlement,
    TopicLanes,
    Unacknowledged,
    pause,
    settlement_of,
    unknown,
)
from spark_stream.consistency.partition.producers import WINDOW, Stamp
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    DiskFull,
    InternalError,
    InvalidTransaction,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    StorageFailure,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.topic_messages import TopicDescription

TICK_S: Final = 0.25
STREAMS_KEPT: Final = 256
"""At this number of streams, idle ones are ended before another one is opened."""
# A batch with one of these errors is sent again, to its leader. It is not in the log, unless the
# details have ``appended``: it was appended by a leader that was then replaced.
_NOT_TAKEN: Final = (
    NotLeader,
    LeaderEpochFenced,
    UnknownLeaderEpoch,
    LeaderUnavailable,
    NotEnoughReplicas,
)


class OpenStream(Struct, frozen=True):
    """Open a stream of appends. The answer is ``stream_opened`` or ``stream_lost``."""

    stream: int
    route: Route
    topic: TopicDescription
    transactional_id: str | None


class SendBatch(Struct, frozen=True):
    """Send a batch on an open stream. Drop it if the stream ends."""

    stream: int
    batch: Outgoing
    number: int
    stamp: Stamp | None
    leader_epoch: int | None


class EndStream(Struct, frozen=True):
    """End a stream, and ignore its later answers."""

    stream: int


class BreakStream(Struct, frozen=True):
    """Cancel a stream."""

    stream: int


class SettleBatch(Struct, frozen=True):
    """Settle a batch and those that were joined with it."""

    batch: Outgoing
    settlement: Settlement


class FindLeaders(Struct, frozen=True):
    """Find the leaders. The answer is ``leaders_found`` or ``leaders_failed``."""

    topic: TopicDescription
    partitions: tuple[int, ...]


class GetIdentity(Struct, frozen=True):
    """Get a producer id. The answer is ``on_identified`` or ``identity_failed``."""


class DoubtRoute(Struct, frozen=True):
    """Mark a route as suspect: its broker refused to act as the leader, or was lost."""

    route: Route
    error: IsologError


class TopicChanged(Struct, frozen=True):
    """Report a topic's changed number of partitions. None means that the topic was deleted."""

    topic: TopicDescription
    partitions: int | None


class WakeAt(Struct, frozen=True):
    """Call ``tick`` at this time, which replaces the time of the previous instruction."""

    at: float


class AllSettled(Struct, frozen=True):
    """All batches are settled, and all streams have ended."""


Instruction = (
    SendBatch
    | OpenStream
    | EndStream
    | BreakStream
    | FindLeaders
    | GetIdentity
    | DoubtRoute
    | WakeAt
)
Outcome = SettleBatch | TopicChanged | AllSettled


class ProducerCore:
    """The core of one producer. ``timeout_s``: the limit for a batch. ``call_s``: for a call."""

    def __init__(self, timeout_s: float, call_s: float) -> None:
        self.out: deque[Instruction] = deque()
        self.outcomes: deque[Outcome] = deque()
        self.unsettled = 0
        """The number of submitted batches that are not settled."""
        self._timeout_s = timeout_s
        self._call_s = call_s
        self.identity: ProducerIdentity | None = None
        """The producer id and epoch of new batches. None until they were assigned."""
        self._transactional_id: str | None = None
        self._is_getting_identity = False  # for an identity
        self._identity_error: IsologError | None = None
        self._identity_failures = 0
        self._identity_at = 0.0
        self._targets: dict[str, TopicLanes] = {}  # by topic id
        self._streams: dict[int, LaneStream] = {}
        self._next_stream = 0
        self._next_number = 0
        self._tidy_at = STREAMS_KEPT
        self._wake_at: float | None = None
        self._is_closing = False

    def goes_at_once(self, topic_id: str, partition: int) -> bool:
        """Return whether a batch that is submitted now is sent without waiting."""
        target = self._targets.get(topic_id)
        placed = None if target is None else target.lanes.get(partition)
        if placed is None or placed.stream is None or not placed.stream.is_open:
            return False
        return self.identity is not None and len(placed.lane) < WINDOW

    def has_stream(self, number: int) -> bool:
        """Return whether a stream is still in use."""
        return number in self._streams

    # -- from callers ---------------------------------------------------------------------------

    def topic(self, known: TopicDescription, now: float) -> TopicDescription:
        """Return the topic whose schema batches must fit, after an update from ``known``.

        If the schema was altered, waiting batches are converted to it, and unanswered ones are sent
        again in it. The leader detects duplicates by their stamps. A stream has one schema, so new
        streams replace the old ones.
        """
        target = self._targets.get(known.id)
        if target is None:
            target = self._targets[known.id] = TopicLanes(known)
        elif target.topic is not known:
            altered = known.schema_version > target.topic.schema_version
            if altered or known.schema_version == target.topic.schema_version:
                target.topic = known
            if altered:
                self._alter(target, now)
        return target.topic

    def submit(
        self,
        topic_id: str,
        batch: pa.RecordBatch,
        partition: int,
        settle: Settle,
        now: float,
        joins: int = 0,
    ) -> None:
        """Add a batch. It is sent after the earlier ones of its partition.

        ``joins``: its bytes, if it may be joined with others, else 0.
        """
        target = self._targets[topic_id]
        placed = target.lanes.get(partition)
        if placed is None:
            placed = target.lanes[partition] = PlacedLane(partition)
        placed.lane.add(Outgoing(batch, partition, now + self._timeout_s, settle, joins=joins))
        self.unsettled += 1
        if self.identity is None:
            self._want_identity(now)
        if placed.stream is not None:
            self._send(placed, now)
        else:
            self._find(target, now)
        if self._wake_at is None:
            self._wake(now + TICK_S)

    def write_as(self, identity: ProducerIdentity, transactional_id: str | None) -> None:
        """Write later batches under another identity."""
        self.identity, self._transactional_id = identity, transactional_id

    def discard(self, error: IsologError) -> None:
        """Settle all unanswered batches with the error. Later answers are ignored."""
        for target in self._targets.values():
            for placed in target.lanes.values():
                for batch in placed.lane.remove_all():
                    self._settle(batch, Unacknowledged(error))

    def close(self) -> None:
        """End the streams when all batches are settled.

        A batch that is submitted at the same moment is still sent, and then its stream ends too.
        """
        self._is_closing = True
        self._finish()

    # -- answers of brokers ---------------------------------------------------------------------

    def on_acknowledged(self, number: int, ack: Ack, now: float) -> None:
        """Handle a broker's answer to a batch, on the stream of this number."""
        stream = self._streams.get(number)
        if stream is None:
            return
        error = ack.error if isinstance(ack, BatchRefused) else None
        if isinstance(error, BrokerStopping):
            self._break(stream, error, now)
            return
        target = stream.target
        batch = None
        known = target.lanes.get(ack.partition)
        if known is not None:
            batch = known.lane.head(ack.number)
            if error and _is_not_taken(error) and not error.details.get("appended"):
                known.lane.on_refused(ack.number)  # it may be any batch in flight
        if ack.partitions is not None and ack.partitions != len(target.topic.partitions):
            self.outcomes.append(TopicChanged(target.topic, ack.partitions))
        placed = stream.lanes.get(ack.partition)
        if placed is None or batch is None:
            return  # it was settled or sent again before this answer
        lane = placed.lane
        stream.progress = now
        if error is not None and _is_not_taken(error):
            self._take_off(placed, error, now)
            if placed.route is not None:
                self.out.append(DoubtRoute(placed.route, error))
            self._find(target, now)
            return
        if isinstance(error, OutOfOrderSequence) and lane.can_restamp(error):
            lane.restamp()
        else:
            lane.pop()
            placed.failures, placed.reason = 0, None
            told = error
            # Records of an unfinished transaction are aborted with it, so the outcome is certain.
            may_stay = self._transactional_id is None or isinstance(error, InvalidTransaction)
            if error is not None and may_stay and batch.may_be_in_log(error):
                told = unknown(target.topic.name, batch, error)
            if isinstance(error, UnknownTopic):
                self.outcomes.append(TopicChanged(target.topic, None))
            self._settle(batch, settlement_of(target.topic.name, batch, ack, told))
        route, epoch = placed.route, ack.leader_epoch
        if epoch is not None and route is not None and route.epoch is None:
            placed.route = replace(route, epoch=epoch)  # the epoch comes with the first answer
        self._send(placed, now)

    def stream_opened(self, number: int, now: float) -> None:
        """Send batches on a stream that has opened."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.is_open, stream.progress = True, now
        for placed in list(stream.lanes.values()):
            self._send(placed, now)

    def stream_lost(self, number: int, error: IsologError, now: float) -> None:
        """Move the lanes of a lost stream, or of one that could not be opened, to their leaders."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        target, lanes = stream.target, list(stream.lanes.values())
        del target.streams[stream.address]
        for placed in lanes:
            if isinstance(error, UnknownTopic) or error.details.get("at_opening"):
                placed.lane.on_not_taken()
            self._take_off(placed, error, now)
            if placed.route is not None:
                self.out.append(DoubtRoute(placed.route, error))
        if not _is_passing(error):
            self._clear(target, lanes, error)
        self._find(target, now)

    def leaders_found(self, topic_id: str, routes: Mapping[int, Route | None], now: float) -> None:
        """Place lanes on streams to the found leaders. None means that there is no leader."""
        target = self._targets[topic_id]
        waiting, target.finding = target.finding or (), None
        for placed in waiting:
            route = routes.get(placed.partition)
            if not len(placed.lane) or placed.stream is not None:
                continue
            if route is None:
                name, at = target.topic.name, placed.partition
                text = f"{name}/{at} has no leader"
                placed.on_failed(LeaderUnavailable(text, topic=name, partition=at), now)
                continue
            stream = target.streams.get(route.address) or self._open(target, route)
            placed.stream, placed.route = stream, route
            stream.lanes[placed.partition] = placed
            self._send(placed, now)
        self._find(target, now)

    def leaders_failed(self, topic_id: str, error: IsologError, now: float) -> None:
        """Handle the failure of a look-up: no broker answered, or the topic does not exist."""
        target = self._targets[topic_id]
        waiting, target.finding = target.finding or (), None
        for placed in waiting:
            placed.on_failed(error, now)
        if not _is_passing(error):
            self._clear(target, target.lanes.values(), error)
        self._find(target, now)

    def on_identified(self, identity: ProducerIdentity, now: float) -> None:
        """Use the identity that was requested."""
        self._is_getting_identity = False
        self._identity_error, self._identity_failures = None, 0
        if self.identity is None:
            self.identity = identity
        for stream in list(self._streams.values()):
            for placed in list(stream.lanes.values()):
                self._send(placed, now)

    def identity_failed(self, error: IsologError, now: float) -> None:
        """Handle the failure to get an identity."""
        self._is_getting_identity = False
        if not _is_passing(error):
            for target in self._targets.values():
                self._clear(target, target.lanes.values(), error)
            return
        self._identity_error = error
        self._identity_at = now + pause(self._identity_failures)
        self._identity_failures += 1
        self._want_identity(now)

    def tick(self, now: float) -> None:
        """Handle expired batches, silent streams and due retries.

        A stream without an answer in time is cancelled.
        """
        self._wake_at = None
        for stream in list(self._streams.values()):
            if stream.late(now, self._call_s):
                self._break(stream, self._silence(stream), now)
        for target in self._targets.values():
            for placed in target.lanes.values():
                reason = placed.reason or self._identity_error or self._silence(placed.stream)
                for batch in placed.lane.remove_expired(now):
                    self._give_up(target, batch, reason)
                self._send(placed, now)
            self._find(target, now)
        if self.identity is None:
            self._want_identity(now)
        if self.unsettled:
            self._wake(now + TICK_S)

    # -- decisions ------------------------------------------------------------------------------

    def _send(self, placed: PlacedLane, now: float) -> None:
        """Send the batches that the lane may send now."""
        stream, lane = placed.stream, placed.lane
        if stream is None or not stream.is_open:
            return
        assert placed.route is not None
        epoch = placed.route.epoch
        while True:
            owed = lane.sent
            batch = lane.next(self.identity)
            if batch is None:
                break
            if not owed:
                stream.progress = now  # until now the lane had no batch in flight
            batch.number = self._next_number
            self._next_number += 1
            self.out.append(SendBatch(stream.number, batch, batch.number, batch.stamp, epoch))
        if lane.used_up(self.identity):
            self.identity = None
            self._want_identity(now)

    def _want_identity(self, now: float) -> None:
        if self._is_getting_identity or not self.unsettled:
            return
        if self._identity_at > now:
            self._wake(self._identity_at)
            return
        self._is_getting_identity = True
        self.out.append(GetIdentity())

    def _find(self, target: TopicLanes, now: float) -> None:
        """Look up the leaders of lanes that have batches and no stream, when they are due."""
        if target.finding is not None:
            return  # the answer calls this method again
        waiting = [each for each in target.lanes.values() if each.stream is None and len(each.lane)]
        due = [each for each in waiting if each.retry_at <= now]
        if due:
            target.finding = due
            self.out.append(FindLeaders(target.topic, tuple(each.partition for each in due)))
        elif waiting:
            self._wake(min(each.retry_at for each in waiting))

    def _open(self, target: TopicLanes, route: Route) -> LaneStream:
        if len(self._streams) >= self._tidy_at:
            self._end_idle_streams()
            self._tidy_at = max(STREAMS_KEPT, 2 * len(self._streams))
        stream = LaneStream(self._next_stream, route.address, target)
        self._next_stream += 1
        self._streams[stream.number] = target.streams[route.address] = stream
        self.out.append(OpenStream(stream.number, route, target.topic, self._transactional_id))
        return stream

    def _end_idle_streams(self) -> None:
        """End idle streams, because a connection has a limit for streams."""
        for stream in list(self._streams.values()):
            if not any(len(each.lane) for each in stream.lanes.values()):
                for placed in stream.lanes.values():
                    placed.stream = None
                del self._streams[stream.number], stream.target.streams[stream.address]
                self.out.append(EndStream(stream.number))

    def _break(self, stream: LaneStream, error: IsologError, now: float) -> None:
        self.out.append(BreakStream(stream.number))
        self.stream_lost(stream.number, error, now)

    def _take_off(self, placed: PlacedLane, reason: IsologError, now: float) -> None:
        """Take a lane off its stream. Its unanswered batches are sent again, to its leader."""
        assert placed.stream is not None
        del placed.stream.lanes[placed.partition]
        placed.stream = None
        placed.lane.on_lost()
        placed.on_failed(reason, now)

    def _alter(self, target: TopicLanes, now: float) -> None:
        for stream in target.streams.values():
            self.out.append(EndStream(stream.number))
            del self._streams[stream.number]
        target.streams.clear()
        for placed in target.lanes.values():
            placed.lane.on_lost()
            placed.lane.revise(lambda batch: fitted_to(batch, target.topic))
            placed.stream = None
        self._find(target, now)

    def _clear(self, target: TopicLanes, lanes: Iterable[PlacedLane], error: IsologError) -> None:
        if isinstance(error, UnknownTopic):
            self.outcomes.append(TopicChanged(target.topic, None))
        for placed in lanes:
            for batch in placed.lane.remove_all():
                self._give_up(target, batch, error)

    def _give_up(self, target: TopicLanes, batch: Outgoing, reason: IsologError) -> None:
        error = unknown(target.topic.name, batch, reason) if batch.unanswered else reason
        self._settle(batch, Unacknowledged(error))

    def _settle(self, batch: Outgoing, settlement: Settlement) -> None:
        self.outcomes.append(SettleBatch(batch, settlement))
        self.unsettled -= 1 + len(batch.others)
        self._finish()

    def _finish(self) -> None:
        if not self._is_closing or self.unsettled:
            return
        self.out.extend(EndStream(number) for number in self._streams)
        self._streams.clear()
        for target in self._targets.values():
            target.streams.clear()
            for placed in target.lanes.values():
                placed.stream = None
        self.outcomes.append(AllSettled())

    def _wake(self, at: float) -> None:
        if self._wake_at is None or at < self._wake_at:
            self._wake_at = at
            self.out.append(WakeAt(at))

    def _silence(self, stream: LaneStream | None) -> BrokerUnavailable:
        where = "any broker" if stream is None else stream.address
        return BrokerUnavailable(f"no acknowledgement from {where} in {self._timeout_s:g} s")


def _is_not_taken(error: IsologError) -> bool:
    """Return whether the batch is sent again, because a leader may accept it later.

    A leader that cannot write hands its leadership over to another in-sync replica, if there is
    one.
    """
    if isinstance(error, DiskFull | StorageFailure):
        return bool(error.details.get("others_in_sync"))
    return isinstance(error, _NOT_TAKEN)


def _is_passing(error: IsologError) -> bool:
    """Return whether a retry may help, because the request is valid."""
    return error.retriable or isinstance(error, InternalError)
