"""Followers and leaders of a simulated run, with a network between them that may break.

What a leader and a follower do is a broker's own (``broker.links``); what travels, and in which
order, is as on the stream between two brokers (``broker.replication``). A stream is lost as a
whole: a message that does not arrive is the last one. Each session has a stream of its own here,
and how many entries a frame holds is chance.

**After a break.** Neither end knows at once that a stream is broken, and what has arrived is still
handled: by threads that may be slow. So a leader may begin a session whose follower has long gone
elsewhere, take its reports, and end it late; and a follower may be at a frame of a leader that it
does not follow any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import pyarrow as pa

from spark_stream.broker.links import Followed, LedPartitions, Session
from spark_stream.broker.partition import Partition
from spark_stream.broker.replication.partitions import Agreement, PartitionKey
from spark_stream.consistency.entries import Table
from spark_stream.consistency.epochs import EpochHistory
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.errors import DiskFull, IsologError, StorageFailure
from spark_stream.testing.simulation.network import Network
from spark_stream.testing.simulation.schedule import NOW, Body, Schedule, Signal

_FRAME_BYTES: Final = (1, 1_000, 1 << 20)
_RETRY_S: Final = 0.2
_WINDOW: Final = 4  # frames that are not acknowledged
_SLOW: Final = 0.05  # how often a thread is slow
_LATE_S: Final = 3.0  # so late may an end of a stream be, once it is broken


@dataclass(frozen=True, slots=True)
class _Follow:
    """A follower asks for a session."""

    key: PartitionKey
    epoch: LeaderEpoch
    generation: Generation
    history: EpochHistory


@dataclass(frozen=True, slots=True)
class _Frame:
    """Entries, and how far the leader's high watermark is."""

    first: EntryIndex
    rows: Table
    data: pa.Buffer
    high_watermark: EntryIndex


@dataclass(frozen=True, slots=True)
class _HighWatermark:
    """How far the leader's high watermark is, where there was no frame to tell it."""

    entry: EntryIndex


_Said = Agreement | _Frame | _HighWatermark | IsologError


class Stream:
    """What is on its way between a leader and a follower of one partition."""

    def __init__(self, schedule: Schedule) -> None:
        self.broken = False
        self.to_follower: deque[_Said] = deque()
        self.acks: deque[EntryIndex] = deque()
        self._schedule = schedule
        self._follower: Signal | None = None
        self._leader: Signal | None = None
        self._has_news = False
        self.refuses_writes = False
        """Whether the follower has said that its log refuses writes."""

    def say(self, message: _Said) -> None:
        """To the follower."""
        self.to_follower.append(message)
        _give(self._follower)

    def ack(self, entry: EntryIndex) -> None:
        """To the leader."""
        self.acks.append(entry)
        self.wake_leader()

    def wake_leader(self, entries: bool = True) -> None:
        """There is something for the leader to do."""
        self._has_news = True
        _give(self._leader)

    def break_off(self) -> None:
        """What is on its way is lost."""
        self.broken = True
        _give(self._follower)
        self.wake_leader()

    def for_leader(self) -> Body:
        """Waits until there is something for the leader."""
        if not self._has_news:
            self._leader = Signal(self._schedule)
            yield self._leader
        self._has_news = False

    def for_follower(self) -> Body:
        """Waits until there is something for the follower."""
        if not self.to_follower and not self.broken:
            self._follower = Signal(self._schedule)
            yield self._follower


def _give(signal: Signal | None) -> None:
    if signal is not None:
        signal.give()


class Leader(Protocol):
    """A broker as its followers know it."""

    broker_id: str
    streams: dict[Stream, None]

    @property
    def owner(self) -> str: ...

    @property
    def serves(self) -> bool: ...

    @property
    def led(self) -> LedPartitions: ...


class _Following:
    """A partition that follows, until it does not any more."""

    def __init__(self, followed: Followed, leader: BrokerId) -> None:
        self.followed = followed
        self.leader = leader
        self.over = False
        self.stream: Stream | None = None

    def end(self) -> None:
        self.over = True
        if self.stream is not None:
            self.stream.break_off()


