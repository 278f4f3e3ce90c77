"""The shell of the leader's end of a replication stream (``leader_core`` has the rules).

It has no thread. The follower's messages are handled on the loop's thread. A pool does the slow
steps (to start a session, to read entries), one at a time and in order. A thread that has appended
sends the new entries itself, unless another step is running.

A session is never called under the stream's lock, because notifications arrive under the
partition's lock and then take the stream's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from spark_stream.broker.replication.interfaces import LeadPartitions, ReplicationContext
from spark_stream.broker.replication.leader_core import (
    STREAM_END,
    Call,
    LeaderStreamCore,
    Sent,
    Slot,
    Step,
)
from spark_stream.broker.replication.settings import (
    ENDING_S,
    STEPS_AFTER_APPEND,
    STEPS_AT_ONCE,
)
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InternalError,
    InvalidRequest,
    IsologError,
)
from spark_stream.loggers import logger_of
from spark_stream.protocol import VERSION, Credited, Received, StreamOver
from spark_stream.transport.streams import Stream, StreamEvent, error_bytes
from spark_stream.wire.replication_messages import (
    PROMISES_SINCE,
    Follow,
    OpenReplication,
    Welcome,
    unpack,
)

logger = logger_of(__name__)


class LeaderStream:
    """One follower's stream. At its end, ``ended`` and then ``over`` are called once."""

    def __init__(
        self,
        context: ReplicationContext,
        opened: OpenReplication,
        welcome: Welcome,
        stream: Stream,
        partitions: LeadPartitions,
        ended: Callable[[LeaderStream], None],
        promise_s: Callable[[], float | None] | None,
        over: Callable[[], None] | None = None,
    ) -> None:
        self.follower = BrokerId(opened.follower)
        self._stream = stream
        self._partitions = partitions
        self._settings = settings = context.settings
        self._clock = clock = context.clock
        self._background = context.background
        self._ended = ended
        self._promise_s = promise_s if stream.version >= PROMISES_SINCE else None
        self._on_over = over
        self._lock = threading.Lock()  # guards the fields below
        self._core = LeaderStreamCore(opened.window_bytes, welcome, settings, clock.monotonic())
        self._held: Sent | None = None  # a frame that waits for credit
        self._is_stepping = False  # or about to
        self._has_timer = False
        self._over = False
        stream.handle = self._handle

    def begin(self) -> None:
        """Welcome the follower, on the loop's thread."""
        with self._lock:
            self._wake()
        self._background.call_later(self._core.tick_s, self._tick)

    @property
    def unacked_bytes(self) -> int:
        """The bytes in flight, or not yet appended."""
        return self._core.unacked_bytes

    def stop(self) -> None:
        """Send the last message. The follower then ends the stream."""
        with self._lock:
            self._core.end()
            self._wake()

    def end(self, error: IsologError | None = None) -> None:
        """End the stream now. Send the error to the follower if it is still connected."""
        with self._lock:
            if self._over:
                return
            self._over, self._held = True, None
            calls = self._core.close()
        if error is not None:
            self._stream.fail(error_bytes(error))
        self._run_calls(calls)
        self._ended(self)
        if self._on_over is not None:
            self._on_over()

    # -- on the loop's thread --------------------------------------------------------------------

    def _handle(self, event: StreamEvent) -> None:
        if isinstance(event, Credited):
            with self._lock:
                self._wake()
        elif isinstance(event, Received) and not event.end:
            self._stream.grant_credit(event.size)
            try:
                self._take(event)
            except IsologError as error:
                self.end(error)
            except Exception as error:
                logger.exception("a message of follower %s could not be handled", self.follower)
                self.end(InternalError(f"{type(error).__name__}: {error}"))
        else:
            self.end()

    def _take(self, event: Received) -> None:
        message = unpack(event.header, event.body)
        with self._lock:
            if self._over:
                return
            calls = self._core.take(message, self._clock.monotonic())
            self._wake()
        self._run_calls(calls)

    def _tick(self) -> None:
        with self._lock:
            if self._over:
                return
            promise_s = None if self._promise_s is None else self._promise_s()
            try:
                self._core.tick(self._clock.monotonic(), promise_s)
            except BrokerUnavailable as error:
                silent = BrokerUnavailable(f"follower {self.follower} {error.message}")
            else:
                self._wake()
                self._background.call_later(self._core.tick_s, self._tick)
                return
        logger.warning("replication stream ended: %s", silent.message)
        self.end(silent)

    def _report_high_watermarks(self) -> None:
        with self._lock:
            self._has_timer = False
            self._wake()

    # -- from any thread -------------------------------------------------------------------------

    def _on_change(self, number: int, is_urgent: bool) -> None:
        with self._lock:
            self._core.on_change(number, self._clock.monotonic(), is_urgent=is_urgent)
            self._wake(after_append=is_urgent)

    def _wake(self, *, after_append: bool = False) -> None:
        """Start the pending steps, under the lock.

        ``after_append``: the thread that has appended may do the steps itself.
        """
        now = self._clock.monotonic()
        if self._is_stepping or self._over:
            return
        if self._held is not None or self._core.has_step(now):
            if after_append:
                submit_after = self._background.submit_after
                self._is_stepping = submit_after(self._do_steps, STEPS_AFTER_APPEND)
            else:
                self._is_stepping = self._background.submit(self._do_steps)
            return
        report_at = self._core.report_at
        if report_at is not None and not self._has_timer:
            self._has_timer = True
            self._background.call_later(max(0.0, report_at - now), self._report_high_watermarks)

    def _run_calls(self, calls: list[Call]) -> None:
        for method, args in calls:
            try:
                method(*args)
            except Exception:
                logger.exception("a session of follower %s failed", self.follower)

    # -- on the pool's threads, one at a time ----------------------------------------------------

    def _do_steps(self, at_once: int = STEPS_AT_ONCE) -> None:
        try:
            for _ in range(at_once):
                if not self._do_step():
                    return
        except StreamOver:
            return  # an event is about to report the end
        except Exception as error:
            logger.exception("the stream to follower %s failed", self.follower)
            self.end(InternalError(f"{type(error).__name__}: {error}"))
            return
        self._background.submit(self._do_steps)

    def _do_step(self) -> bool:
        """Do one step. Return whether there may be more."""
        with self._lock:
            held, step = self._held, None
            if held is None:
                step = None if self._over else self._core.next_step(self._clock.monotonic())
                if step is None:
                    self._is_stepping = False
                    self._wake()  # sets the timer
                    return False
        return self._send(held) if step is None and held is not None else self._carry_out(step)

    def _carry_out(self, step: Step | None) -> bool:
        match step:
            case bytes():
                return self._send((step, b""))
            case Follow():
                self._start_session(step)
                return True
            case Slot():
                return self._take_turn(step)
            case tuple():
                found = [(slot, slot.session.high_watermark) for slot in step]
                with self._lock:
                    message = self._core.high_watermarks(found)
                return message is None or self._send((message, b""))
            case _:
                assert step is STREAM_END
                self._stream.send(b"", end=True)
                return False

    def _send(self, sent: Sent) -> bool:
        """Send a frame. Without credit for it, keep it and return False."""
        if not self._stream.send(*sent):  # without the lock, because large frames take long
            with self._lock:
                if not self._stream.send(*sent):
                    self._held, self._is_stepping = sent, False
                    return False
        self._held = None
        return True

    def _start_session(self, asked: Follow) -> None:
        number = asked.slot
        try:
            session = self._partitions.start_session(
                self.follower,
                Generation(asked.generation),
                PartitionId(asked.topic_id, asked.partition),
                LeaderEpoch(asked.leader_epoch),
                asked.history,
                partial(self._on_change, number),
            )
        except Exception as error:
            self._refuse(number, error)
            return
        with self._lock:
            is_open = self._core.session_started(number, asked.leader_epoch, session)
        if not is_open:
            session.close()

    def _take_turn(self, slot: Slot) -> bool:
        session = slot.session
        try:
            found = session.read_entries(slot.next, self._settings.frame_bytes)
            high_watermark, end = session.high_watermark, session.end
        except Exception as error:
            self._refuse(slot.number, error)
            return True
        with self._lock:
            sent = self._core.frame(slot, found, high_watermark, end, self._clock.monotonic())
        return sent is None or self._send(sent)

    def _refuse(self, number: int, error: Exception) -> None:
        if not isinstance(error, IsologError):
            logger.error("a session of follower %s failed", self.follower, exc_info=error)
            error = InternalError(f"{type(error).__name__}: {error}")
        with self._lock:
            calls = self._core.refuse(number, error)
        self._run_calls(calls)


