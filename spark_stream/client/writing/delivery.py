"""One topic's batches on their way to the leaders of its partitions: sent, answered, sent again.

A batch that was entered is settled exactly once: by its acknowledgement, by an error that the
leader gave it, or when its time is over. When a stream breaks, or a broker leads a partition no
more, what it did not answer goes to the partition's present leader, in its order and under its old
stamps: the leaders know what they have already. So a lost connection, a broker that comes back in
time, and one that is replaced cost nothing but the wait.

Each leader has a channel of its own, so that one that is lost holds up no other's partitions. While
a producer has to do with one broker its callers themselves write; else each channel's thread does,
for a write may be stuck.

What was sent and not answered in time has an *unknown outcome*. What was never sent, or surely not
appended, has the error that kept it from the log.

Locks: ``_lock`` is the innermost, and nothing that takes time or another lock is called under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from spark_stream.client.connecting.router import Router
from spark_stream.client.writing.appending import AppendStream
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.channel import Author, Channel, PlacedLane
from spark_stream.client.writing.lanes import Lane, Outgoing, Settle, Unacknowledged, settlement_of
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InternalError,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    UnknownLeaderEpoch,
    UnknownOutcome,
)
from spark_stream.wire.messages import Ack, AppendTo, BatchRefused, TopicDescription

_FIND_S: Final = 5.0
# A batch that is answered by one of these is sent again, where it belongs. It is not in the log,
# unless the error's details say that it was ``appended`` by a leader that was replaced then.
_NOT_TAKEN: Final = (
    NotLeader,
    LeaderEpochFenced,
    UnknownLeaderEpoch,
    LeaderUnavailable,
    NotEnoughReplicas,
)


class Delivery:
    """To one topic, for any thread. ``wanted`` is called when :meth:`serve` has something to do."""

    def __init__(
        self,
        router: Router,
        topic: TopicDescription,
        author: Author,
        request: AppendTo,
        brokers: set[str],
        wanted: Callable[[Delivery], None],
    ) -> None:
        """``brokers``: the addresses that all deliveries of the producer have channels to."""
        self._router = router
        self._topic = topic
        self._author = author
        self._request = request
        self._brokers = brokers
        self._wanted = wanted
        self._lock = threading.Lock()
        self._lanes: dict[int, PlacedLane] = {}
        self._homeless: dict[int, PlacedLane] = {}  # those that are in no channel
        self._channels: dict[str, Channel] = {}  # by the address of their links
        self._nobody_until = 0.0  # until then it makes no sense to ask for an identity
        self._closed = False
        self.partitions = len(topic.partitions)
        """How many the topic has, as the last answer said."""

    @property
    def retry_at(self) -> float:
        """When, on the monotonic clock, :meth:`serve` may try again."""
        with self._lock:
            waiting = [each.retry_at for each in self._homeless.values() if len(each.lane)]
        return max(self._nobody_until, min(waiting, default=0.0))

    @property
    def live(self) -> bool:
        """Whether a batch that is entered now may go at once."""
        return self._author.identity is not None and any(
            each.stream is not None for each in list(self._channels.values())
        )

    @property
    def outgrown(self) -> bool:
        """Whether the topic has another number of partitions by now."""
        return self.partitions != len(self._topic.partitions)

    @property
    def topic(self) -> TopicDescription:
        """Where the batches go."""
        return self._topic

    def enter(self, batch: pa.RecordBatch, partition: int, settle: Settle, joins: int = 0) -> None:
        """Takes charge of a batch, which goes after the earlier ones of its partition.

        :meth:`pump` sends it. ``joins``: its bytes, if it may go with others as one batch.
        """
        deadline = time.monotonic() + self._request.timeout_ms / 1000
        with self._lock:
            placed = self._lanes.get(partition)
            if placed is None:
                placed = self._lanes[partition] = PlacedLane(partition, Lane())
                self._homeless[partition] = placed
            placed.lane.add(Outgoing(batch, partition, deadline, settle, joins=joins))
            if placed.channel is not None:
                placed.channel.list(placed)

    def alter(self, topic: TopicDescription) -> None:
        """The topic's schema was altered: from now on batches have the new one.

        Those that wait get it as well, and those that are not answered are sent again in it: the
        leader knows them by their stamps. Each stream has one schema, so others take their place.
        """
        with self._lock:
            self._topic = topic
            for placed in self._lanes.values():
                placed.lane.revise(lambda batch: fitted_to(batch, topic))
            ended = [channel.alter(topic) for channel in self._channels.values()]
        for stream in ended:
            if stream is not None:
                stream.close()

    def pump(self) -> None:
        """Sends what can go now: from the calling thread, if all goes to one leader."""
        with self._lock:
            used = [each for each in self._channels.values() if each.lanes]
            alone = used[0] if used and used[0].stream and len(self._brokers) == 1 else None
            if alone is None:
                for each in used:
                    if each.waiting:
                        each.wake()
        if alone is not None:
            alone.pump()
        self.want()

    def want(self) -> None:
        """Asks to be served, if there is something that needs it."""
        with self._lock:
            wanting = self._wanting()
        if wanting:
            self._wanted(self)

    def serve(self) -> None:
        """Finds leaders where they are not known, and sends. What fails is tried again later.

        For a thread that may wait for the broker that is asked; one at a time.
        """
        now = time.monotonic()
        with self._lock:
            waiting = [each for each in self._homeless.values() if len(each.lane)]
        due = [each for each in waiting if each.retry_at <= now]
        try:
            self._find_leaders(due)
        except IsologError as error:
            if not _passing(error):
                self.clear(error)
                return
            with self._lock:
                for each in due:
                    each.failed(error)
        else:
            for each in due:
                self._place(each)
        with self._lock:
            for channel in self._channels.values():
                for placed in channel.lanes.values():
                    channel.list(placed)
            channels = list(self._channels.values())
        if len(channels) == 1 and len(self._brokers) == 1:  # else one that is lost holds up others
            channels[0].serve()
        self.pump()

    def _find_leaders(self, lanes: list[PlacedLane]) -> None:
        """Asks once for all leaders, if one is not known."""
        name, topic_id = self._topic.name, self._topic.id
        if any(self._router.known(name, topic_id, each.partition) is None for each in lanes):
            self._router.refresh(name, topic_id, min(_FIND_S, self._router.timeout_s))

    def _place(self, placed: PlacedLane) -> None:
        """Puts the lane into the channel to its partition's leader, if it has one now."""
        name, number = self._topic.name, placed.partition
        route = self._router.known(name, self._topic.id, number)
        link = None if route is None else self._router.link(route)
        with self._lock:
            if route is None or link is None:
                placed.failed(
                    LeaderUnavailable(
                        f"{name}/{number} has no leader now", topic=name, partition=number
                    )
                )
                return
            if self._closed:
                return
            channel = self._channels.get(link.address)
            if channel is None:
                channel = self._channels[link.address] = Channel(
                    link, self._router, self._topic, self._author, self._request, self._lock, self
                )
            self._brokers.add(link.address)
            del self._homeless[number]
            channel.place(placed, route)

    def _take_out(self, channel: Channel, placed: PlacedLane, reason: IsologError) -> None:
        """The lane looks for a leader anew; the caller holds the lock."""
        channel.remove(placed)
        placed.failed(reason)
        self._homeless[placed.partition] = placed

    def postpone(self, error: IsologError) -> None:
        """After a failure before anything was sent: tries again later if that may help."""
        if not _passing(error):
            self.clear(error)
            return
        with self._lock:
            for each in self._lanes.values():
                if len(each.lane):
                    each.failed(error)
                    self._nobody_until = each.retry_at
        self._wanted(self)

    def expire(self) -> None:
        """Settles the batches whose time is over. To be called now and then.

        A stream on which nothing was answered in time ends, and with it its connection.
        """
        now = time.monotonic()
        with self._lock:
            late = [each for each in self._channels.values() if each.late(now)]
        for channel in late:
            channel.break_off(self._silence(channel))
        over = []
        with self._lock:
            for placed in self._lanes.values():
                reason = placed.reason or self._silence(placed.channel)
                over += [(batch, reason) for batch in placed.lane.expired(now)]
        for batch, reason in over:
            batch.settle_all(Unacknowledged(self._outcome(batch, reason)))
        if over:
            self._wanted(self)

    def clear(self, error: IsologError) -> None:
        """Settles all that is not answered with the error; answers that still come are ignored."""
        with self._lock:
            left = [batch for each in self._lanes.values() for batch in each.lane.cleared()]
        for batch in left:
            batch.settle_all(Unacknowledged(error))

    def close(self) -> None:
        """Waits for the last acknowledgements."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        for each in channels:
            each.close()

    def _wanting(self) -> bool:
        """Whether something waits for a leader or an identity."""
        if self._author.identity is not None:
            return any(len(each.lane) for each in self._homeless.values())
        return any(len(each.lane) for each in self._lanes.values())

    # -- answers: called by channels --------------------------------------------------------------

    def answered(self, channel: Channel, stream: AppendStream, ack: Ack) -> None:
        """A batch was answered on a stream of the channel."""
        error = ack.error if isinstance(ack, BatchRefused) else None
        if isinstance(error, BrokerStopping):
            self.ended(channel, stream, error)
            return
        if ack.partitions is not None:
            self.partitions = ack.partitions
        route = None
        with self._lock:
            placed = channel.lanes.get(ack.partition)
            if stream is not channel.stream or placed is None:
                return
            lane = placed.lane
            if isinstance(error, _NOT_TAKEN) and not error.details.get("appended"):
                lane.refused(ack.number)
            batch = lane.head(ack.number)
            if batch is None:
                return  # settled meanwhile, or sent again
            settlement = settlement_of(self._topic.name, batch, ack, self._told(batch, error))
            channel.progressed()
            if isinstance(error, _NOT_TAKEN):
                route = placed.route
                self._take_out(channel, placed, error)
                batch = None
            elif isinstance(error, OutOfOrderSequence) and lane.begins_anew(error):
                lane.anew()
                batch = None
            else:
                lane.pop()
                placed.got_through()
            if placed.channel is channel:
                channel.list(placed)
                if placed.listed:
                    channel.wake()
                self._note_epoch(placed, ack.leader_epoch)
        if route is not None and error is not None:
            self._router.failed(route, error)
        if batch is not None:
            batch.settle_all(settlement)
        if route is not None:
            self._wanted(self)

    def _note_epoch(self, placed: PlacedLane, epoch: int | None) -> None:
        """Learns the leader's epoch, if only the leader could tell it."""
        if epoch is not None and placed.route is not None and placed.route.epoch is None:
            placed.route = replace(placed.route, epoch=epoch)

    def ended(self, channel: Channel, stream: AppendStream | None, reason: IsologError) -> None:
        """A stream of the channel has ended (None: could not be opened): its lanes look anew."""
        with self._lock:
            if not channel.lost(stream):
                return
            placed = list(channel.lanes.values())
            routes = [each.route for each in placed if each.route is not None]
            for each in placed:
                self._take_out(channel, each, reason)
            waiting = any(len(each.lane) for each in placed)
            broken = not self._closed  # else the stream was ended from here: its leader still leads
        for route in routes if broken else ():
            self._router.failed(route, reason)
        if not _passing(reason):
            self._clear_lanes(placed, reason)
        elif waiting:
            self._wanted(self)

    def _clear_lanes(self, placed: list[PlacedLane], error: IsologError) -> None:
        with self._lock:
            left = [batch for each in placed for batch in each.lane.cleared()]
        for batch in left:
            batch.settle_all(Unacknowledged(error))

    # -- outcomes ---------------------------------------------------------------------------------

    def _told(self, batch: Outgoing, error: IsologError | None) -> IsologError | None:
        """The error as the caller gets it."""
        if isinstance(error, OutOfOrderSequence) and self._author.transactional_id is None:
            return self._unknown(batch, error)
        return error

    def _outcome(self, batch: Outgoing, reason: IsologError) -> IsologError:
        return self._unknown(batch, reason) if batch.unanswered else reason

    def _unknown(self, batch: Outgoing, reason: IsologError) -> IsologError:
        name = self._topic.name
        return UnknownOutcome(
            f"{name}/{batch.partition}: {batch.rows} records were sent and not"
            f" acknowledged: {reason.message}",
            topic=name,
            partition=batch.partition,
        )

    def _silence(self, channel: Channel | None) -> BrokerUnavailable:
        where = "any broker" if channel is None else channel.link.address
        return BrokerUnavailable(
            f"no acknowledgement from {where} in {self._request.timeout_ms / 1000:g} s"
        )


def _passing(error: IsologError) -> bool:
    """Whether another try may help: nothing is wrong with what was asked."""
    return error.retriable or isinstance(error, InternalError)
