"""The follower's end of one stream of replication, from its connection to its end.

The stream has a connection of its own, which is lost when the leader is silent for too long. One
thread at a time reads; any thread says something.
"""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import assert_never

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.replication.following import Following, Workers
from spark_stream.broker.replication.partitions import Agreement
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.consistency.ids import BrokerId, EntryIndex, Offset
from spark_stream.consistency.leader import Boundary
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    DamagedEntries,
    DiskFull,
    InternalError,
    InvalidRequest,
    IsologError,
    StorageFailure,
)
from spark_stream.protocol import ConnectionLimits, StreamOver
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.failures import TRANSPORT_ERRORS, failure_of
from spark_stream.transport.streams import BlockingStream, ConnectionLost
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    Beat,
    Bye,
    Follow,
    Frame,
    HighWatermarks,
    OpenReplication,
    Pairs,
    Refused,
    Room,
    Said,
    Unfollow,
    Welcome,
    unpack,
)

logger = logging.getLogger(__name__)


class FollowerStream:
    """A stream to one leader. ``changed`` guards its state and that of the followings."""

    def __init__(
        self,
        me: Identity,
        leader: BrokerId,
        endpoint: Endpoint,
        window_bytes: int,
        settings: ReplicationSettings,
        clock: Clock,
        changed: threading.Condition,
        workers: Workers,
        lost_session: Callable[[Following], None],
    ) -> None:
        """``lost_session`` is called, under ``changed``, with what needs a new session."""
        self._me = me
        self._leader = leader
        self._address = endpoint.address
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._workers = workers
        self._lost_session = lost_session
        self.is_welcome = False
        self.ended: IsologError | None = None  # why nothing is read any more
        self._closing = False
        self._is_reading = False
        self._slots: dict[int, Following] = {}
        self._numbers = itertools.count()
        self._late: list[tuple[int, int]] = []  # high watermarks that a reader left to the next
        self._channel: ClientChannel | None = None
        self._wire: BlockingStream | None = None  # None: not open yet
        self._opened = OpenReplication(
            stream=uuid.uuid4().hex,
            follower=me.broker_id,
            proof=me.call_proof(leader, endpoint.incarnation),
            window_bytes=window_bytes,
        )

    def connect(self) -> None:
        """Open the stream, and begin to read.

        Raises:
            IsologError: the leader does not answer in time.
        """
        settings = self._settings
        limits = ConnectionLimits(
            credit=2 * settings.stream_bytes,
            heartbeat_s=settings.beat_s,
            silence_s=settings.death_s,
        )
        try:
            self._channel = ClientChannel(self._address, timeout_s=settings.death_s, limits=limits)
            self._wire = self._channel.open("replicate", b"", self._opened.to_bytes())
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, self._address) from error
        self._start_reading()

    def _start_reading(self) -> None:
        threading.Thread(target=self._read_all, name="isolog-follower", daemon=True).start()

    # -- what the follower says, from any thread -------------------------------------------------

    def follow(self, following: Following) -> None:
        """Asks for a session."""
        partition = following.partition
        with self._changed:
            number = next(self._numbers)
        try:
            history = partition.history()
        except IsologError as error:
            self._fail(following, error)
            return
        except Exception as error:
            logger.exception("a replica of broker %s", self._leader)
            self._fail(following, InternalError(f"{type(error).__name__}: {error}"))
            return
        with self._changed:
            following.slot = number
            self._slots[number] = following
        key = partition.key
        self._write(
            Follow(
                number,
                key.topic_id,
                key.partition,
                int(partition.epoch),
                partition.generation,
                history,
            )
        )

    def unfollow(
        self, following: Following, damaged: int | None = None, *, refuses_writes: bool = False
    ) -> None:
        """End a session; what is on its way for it is dropped.

        Args:
            following: The session's partition.
            damaged: The entry that arrived damaged, if that is why.
            refuses_writes: Whether the session ends because the log here refuses writes.
        """
        with self._changed:
            number, following.slot = following.slot, None
            known = number is not None and self._slots.pop(number, None) is not None
        if known and number is not None:
            self._write(Unfollow(number, damaged, refuses_writes))

    def set_window(self, window_bytes: int) -> None:
        """Takes so many bytes at once from now on."""
        self._write(Room(window_bytes))

    def look(self, now: float) -> None:
        """Let another thread read where one is stuck."""
        if self._workers.replaces_reader(self, now):
            logger.warning("a partition that follows broker %s is slow", self._leader)
            self._start_reading()

    def close(self) -> None:
        """End the stream, whatever its state is. Nothing touches it any more after that."""
        with self._changed:
            self._closing = True
            for following in self._slots.values():
                following.slot = None
            self._slots.clear()
        if self._wire is not None:
            self._wire.cancel()
        if self._channel is not None:
            self._channel.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reading)

    # -- what the leader says --------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            with self._changed:
                if self._closing or self.ended is not None:
                    return
                self._is_reading = True
            ended: IsologError | None = None
            try:
                message = self._received()
            except IsologError as error:
                ended = error
            with self._changed:
                self._is_reading = False
                if ended is not None or self._closing:
                    self.ended = ended
                    self._changed.notify_all()
                    return
            try:
                if not self._take(message):
                    return
            except IsologError as error:
                with self._changed:
                    self.ended = error
                    self._changed.notify_all()
                return
            del message

    def _received(self) -> Said:
        assert self._wire is not None
        try:
            received = self._wire.receive()
        except TRANSPORT_ERRORS as error:
            if isinstance(error, ConnectionLost) and error.code == "SILENT":
                limit = self._settings.death_s
                logger.warning("leader %s gave no sign of life for %g s", self._leader, limit)
            raise failure_of(error, self._address) from error
        if received is None:
            raise BrokerUnavailable(f"broker {self._leader} ended the stream")
        return unpack(received.header, received.body)

    def _take(self, message: Said) -> bool:
        """Does what the leader says; False: this thread is to go."""
        if not self.is_welcome and not isinstance(message, Welcome):
            raise InvalidRequest("a leader says first who it is")
        match message:
            case Frame():
                return self._do(message.slot, partial(self._append, message), message.size)
            case HighWatermarks():
                return self._take_high_watermarks(message.entries)
            case Agreed():
                return self._do(message.slot, partial(self._agree, message))
            case Refused():
                return self._do(message.slot, partial(self._take_refusal, message))
            case Beat():
                self._write(Beat())
                return self._take_high_watermarks(())
            case Welcome():
                self._check(message)
                return True
            case Bye():
                raise BrokerStopping(f"broker {self._leader} is about to stop")
            case Acked() | Follow() | Unfollow() | Room():
                raise InvalidRequest(f"a leader does not say {type(message).__name__}")
            case _:
                assert_never(message)

    def _check(self, welcome: Welcome) -> None:
        self._me.check_answer(self._leader, self._opened.stream, welcome.proof)
        with self._changed:
            self.is_welcome = True
            self._changed.notify_all()

    def _do(self, number: int, work: Callable[[Following], None], size: int = 0) -> bool:
        following = self._slots.get(number)
        if following is None:
            return True  # it has ended, and this was on its way
        guarded = partial(self._guarded, number, following, work)
        return self._workers.do(self, following, guarded, size)

    def _guarded(
        self, number: int, following: Following, work: Callable[[Following], None]
    ) -> None:
        if self._slots.get(number) is not following:
            return
        try:
            work(following)
        except IsologError as error:
            self._fail(following, error)
        except Exception as error:
            logger.exception("a replica of broker %s", self._leader)
            self._fail(following, InternalError(f"{type(error).__name__}: {error}"))

    def _append(self, frame: Frame, following: Following) -> None:
        partition = following.partition
        if frame.leader_epoch != partition.epoch:
            raise InvalidRequest(
                f"entries of leader epoch {frame.leader_epoch} in a session of {partition.epoch}"
            )
        end = partition.append_frame(
            EntryIndex(frame.first), frame.rows, frame.data, EntryIndex(frame.high_watermark)
        )
        following.succeed()
        self._write(Acked(((frame.slot, int(end)),)))

    def _agree(self, agreed: Agreed, following: Following) -> None:
        entry = EntryIndex(agreed.entry)
        reset = None
        if agreed.reset_offset is not None:
            reset = Boundary(entry, Offset(agreed.reset_offset))
        agreement = Agreement(entry, reset, EntryIndex(agreed.high_watermark))
        end = following.partition.agreed(agreement)
        self._write(Acked(((agreed.slot, int(end)),)))

    def _take_high_watermarks(self, told: Pairs) -> bool:
        with self._changed:
            told, self._late = (*self._late, *told), []
        for place, (slot, entry) in enumerate(told):
            if not self._do(slot, partial(_take_high_watermark, EntryIndex(entry))):
                with self._changed:
                    self._late += told[place + 1 :]
                return False
        return True

    def _take_refusal(self, refused: Refused, following: Following) -> None:
        following.partition.refused(refused.error)  # before the next session begins
        with self._changed:
            self._slots.pop(refused.slot, None)
            following.fail(self._clock.monotonic())
            self._lost_session(following)

    def _fail(self, following: Following, error: IsologError) -> None:
        """A session ends because the follower cannot go on; the others do."""
        if following.failure != str(error):
            following.failure = str(error)
            logger.warning("the copy of %s: %s", following.partition.key, error)
        came_damaged = isinstance(error, DamagedEntries)
        self.unfollow(
            following,
            error.details.get("entry") if came_damaged else None,
            refuses_writes=isinstance(error, DiskFull | StorageFailure),
        )
        with self._changed:
            following.fail(self._clock.monotonic())
            self._lost_session(following)

    # -- the writing side ------------------------------------------------------------------------

    def _write(self, message: Said) -> None:
        assert not isinstance(message, Frame)
        assert self._wire is not None
        try:
            self._wire.send(message.pack(), timeout_s=self._settings.death_s)
        except (*TRANSPORT_ERRORS, StreamOver):
            self._wire.cancel()  # whoever reads meets the end


def _take_high_watermark(entry: EntryIndex, following: Following) -> None:
    following.partition.take_high_watermark(entry)