class LeaderStreams:
    """The replication streams of a broker's followers. A follower's second one ends its first."""

    def __init__(
        self,
        context: ReplicationContext,
        partitions: LeadPartitions,
        promise_s: Callable[[], float | None] | None = None,
    ) -> None:
        """``promise_s`` returns the time for which followers should promise not to lead."""
        self._context = context
        self._me = context.me
        self._partitions = partitions
        self._promise_s = promise_s
        self._changed = threading.Condition()  # guards the fields below
        self._streams: dict[BrokerId, LeaderStream] = {}
        self._stopped = False

    def serve(
        self,
        opened: OpenReplication,
        stream: Stream,
        over: Callable[[], None] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Serve a follower's stream, on the loop's thread. ``over`` is called at its end.

        ``names`` are the names in the follower's certificate, if it has one.

        Raises:
            Unauthenticated, InvalidRequest, BrokerStopping: the stream was refused.
        """
        self._check(opened, names)
        welcome = Welcome(VERSION, self._me.answer_proof(opened.stream))
        served = LeaderStream(
            self._context,
            opened,
            welcome,
            stream,
            self._partitions,
            self._remove,
            self._promise_s,
            over,
        )
        with self._changed:
            if self._stopped:
                raise BrokerStopping("the broker is about to stop")
            earlier = self._streams.get(served.follower)
            self._streams[served.follower] = served
        if earlier is not None:
            earlier.end(BrokerStopping("the follower has opened another stream"))
        served.begin()

    def stop(self) -> None:
        """End all streams, and refuse new ones."""
        with self._changed:
            self._stopped = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.stop()
        with self._changed:
            self._changed.wait_for(self._has_no_stream, ENDING_S)
        for stream in streams:
            stream.end(BrokerStopping("the broker is about to stop"))

    def _has_no_stream(self) -> bool:
        return not self._streams

    def _remove(self, stream: LeaderStream) -> None:
        with self._changed:
            if self._streams.get(stream.follower) is stream:
                del self._streams[stream.follower]
            self._changed.notify_all()

    def _check(self, opened: OpenReplication, names: Sequence[str]) -> None:
        self._me.check_caller(opened.follower, opened.proof, names)
        if opened.follower == self._me.broker_id:
            raise InvalidRequest(f"broker {opened.follower} cannot follow itself")
        if opened.window_bytes <= 0:
            raise InvalidRequest(f"window_bytes must be at least 1, not {opened.window_bytes}")
