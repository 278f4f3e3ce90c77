"""The follower's end of one stream of replication, from its connection to its end.

Two calls over one connection: a DoGet brings what the leader says, a DoPut takes to it what the
follower says. One thread at a time reads the first. Each touch of the second holds a lock, and none
comes after its close (``docs/decisions/0018-one-thread-touches-the-writing-side.md``). Nobody reads
the DoPut's answers, for there are none. The end of the connection frees a call that is stuck.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, assert_never

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.replication.following import Following, Workers
from spark_stream.broker.replication.partitions import Agreement
from spark_stream.broker.replication.settings import ENDING_S, ReplicationSettings
from spark_stream.broker.replication.watch import is_silent
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
from spark_stream.wire.addresses import location
from spark_stream.wire.flight import from_flight
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
    Pairs,
    Refused,
    Room,
    Said,
    Unfollow,
    Welcome,
    unpack,
)
from spark_stream.wire.sockets import connections_to, end_connections

logger = logging.getLogger(__name__)

FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)


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
        self._waiting_since: float | None = None
        self._closing_since: float | None = None
        self._slots: dict[int, Following] = {}
        self._numbers = itertools.count()
        self._late: list[tuple[int, int]] = []  # high watermarks that a reader left to the next
        self._writing = threading.Lock()
        self._is_closed = True
        self._reader: Any = None  # pyarrow has no types; None: not open yet
        self._writer: Any = None
        self._opened = OpenReplication(
            stream=uuid.uuid4().hex,
            follower=me.broker_id,
            proof=me.call_proof(leader, endpoint.incarnation),
            pid=os.getpid(),
            window_bytes=window_bytes,
        )

    def connect(self) -> None:
        """Opens the stream, and begins to read.

        Raises:
            FlightError, ArrowException, OSError: that failed. It does so in time if somebody looks
                (:meth:`look`).
        """
        command = self._opened.to_command()
        client = _client(self._address, self._settings.death_s)
        self._waiting_since = self._clock.monotonic()
        self._reader = client.do_get(fl.Ticket(command))
        descriptor = fl.FlightDescriptor.for_command(command)
        self._writer, _ = client.do_put(descriptor, BODY)
        self._waiting_since = None
        self._is_closed = False
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
        """Lets another thread read where one is stuck; ends the connection of a dead leader."""
        if self._workers.replaces_reader(self, now):
            logger.warning("a partition that follows broker %s is slow", self._leader)
            self._start_reading()
            return
        closing = self._closing_since
        if closing is not None and now - closing > ENDING_S:
            self.break_off()
            return
        since = self._waiting_since
        limit = self._settings.death_s
        if since is None or now - since < limit:
            return
        if is_silent(connections_to(self._address), limit):
            logger.warning("leader %s gave no sign of life for %g s", self._leader, limit)
            self.break_off()

    def break_off(self) -> None:
        """Ends the connection: who reads or writes gets an error."""
        end_connections(self._address)

    def close(self) -> None:
        """Ends the stream, whatever its state is. Nothing touches it any more after that.

        Takes ``ENDING_S`` and a beat at most if somebody looks.
        """
        with self._changed:
            self._closing = True
            for following in self._slots.values():
                following.slot = None
            self._slots.clear()
        self._closing_since = self._clock.monotonic()
        if self._reader is not None:
            self._reader.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reading)
        with self._writing:
            self._is_closed = True
            if self._writer is not None:
                with suppress(*FLIGHT_ERRORS):
                    self._writer.close()

    # -- what the leader says --------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            with self._changed:
                if self._closing or self.ended is not None:
                    return
                self._is_reading = True
                self._waiting_since = self._clock.monotonic()
            ended: IsologError | None = None
            chunk: Any = None
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                ended = BrokerUnavailable(f"broker {self._leader} ended the stream")
            except FLIGHT_ERRORS as error:
                ended = from_flight(error, self._address)
            try:
                if ended is None and not self._closing:
                    message = unpack(chunk.app_metadata, chunk.data)
            except IsologError as error:
                ended = error
            chunk = None
            with self._changed:
                self._waiting_since = None
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
        packed = message.pack()
        with self._writing:
            if self._is_closed:
                return
            try:
                self._writer.write_metadata(packed)
            except FLIGHT_ERRORS:
                self._is_closed = True
                self._reader.cancel()  # whoever reads meets the end


def _take_high_watermark(entry: EntryIndex, following: Following) -> None:
    following.partition.take_high_watermark(entry)


def _client(address: str, connecting_s: float) -> fl.FlightClient:
    """A client with a connection of its own, which it has to have in time."""
    return fl.FlightClient(
        location(address),
        generic_options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", int(connecting_s * 1000)),
        ],
    )