class SimulatedLinks:
    """The streams by which the replicas of one process follow others."""

    def __init__(
        self,
        me: BrokerId,
        owner: str,
        leaders: Mapping[str, Leader],
        schedule: Schedule,
        network: Network,
        chance: Random,
    ) -> None:
        self._me = me
        self._owner = owner
        self._leaders = leaders
        self._schedule = schedule
        self._network = network
        self._chance = chance
        self._followings: dict[PartitionKey, _Following] = {}

    def follow(self, partition: Partition, leader: BrokerId, generation: Generation) -> None:
        self.unfollow(partition)
        followed = Followed.now(partition, generation)
        following = self._followings[followed.key] = _Following(followed, leader)
        name = f"{self._me} follows {leader} in {partition.name}"
        self._schedule.start(name, self._follow(following), self._owner)

    def unfollow(self, partition: Partition) -> None:
        key = PartitionKey(partition.topic_id, partition.number)
        found = self._followings.pop(key, None)
        if found is not None:
            found.end()

    def _follow(self, following: _Following) -> Body:
        """One session after the other, until the partition follows nobody here any more."""
        yield NOW
        while not following.over:
            leader = self._leaders.get(following.leader)
            reached = self._network.connects(self._me, following.leader)
            if leader is not None and leader.serves and reached:
                yield from self._hold_session(following, leader)
            if not following.over:
                yield _RETRY_S * (0.5 + 2 * self._chance.random())

    def _hold_session(self, following: _Following, leader: Leader) -> Body:
        followed = following.followed
        stream = following.stream = Stream(self._schedule)
        asked = _Follow(followed.key, followed.epoch, followed.generation, followed.history())
        leader.streams[stream] = None
        self._network.streams[stream] = (self._me, leader.broker_id)
        self._schedule.start(
            f"{leader.broker_id} leads {self._me} in {followed.partition.name}",
            self._lead(stream, leader.led, asked),
            leader.owner,
        )
        try:
            yield from self._take(stream, followed)
        except IsologError as error:
            stream.refuses_writes = isinstance(error, DiskFull | StorageFailure)
        finally:
            stream.break_off()
            leader.streams.pop(stream, None)
            self._network.streams.pop(stream, None)

    def _take(self, stream: Stream, followed: Followed) -> Body:
        while True:
            yield from stream.for_follower()
            if stream.broken and (not stream.to_follower or self._chance.random() < 0.3):
                return
            if stream.broken or self._chance.random() < _SLOW:
                yield from self._dawdle()
            message = stream.to_follower.popleft()
            yield from self._network.carry(stream)
            if isinstance(message, IsologError):
                followed.refused(message)
                return
            if isinstance(message, Agreement):
                stream.ack(followed.agreed(message))
                yield NOW
            elif isinstance(message, _Frame):
                frame = message
                end = followed.append_frame(
                    frame.first, frame.rows, frame.data, frame.high_watermark
                )
                stream.ack(end)
                yield NOW
            else:
                followed.take_high_watermark(message.entry)

    def _lead(self, stream: Stream, led: LedPartitions, asked: _Follow) -> Body:
        """What the leader does for this follower; a task of the leader's process."""
        yield NOW
        if stream.broken:
            if self._chance.random() < 0.5:
                return
            yield from self._dawdle()
        try:
            session = led.start_session(
                self._me,
                asked.generation,
                asked.key,
                asked.epoch,
                asked.history,
                stream.wake_leader,
            )
        except IsologError as error:
            stream.say(error)
            return
        try:
            yield from self._send(stream, session)
        except IsologError as error:
            stream.say(error)
        yield from self._dawdle()
        while stream.acks and self._chance.random() < 0.5:
            session.acked(stream.acks.popleft())
            yield NOW
        if stream.refuses_writes and self._chance.random() < 0.9:
            session.refuses_writes()
        session.close()

    def _dawdle(self) -> Body:
        """A thread is slow, or has not heard yet that its stream is broken."""
        yield self._chance.random() * self._chance.choice((0.0, 0.0, 0.1, _LATE_S))

    def _send(self, stream: Stream, session: Session) -> Body:
        agreed = session.agreement
        stream.say(agreed)
        at, told, acked = agreed.entry, agreed.high_watermark, agreed.entry
        sent: deque[EntryIndex] = deque()
        while not stream.broken:
            while stream.acks:
                acked = stream.acks.popleft()
                session.acked(acked)
            while sent and sent[0] <= acked:
                sent.popleft()
            found = None
            if len(sent) < _WINDOW:
                found = session.read_entries(at, self._chance.choice(_FRAME_BYTES))
            high = session.high_watermark
            if found is not None:
                rows, data = found.rows, found.data
                frame = _Frame(at, rows.copy(), pa.py_buffer(data.to_pybytes()), high)
                at, told = EntryIndex(int(rows["entry_index"][-1]) + 1), high
                sent.append(at)
                stream.say(frame)
                yield NOW
                continue
            if high > told:
                told = high
                stream.say(_HighWatermark(high))
            yield from stream.for_leader()
