"""The leader's end of a stream of replication.

Two threads. The call's own thread takes what the follower says; the sender writes, and nobody else
does. It sleeps until there is something to send: news of a partition, a word of the follower that
makes room or asks something, a high watermark that no frame has taken along, a beat that is due.
However many partitions the stream has, those at rest cost nothing.

A session is never called under the stream's lock: news comes under the partition's.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.replication.partitions import LeadPartitions, PartitionKey
from spark_stream.broker.replication.settings import (
    ENDING_S,
    FRAME_BYTES,
    HIGH_WATERMARK_LINGER_S,
    ReplicationSettings,
)
from spark_stream.broker.replication.turns import Slot, Turns
from spark_stream.broker.replication.watch import is_silent
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.environment import Clock
from spark_stream.errors import InternalError, InvalidRequest, IsologError
from spark_stream.wire.replication_messages import (
    BODY,
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
from spark_stream.wire.sockets import connections_of

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """Where the follower's messages come from (Flight's reader)."""

    def read_chunk(self) -> fl.FlightStreamChunk: ...


class Writer(Protocol):
    """Where the leader's go (Flight's writer)."""

    def begin(self, schema: pa.Schema) -> None: ...
    def write_metadata(self, metadata: bytes) -> None: ...
    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Line:
    """A stream as Flight hands it over. ``peer``: its name of the follower."""

    peer: str
    reader: Reader
    writer: Writer


class LeaderStream:
    """One follower's stream, for all partitions that it follows here."""

    def __init__(
        self,
        line: Line,
        opened: OpenReplication,
        welcome: Welcome,
        partitions: LeadPartitions,
        settings: ReplicationSettings,
        clock: Clock,
    ) -> None:
        self.follower = BrokerId(opened.follower)
        self._line = line
        self._pid = opened.pid
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._has_schema = False
        self._is_over = threading.Event()
        self._changed = threading.Condition()  # guards what follows
        self._turns = Turns(opened.window_bytes)
        self._outbox: list[Said] = [welcome]
        self._high_watermarks: dict[int, EntryIndex] = {}  # by slot, what no frame has told yet
        self._tell_at: float | None = None
        self._ending = False
        self._said_bye = False
        self._waiting_since: float | None = None  # for the follower's next word
        self._beat_at = clock.monotonic() + settings.beat_s

    def run(self) -> None:
        """Serves the stream until the follower ends it, or it breaks."""
        sender = threading.Thread(target=self._send_all, name="isolog-replication-sender")
        sender.start()
        try:
            self._read_all()
        finally:
            self.stop()
            sender.join(ENDING_S)
            if sender.is_alive():  # in a write that nobody reads
                self.break_off()
                sender.join()
            self._close_sessions()
            self._is_over.set()

    def stop(self) -> None:
        """Sends no more, and tells the follower so."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of :meth:`run`; whether it came in time."""
        return self._is_over.wait(timeout_s)

    def break_off(self) -> None:
        """Ends the connection: who reads or writes gets an error."""
        for connection in connections_of(self._line.peer, self._pid):
            with suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def look(self, now: float) -> None:
        """Ends the connection of a follower that is dead."""
        since = self._waiting_since
        limit = self._settings.death_s
        if since is None or now - since < limit:
            return
        if is_silent(connections_of(self._line.peer, self._pid), limit):
            logger.warning("follower %s gave no sign of life for %g s", self.follower, limit)
            self.break_off()

    # -- what the follower says ------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            self._waiting_since = self._clock.monotonic()
            try:
                chunk = self._line.reader.read_chunk()
            except StopIteration:
                return
            finally:
                self._waiting_since = None
            self._take(unpack(chunk.app_metadata, chunk.data))

    def _take(self, message: Said) -> None:
        match message:
            case Acked():
                self._take_acks(message)
            case Follow():
                self._start_session(message)
            case Unfollow():
                self._end_session(message.slot)
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
            if not known:
                reset = None if agreement.reset is None else int(agreement.reset.offset)
                self._outbox.append(
                    Agreed(number, agreement.entry, reset, agreement.high_watermark)
                )
                self._turns.add(slot)
                self._changed.notify()
        if known:
            session.close()
            raise InvalidRequest(f"slot {number} was given twice")

    def _end_session(self, number: int) -> None:
        with self._changed:
            slot = self._turns.remove(number)
            self._high_watermarks.pop(number, None)
            self._changed.notify()
        if slot is not None:
            slot.session.close()

    def _close_sessions(self) -> None:
        with self._changed:
            slots = list(self._turns)
        for slot in slots:
            self._end_session(slot.number)

    # -- what it is told -------------------------------------------------------------------------

    def _take_news(self, number: int) -> None:
        with self._changed:
            slot = self._turns.get(number)
            if slot is not None and not slot.has_news:
                self._turns.take_news(slot)
                self._changed.notify()

    def _say(self, message: Said) -> None:
        with self._changed:
            self._outbox.append(message)
            self._changed.notify()

    def _send_all(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, Slot):
                    self._take_turn(step)
                else:
                    for message in step:
                        self._write(message)
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            logger.info("the stream to follower %s broke: %s", self.follower, error)
            self.break_off()
        except Exception:
            logger.exception("the stream to follower %s", self.follower)
            self.break_off()

    def _next_step(self) -> Slot | list[Said] | None:
        """What to do next, once there is something: a slot's turn, or messages. None: it ends."""
        with self._changed:
            while True:
                if self._outbox:
                    found, self._outbox = self._outbox, []
                    return found
                if self._ending:
                    return None if self._bye_is_said() else [Bye()]
                now = self._clock.monotonic()
                if self._tell_at is not None and now >= self._tell_at:
                    return self._due_high_watermarks()
                slot = self._turns.next_slot()
                if slot is not None:
                    return slot
                if now >= self._beat_at:
                    self._beat_at = now + self._settings.beat_s
                    since = self._waiting_since
                    if since is not None and now - since >= self._settings.beat_s / 2:
                        return [Beat()]
                wake_at = self._beat_at
                if self._tell_at is not None:
                    wake_at = min(wake_at, self._tell_at)
                self._changed.wait(wake_at - now)

    def _bye_is_said(self) -> bool:
        said, self._said_bye = self._said_bye, True
        return said

    def _due_high_watermarks(self) -> list[Said]:
        found = tuple((number, int(entry)) for number, entry in self._high_watermarks.items())
        for number, entry in self._high_watermarks.items():
            slot = self._turns.get(number)
            if slot is not None:
                slot.high_watermark_told = entry
        self._high_watermarks.clear()
        self._tell_at = None
        return [HighWatermarks(found)] if found else []

    def _take_turn(self, slot: Slot) -> None:
        session = slot.session
        try:
            found = session.read_entries(slot.next, FRAME_BYTES)
            high_watermark = session.high_watermark
        except IsologError as error:
            self._refuse(slot, error)
            return
        except Exception as error:
            logger.exception("reading for follower %s", self.follower)
            self._refuse(slot, InternalError(f"{type(error).__name__}: {error}"))
            return
        if found is None:
            if high_watermark > slot.high_watermark_told:
                self._linger(slot, high_watermark)
            return
        rows, data = found
        frame = Frame(slot.number, slot.epoch, slot.next, high_watermark, rows, data)
        end = EntryIndex(frame.end)
        is_behind = session.end > end
        with self._changed:
            slot.high_watermark_told = high_watermark
            self._high_watermarks.pop(slot.number, None)
            self._turns.sent(slot, end, frame.size, is_behind=is_behind)
        self._write(frame)

    def _linger(self, slot: Slot, high_watermark: EntryIndex) -> None:
        """The high watermark goes with the next frame, or alone if none comes soon."""
        with self._changed:
            if self._turns.get(slot.number) is None:
                return
            self._high_watermarks[slot.number] = high_watermark
            if self._tell_at is None:
                self._tell_at = self._clock.monotonic() + HIGH_WATERMARK_LINGER_S

    def _refuse(self, slot: Slot, error: IsologError) -> None:
        self._end_session(slot.number)
        self._write(Refused(slot.number, error))

    def _write(self, message: Said) -> None:
        writer = self._line.writer
        if not isinstance(message, Frame):
            writer.write_metadata(message.pack())
            return
        metadata, batch = message.pack()
        if batch is None:
            writer.write_metadata(metadata)
            return
        if not self._has_schema:
            writer.begin(BODY)
            self._has_schema = True
        writer.write_with_metadata(batch, metadata)
