"""A stream of batches to one topic, each with its acknowledgement (``append_core`` has the rules).

It has no thread. Its frames arrive on the loop's thread. A pool for appends takes one after the
other: it decodes a frame, appends its batch if no wait is needed, and sends the acknowledgement. A
batch that waits for its replication is acknowledged by the thread that handles the follower's
report. No send blocks on a client.

A client that waits for each acknowledgement sends one frame at a time. After a few of them the
appending thread lingers: it reads the connection in place of the loop for a moment, so the next
append needs no other thread. It gives the connection back to the loop before each append. So a slow
disk or a held partition delays no other stream, not even of the same client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.partition.waiters import WakeUp
from spark_stream.broker.scripting.coordinator import StreamJoins, TransactionCoordinator
from spark_stream.broker.serving.append_batch import Append, AttemptResult, StreamFacts, group_joins
from spark_stream.broker.serving.append_core import AppendStreamCore, BatchPlace
from spark_stream.broker.serving.memory import memory_errors
from spark_stream.broker.serving.pool import DeferredWork, Pool
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.environment import Clock
from spark_stream.errors import InternalError, InvalidRequest, IsologError, SchemaMismatch
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes
from spark_stream.schema.evolution import evolves
from spark_stream.schema.schemas import check_texts, mismatch
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.loop import Loop, Timer
from spark_stream.wire.stream_messages import AppendTo, Envelope

logger = logger_of(__name__)

_DEFERRED_WORK: Final = DeferredWork()
LINGER_S: Final = 0.01
"""The wait of an appending thread for the next frame of its stream."""
_LONE_MIN: Final = 4
"""The frames in a row that came one at a time, before an appending thread lingers."""
_SERVED_BYTES_MAX: Final = 64 << 10
"""The most bytes, without compression, of a batch that its thread sends to few readers itself."""
WOKEN_HERE_MAX: Final = 4
"""The most reads that an appending thread wakes itself. Another thread wakes more.

After a small append it also serves these few, because a change of threads costs more.
"""
_TURN_BATCHES: Final = 64
"""The batches of one stream in a row, before other streams use the thread."""


class AppendFrame(Struct, frozen=True):
    """A received batch with its envelope. ``size`` is its share of the stream's credit."""

    envelope: Bytes
    batch: Bytes | pa.RecordBatch
    size: int = 0


class AppendClient(Protocol):
    """The client's end of a stream. No method blocks on the client."""

    def send(self, header: Bytes, /, *, end: bool = False) -> bool:
        """Send an answer, or the end. Return False if there is no credit for it."""

    def grant_credit(self, size: int, /) -> None:
        """Grant the client credit for more bytes."""

    def fail(self, error: IsologError, /) -> None:
        """End the stream with an error."""


Opening: TypeAlias = Callable[[], tuple[AppendTo, pa.Schema]]
"""Returns the client's request, and the schema of its batches."""


class AppendStreams(Struct, frozen=True):
    """The shared context of a broker's streams of appends."""

    host: Host
    transactions: TransactionCoordinator
    pool: Pool
    wake: Callable[[tuple[WakeUp, ...]], None]
    loop: Loop
    clock: Clock
    memory_bytes: int


