"""The leader's end of a stream of replication.

Two threads. One takes what the follower says. The other sends: it sleeps until there is something
to say, which is news of a partition, a word of the follower that makes room or asks something, a
high watermark that no frame has taken along, or a beat that is due. However many partitions the
stream has, those at rest cost nothing.

A session is never called under the stream's lock: news comes under the partition's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Protocol, assert_never

from spark_stream.broker.replication.partitions import LeadPartitions, PartitionKey
from spark_stream.broker.replication.settings import (
    FRAME_BYTES,
    HIGH_WATERMARK_LINGER_S,
    SLOWEST_LINE,
    ReplicationSettings,
)
from spark_stream.broker.replication.turns import Slot, Turns
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.environment import Clock
from spark_stream.errors import BrokerUnavailable, InternalError, InvalidRequest, IsologError
from spark_stream.protocol import Bytes, Received
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    Beat,
    Bye,
    Follow,
    Frame,
    HighWatermarks,
    OpenReplication,
    Refused,
    Room,
    Said,
    Unfollow,
    Welcome,
    unpack,
)

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """Where the follower's messages come from."""

    def receive(self) -> Received | None: ...


Sent = tuple[bytes, Bytes]
"""A message as it is sent: the header and the body of a frame."""


class LeaderStream:
    """One follower's stream, for all partitions that it follows here."""

    def __init__(
        self,
        opened: OpenReplication,
        welcome: Welcome,
        partitions: LeadPartitions,
        settings: ReplicationSettings,
        clock: Clock,
    ) -> None:
        self.opened = opened
        self.follower = BrokerId(opened.follower)
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._turns = Turns(opened.window_bytes)
        self._outbox = [welcome.pack()]
        self._moved: dict[int, Slot] = {}  # whose high watermark no frame has told yet
        self._moved_since = 0.0  # while there are any
        self._tell_at: float | None = None  # when the sender looks whether they are to be told
        self._calls = 0  # that are under way
        self._ending = False
        self._said_bye = False
        self._waiting_since: float | None = clock.monotonic()  # for the follower's next word
        self._beat_at = clock.monotonic() + settings.beat_s

    def messages(self) -> Iterator[Sent]:
        """What is said to the follower, until the stream ends.

        Raises:
            BrokerUnavailable: the follower is dead.
        """
        with self._changed:
            self._calls += 1
        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, list):
                    for packed in step:
                        yield packed, b""
                    continue
                said = self._take_turn(step) if isinstance(step, Slot) else _high_watermarks(step)
                if said is not None:
                    yield said
        finally:
            self.stop()
            self._close_sessions()
            self._leave_call()

    def take_all(self, reader: Reader) -> None:
        """Takes what the follower says, until it ends that.

        Raises:
            InvalidRequest: it says what makes no sense.
        """
        with self._changed:
            self._calls += 1
        try:
            while (received := self._read(reader)) is not None:
                self._take(unpack(received.header, received.body))
        finally:
            self.stop()
            self._leave_call()

    def stop(self) -> None:
        """Sends no more, and tells the follower so."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of both calls; whether it came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout_s)

    @property
    def silence_s(self) -> float:
        """How long the follower may say nothing: what is under way to it takes a while."""
        return self._settings.death_s + self._turns.unacked_bytes / SLOWEST_LINE

    def _check_alive(self, now: float) -> None:
        """Raise BrokerUnavailable if the follower has given no sign of life for too long."""
        since = self._waiting_since
        if since is not None and now - since > self.silence_s:
            text = f"follower {self.follower} gave no sign of life for {now - since:.1f} s"
            logger.warning("%s", text)
            raise BrokerUnavailable(text)

    # -- what the follower says ------------------------------------------------------------------

    def _read(self, reader: Reader) -> Received | None:
        self._waiting_since = self._clock.monotonic()
        try:
            return reader.receive()
        finally:
            self._waiting_since = None

    def _take(self, message: Said) -> None:
        match message:
            case Acked():
                self._take_acks(message)
            case Follow():
                self._start_session(message)
            case Unfollow():
                self._take_unfollow(message)
            case Room():
                with self._changed:
                    self._turns.window_bytes = message.window_bytes
                    self._changed.notify()
            case Beat():
                pass
            case Welcome() | Agreed() | Frame() | HighWatermarks() | Refused() | Bye():
                raise InvalidRequest(f"a follower does not say {type(message).__name__}")
            case _:
                assert_never(message)

    def _take_acks(self, message: Acked) -> None:
        told = []
        with self._changed:
            for number, entry in message.entries:
                slot = self._turns.get(number)
                if slot is not None:
                    if entry > slot.next:
                        raise InvalidRequest(f"entry {entry} was acknowledged before it was sent")
                    self._turns.acked(slot, EntryIndex(entry))
                    told.append((slot.session, EntryIndex(entry)))
            if self._turns.can_send():
                self._changed.notify()
        for session, entry in told:
            session.acked(entry)

    def _start_session(self, asked: Follow) -> None:
        number = asked.slot
        try:
            session = self._partitions.start_session(
                self.follower,
                Generation(asked.generation),
                PartitionKey(asked.topic_id, asked.partition),
                LeaderEpoch(asked.leader_epoch),
                asked.history,
                partial(self._take_news, number),
            )
        except IsologError as error:
            self._say(Refused(number, error))
            return
        except Exception as error:
            logger.exception("a session of follower %s", self.follower)
            self._say(Refused(number, InternalError(f"{type(error).__name__}: {error}")))
            return
        agreement = session.agreement
        slot = Slot(number, asked.leader_epoch, session, is_behind=session.end > agreement.entry)
        with self._changed:
            known = self._turns.get(number) is not None
            if not known and not self._ending:
                reset = None if agreement.reset is None else int(agreement.reset.offset)
                agreed = Agreed(number, agreement.entry, reset, agreement.high_watermark)
                self._outbox.append(agreed.pack())
                self._turns.add(slot)
                self._changed.notify()
                return
        session.close()
        if known:
            raise InvalidRequest(f"slot {number} was given twice")

    def _take_unfollow(self, message: Unfollow) -> None:
        slot = self._turns.get(message.slot)
        if slot is not None and message.damaged is not None:
            slot.session.came_damaged(EntryIndex(message.damaged))
        if slot is not None and message.refuses_writes:
            slot.session.refuses_writes()
        self._end_session(message.slot)

    def _end_session(self, number: int) -> None:
        with self._changed:
            slot = self._turns.remove(number)
            self._moved.pop(number, None)
            self._changed.notify()
        if slot is not None:
            slot.session.close()

    def _close_sessions(self) -> None:
        with self._changed:
            slots = list(self._turns)
        for slot in slots:
            self._end_session(slot.number)

    def _leave_call(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    # -- what it is told -------------------------------------------------------------------------

    def _take_news(self, number: int, is_urgent: bool) -> None:
        with self._changed:
            slot = self._turns.get(number)
            if slot is None or slot.has_news:
                return
            if is_urgent:
                self._turns.take_news(slot)
                self._changed.notify()
                return
            if not self._moved:
                self._moved_since = self._clock.monotonic()
            self._moved[number] = slot
            if self._tell_at is None:  # else the sender looks by itself then
                self._tell_at = self._moved_since + HIGH_WATERMARK_LINGER_S
                self._changed.notify()

    def _say(self, message: Refused) -> None:
        with self._changed:
            self._outbox.append(message.pack())
            self._changed.notify()

    def _next_step(self) -> Slot | dict[int, Slot] | list[bytes] | None:
        """What to do next, once there is something. None: the stream ends.

        A slot's turn, those whose high watermark is to be told, or messages.
        """
        with self._changed:
            while True:
                if self._outbox:
                    found, self._outbox = self._outbox, []
                    return found
                if self._ending:
                    return None if self._bye_is_said() else [Bye().pack()]
                now = self._clock.monotonic()
                self._check_alive(now)
                if self._tell_at is not None and now >= self._tell_at:
                    due_at = self._moved_since + HIGH_WATERMARK_LINGER_S
                    self._tell_at = due_at if self._moved and due_at > now else None
                    if self._moved and self._tell_at is None:
                        moved, self._moved = self._moved, {}
                        return moved
                slot = self._turns.next_slot()
                if slot is not None:
                    return slot
                if now >= self._beat_at:
                    self._beat_at = now + self._settings.beat_s
                    since = self._waiting_since
                    if since is not None and now - since >= self._settings.beat_s / 2:
                        return [Beat().pack()]
                wake_at = self._beat_at
                if self._tell_at is not None:
                    wake_at = min(wake_at, self._tell_at)
                self._changed.wait(wake_at - now)

    def _bye_is_said(self) -> bool:
        said, self._said_bye = self._said_bye, True
        return said

    def _take_turn(self, slot: Slot) -> Sent | None:
        session = slot.session
        try:
            found = session.read_entries(slot.next, FRAME_BYTES)
            high_watermark = session.high_watermark
        except IsologError as error:
            return self._refusal(slot, error)
        except Exception as error:
            logger.exception("reading for follower %s", self.follower)
            return self._refusal(slot, InternalError(f"{type(error).__name__}: {error}"))
        if found is None:
            self._take_news(slot.number, False)  # the high watermark may have moved
            return None
        frame = Frame(slot.number, slot.epoch, slot.next, high_watermark, found.rows, found.data)
        end = EntryIndex(frame.end)
        is_behind = session.end > end
        with self._changed:
            slot.high_watermark_told = high_watermark
            if self._tell_at is None:  # the next move of it will not have to wake this thread
                self._tell_at = self._clock.monotonic() + HIGH_WATERMARK_LINGER_S
            self._moved.pop(slot.number, None)
            self._turns.sent(slot, end, frame.size, is_behind=is_behind)
        return frame.pack()

    def _refusal(self, slot: Slot, error: IsologError) -> Sent:
        self._end_session(slot.number)
        return Refused(slot.number, error).pack(), b""


def _high_watermarks(moved: dict[int, Slot]) -> Sent | None:
    """The message that tells them; None: frames have done so meanwhile."""
    found = []
    for number, slot in moved.items():
        high_watermark = slot.session.high_watermark
        if high_watermark > slot.high_watermark_told:
            slot.high_watermark_told = high_watermark
            found.append((number, int(high_watermark)))
    return (HighWatermarks(tuple(found)).pack(), b"") if found else None