class AppendStream:
    """One stream of appends. ``over`` is called once, at its end.

    ``partition`` is the partition of batches without an envelope. ``start`` makes another thread
    call :meth:`work`. By default a thread of the pool does it. ``channel`` is the connection on
    which these threads may linger, and whose readers may get records before an acknowledgement.
    """

    def __init__(
        self,
        streams: AppendStreams,
        client: AppendClient,
        opening: Opening,
        over: Callable[[], None],
        partition: int | None = None,
        start: Callable[[], object] | None = None,
        channel: SocketChannel | None = None,
    ) -> None:
        self._streams = streams
        self._client = client
        self._opening = opening
        self._over = over
        self._partition = partition
        self._start_elsewhere = start
        self._channel = channel
        self._lone = 0  # frames that came one at a time, by the appending thread
        self._facts: StreamFacts
        self._hosted: HostedTopic
        self._schema: pa.Schema
        self._lock = threading.Lock()  # guards the fields below
        self._core: AppendStreamCore[AppendFrame, Append] = AppendStreamCore()
        self._is_lingering = False  # the appending thread, without a frame
        self._has_frame = False  # that thread, or it is about to wake with one
        self._is_gone = False  # the client
        self._is_over = False
        self._timer: Timer | None = None
        self._timer_at: float | None = None

    @property
    def failure(self) -> IsologError | None:
        """The error with which the stream ends early, or None."""
        return self._core.failure

    # -- from the client, on any one thread --------------------------------------------------------

    def take(self, frame: AppendFrame) -> None:
        """Queue a frame. Its batch is appended in its turn."""
        with self._lock:
            self._core.receive(frame)
            self._advance()

    def end(self) -> None:
        """Record that the client sends no more frames."""
        with self._lock:
            self._core.end()
            self._advance()

    def leave(self) -> None:
        """Record that the client has disconnected. The batches that it has sent are appended."""
        with self._lock:
            self._is_gone = True
            self._core.end()
            self._advance()

    def refuse(self, error: IsologError) -> None:
        """Refuse further frames, and end the stream with this error."""
        with self._lock:
            self._core.fail(error)
            self._advance()

    def take_credit(self) -> None:
        """Resume sending answers, because the client has granted credit."""
        with self._lock:
            self._advance()

    # -- with the lock -----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Send answers, take frames within the limits, and end the stream if all is done."""
        core = self._core
        if core.outbox:
            self._send_answers()
        if core.begin_taking():
            self._start()
        if core.is_over and not self._is_over:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            try:
                if core.failure is not None:
                    self._client.fail(core.failure)
                elif not self._is_gone:
                    self._client.send(b"", end=True)
            except Exception:
                logger.debug("the client has disconnected", exc_info=True)
            self._over()

    def _start(self) -> None:
        """Make a thread call :meth:`work`, or the lingering one take the frame."""
        if self._is_lingering:
            assert self._channel is not None
            self._is_lingering, self._has_frame = False, True
            self._channel.wake()
        elif self._start_elsewhere is None:
            self._streams.pool.submit(self.work)
        else:
            self._start_elsewhere()

    def _send_answers(self) -> None:
        outbox = self._core.outbox
        while outbox:
            try:
                if not self._is_gone and not self._client.send(outbox[0]):
                    return
            except Exception:  # an event is about to report the end
                self._is_gone = True
            self._core.on_sent()

    def _set_timer(self) -> None:
        at = self._core.next_deadline()
        if at is None or (self._timer_at is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        pause_s = max(0.0, at - self._streams.clock.monotonic())
        self._timer = self._streams.loop.call_later(pause_s, self._end_late)

    def _end_late(self) -> None:
        """Answer batches whose timeouts have passed, on the loop's thread."""
        submit = self._streams.pool.submit
        with self._lock:
            self._timer = self._timer_at = None
            for place in self._core.expire(self._streams.clock.monotonic()):
                if place.work.pending is not None:
                    submit(self._finish, place)
                else:
                    submit(self._append_queue, place.partition)
            self._set_timer()

    # -- on a thread of the pool -------------------------------------------------------------------

    def work(self) -> None:
        """Append the batches of received frames, one after the other. Then linger for more."""
        self._append_frames()
        while self._lone >= _LONE_MIN and self._linger():
            self._append_frames()

    def _linger(self) -> bool:
        """Read the connection for a moment. Return whether a frame came for this thread."""
        if self._channel is None:
            return False
        with self._lock:
            if self._core.is_taking or self._is_lingering or self._is_over:
                return False  # another thread appends, or waits for a frame
            self._is_lingering, self._has_frame = True, False
        self._streams.pool.linger(
            partial(self._channel.read_until, lambda: self._has_frame, LINGER_S)
        )
        with self._lock:
            self._is_lingering = False
            if not self._has_frame:
                self._lone = 0
            return self._has_frame

    def _append_frames(self) -> None:
        try:
            if not hasattr(self, "_facts"):
                self._open()
            for number in range(_TURN_BATCHES):
                with self._lock:
                    frame = self._core.next_frame()
                    if frame is None:
                        self._lone = self._lone + 1 if number == 1 else 0
                        self._advance()  # a frame may have arrived, or this was the last one
                        return
                if frame.size:
                    self._client.grant_credit(frame.size)
                self._try(self._begin(frame))
        except Exception as error:
            if not isinstance(error, IsologError):
                logger.exception("a stream of appends failed")
                error = InternalError(f"append: {type(error).__name__}: {error}")
            with self._lock:
                self._lone = 0
                self._core.fail(error)
                self._core.next_frame()
                self._advance()
        else:
            self._lone = 0
            self._start()

    def _open(self) -> None:
        """Check the request of the stream.

        Raises:
            UnknownTopic, SchemaMismatch, InvalidRequest: the stream is refused as a whole.
        """
        streams = self._streams
        request, self._schema = self._opening()
        check_texts(self._schema)
        if request.isolation not in PRODUCER_LEVELS:
            raise InvalidRequest(
                f"the isolation of a producer must be {' | '.join(PRODUCER_LEVELS)}, not"
                f" {request.isolation}"
            )
        self._hosted = streams.host.topic(request.topic, request.topic_id)
        _check_fits(streams.host, self._hosted, self._schema)
        self._facts = StreamFacts(
            request,
            streams.clock,
            StreamJoins(streams.transactions.decisions, request.transactional_id),
            streams.host.counts,
        )

    def _begin(self, frame: AppendFrame) -> BatchPlace[Append]:
        """Decode a frame. Return the place of its batch.

        Raises:
            IsologError: the frame is invalid, or the topic was deleted. The stream ends.
        """
        if frame.envelope:
            envelope = Envelope.from_bytes(bytes(frame.envelope))
        elif self._partition is not None:
            envelope = Envelope(partition=self._partition)
        else:
            raise InvalidRequest(
                "a batch has no partition; name it in the path, or in the batch's app_metadata"
            )
        batch = frame.batch
        if not isinstance(batch, pa.RecordBatch):
            with memory_errors(self._streams.memory_bytes):
                try:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema)
                except pa.ArrowMemoryError:
                    raise
                except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                    raise InvalidRequest(f"the stream is not valid Arrow IPC: {error}") from None
        topic = self._hosted.topic
        # The topic may have been altered.
        self._hosted = self._streams.host.topic(topic.name, topic.id)
        append = Append(self._facts, self._hosted, envelope, batch)
        with self._lock:
            return self._core.add(envelope.partition, append, append.deadline)

    def _try(self, place: BatchPlace[Append]) -> None:
        """Append a batch, or queue it if it must wait.

        Cold partitions have queues too, so that each waits for the disk separately.
        """
        append = place.work
        with self._lock:
            waits = self._core.has_queue(place.partition)
        joins = append.to_join is not None
        if not (waits or joins or append.is_cold) and self._attempt(place):
            return
        submit = self._streams.pool.submit
        with self._lock:
            if not self._core.queue(place, append.size):
                return
            if not joins:
                submit(self._append_queue, place.partition)
            elif self._core.join(place):
                submit(self._join_all)

    def _attempt(self, place: BatchPlace[Append]) -> bool:
        """Try to append a batch. Return False if another thread holds its partition."""
        append, run = place.work, self._streams.transactions.run
        holding: SocketChannel | None = None
        try:
            with _DEFERRED_WORK:  # afterwards it sends frames to followers and few readers
                tried = append.prepare()
                # An answered batch is not kept.
                is_small = append.prepared_bytes <= _SERVED_BYTES_MAX
                if tried is AttemptResult.UNJOINED:
                    tried = run(append.join())
                if tried is AttemptResult.READY:
                    tried = append.take()
                if tried is AttemptResult.REFUSED:
                    tried = run(append.explain())
                woken = append.take_woken()
                if tried is AttemptResult.ANSWERED:
                    holding = self._shared_channel(woken) if is_small else None
                    if holding is None:
                        self._answer(place)
                    else:
                        holding.hold()
                if is_small:
                    self._streams.wake(woken)
            if holding is not None:
                self._answer(place)
        finally:
            if holding is not None:
                holding.release()
        if not is_small:
            self._streams.wake(woken)
        if append.pending is not None:
            with self._lock:
                self._core.wait(place)
                self._set_timer()
            append.pending.when_settled(self._settle, place)
        return tried is not AttemptResult.HELD

    def _shared_channel(self, woken: Sequence[WakeUp]) -> SocketChannel | None:
        """Return the connection if this thread is about to send records to a reader on it.

        Then the acknowledgement follows these records in the same packet. In the other order, the
        client's thread with the acknowledgement would delay the one with the records.
        """
        if self._channel is None or len(woken) > WOKEN_HERE_MAX:
            return None
        is_shared = any(getattr(each, "channel", None) is self._channel for each in woken)
        return self._channel if is_shared else None

    def _append_queue(self, partition: int) -> None:
        """Append the batches of a queue, until it is empty or its partition is held."""
        with self._lock:
            place: BatchPlace[Append] | None = self._core.first(partition)
        while place is not None:
            if not self._attempt(place):
                with self._lock:
                    wait = self._core.hold(place)
                    self._set_timer()
                place.work.held.appends.notify_when_free(self._resume, partition, wait)
                return
            with self._lock:
                place = self._core.pop_first(place)
                self._advance()

    def _join_all(self) -> None:
        """Join group after group. Append their batches, or queue them if that fails."""
        while True:
            with self._lock:
                group = self._core.next_group()
                if not group:
                    self._advance()
                    return
            self._join([each.work for each in group])
            for place in group:
                if self._attempt(place):
                    with self._lock:
                        is_last = self._core.pop_first(place) is None
                        self._advance()
                    if is_last:
                        continue
                self._streams.pool.submit(self._append_queue, place.partition)

    def _join(self, batches: Sequence[Append]) -> None:
        """Join the partitions of these batches to their transactions. Never raise.

        If a partition could not join, the append of its batch reports the reason.
        """
        for stamp, partitions in group_joins(batches):
            try:
                self._streams.transactions.run(self._facts.joins.join_together(partitions, stamp))
            except IsologError:
                pass
            except Exception:
                logger.exception(
                    "joining %d partitions to transaction %d failed",
                    len(partitions),
                    stamp.transaction,
                )

    def _finish(self, place: BatchPlace[Append]) -> None:
        """Answer a batch that is settled, or whose timeout has passed. Never block."""
        place.work.finish()
        self._answer(place)

    # -- from any thread, without a partition's lock -----------------------------------------------

    def _settle(self, place: BatchPlace[Append]) -> None:
        with self._lock:
            if not self._core.settle(place):
                return
        self._finish(place)

    def _resume(self, partition: int, wait: int) -> None:
        with self._lock:
            if self._core.resume(partition, wait):
                self._streams.pool.submit(self._append_queue, partition)

    def _answer(self, place: BatchPlace[Append]) -> None:
        with self._lock:
            self._core.answer(place, place.work.answer)
            self._advance()


def _check_fits(host: Host, hosted: HostedTopic, schema: pa.Schema) -> None:
    """Check that a stream's schema is the topic's, or can be evolved to it.

    A client may write with an earlier schema of the topic, or with a newer one that this broker has
    not read yet.

    Raises:
        SchemaMismatch: the schema does not fit.
    """
    if _misfit(hosted.topic, schema) is not None:
        host.refresh()
        wrong = _misfit(host.topic(hosted.topic.name, hosted.topic.id).topic, schema)
        if wrong is not None:
            raise wrong


def _misfit(topic: Topic, schema: pa.Schema) -> SchemaMismatch | None:
    wrong = mismatch(topic.schema, schema)
    if wrong is None or not topic.earlier:
        return wrong
    # Batches are inspected for nulls in required columns, so nullability is ignored here.
    taken = pa.schema([each.with_nullable(True) for each in topic.schema])
    return None if evolves(schema, taken) else wrong
