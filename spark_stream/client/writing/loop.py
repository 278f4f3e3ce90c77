"""The producer's loop: it carries out the instructions of the core, and reports events to it.

A producer has no thread. Instructions are carried out without a lock, by one thread at a time, in
their order. Other threads leave their instructions to that thread. Instructions do not block: calls
that wait for a broker (to connect, to find leaders, to get a producer id) run on the few threads of
``connecting.threads``. The process's loop delivers acknowledgements, and wakes the core.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVarTuple

import pyarrow as pa
from msgspec import Struct, structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import BrokerLink, SharedChannel
from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.threads import call_elsewhere
from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.core import (
    AllSettled,
    BreakStream,
    DoubtRoute,
    EndStream,
    FindLeaders,
    GetIdentity,
    Instruction,
    OpenStream,
    Outcome,
    ProducerCore,
    SendBatch,
    SettleBatch,
    TopicChanged,
    WakeAt,
)
from spark_stream.client.writing.lanes import Outgoing, ProducerIdentity
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import (
    BrokerUnavailable,
    InternalError,
    InvalidRequest,
    IsologError,
    ReentrantCall,
)
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes, Credited, Received, StreamOver
from spark_stream.transport.channel import ChannelWaits, SocketChannel
from spark_stream.transport.client import client_loop
from spark_stream.transport.lifetime import Lock, new_lock
from spark_stream.transport.loop import Loop, Timer
from spark_stream.transport.streams import TRANSPORT_ERRORS, Handle, Stream, StreamEvent, error_of
from spark_stream.wire.messages import APPEND
from spark_stream.wire.stream_messages import Ack, AppendTo, Envelope, ack_from_bytes
from spark_stream.wire.topic_messages import TopicDescription
from spark_stream.wire.transaction_messages import NewProducer

logger = logger_of(__name__)

Ts = TypeVarTuple("Ts")

_CALL_S: Final = 5.0  # then the next call runs, and the core retries


class Settings(Struct, frozen=True):
    """The settings of a :class:`~spark_stream.client.writing.producer.Producer`."""

    isolation: Isolation
    linger_s: float
    batch_bytes: int
    buffer_bytes: int
    timeout_ms: int


class ProducerLoop:
    """The shell of one producer's core. ``lock`` guards the core. The caller uses it too.

    ``finished`` is called when all batches are settled after a
    :meth:`~spark_stream.client.writing.core.ProducerCore.close`.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        settings: Settings,
        lock: Lock,
        finished: Callable[[], None],
        answers: ChannelWaits,
    ) -> None:
        self._connection = connection
        self._answers = answers
        self._call_s = min(_CALL_S, connection.timeout_s)
        self._topics = topics
        self._settings = settings
        self._lock = lock
        self._finished = finished
        self.core = ProducerCore(settings.timeout_ms / 1000, connection.timeout_s)
        self._streams: dict[int, AppendStream] = {}
        self._timer: Timer | None = None
        self._carrying_out = False
        self._is_abandoned = False
        self.recovered: BaseException | None = None
        """The last exception that interrupted an instruction, which is then retried."""
        self.used_io_loop: Loop | None = None
        """The process's loop. None until its first use."""

    @property
    def io_loop(self) -> Loop:
        """The process's loop."""
        found = self.used_io_loop
        if found is None:
            found = self.used_io_loop = client_loop()
        return found

    def event(self, tell: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Call a method of the core for an event, and carry out the instructions that follow."""
        core = self.core
        if self._is_abandoned:
            return
        with self._lock:
            tell(*arguments)
            outcomes: tuple[Outcome, ...] = ()
            if core.outcomes:
                outcomes = tuple(core.outcomes)
                core.outcomes.clear()
        for outcome in outcomes:
            try:
                self._report(outcome)
            except Exception:  # of one batch: the others are settled too
                logger.exception(
                    "the result of a batch or the change of a topic was not passed on: %r", outcome
                )
        if core.out:
            self.carry_out()

    def _report(self, outcome: Outcome) -> None:
        match outcome:
            case SettleBatch():
                outcome.batch.settle_all(outcome.settlement)
            case TopicChanged(partitions=None):
                self._topics.drop(outcome.topic.name)
            case TopicChanged(topic=topic, partitions=int() as count):
                self._topics.drop_if_grown(topic, count)
            case AllSettled():
                self._finished()

    def carry_out(self) -> None:
        """Carry out the core's instructions, unless another thread does so already."""
        core = self.core
        while core.out and not self._is_abandoned:
            with self._lock:
                if self._carrying_out or not core.out:
                    return
                self._carrying_out = True
                instruction: Instruction | None = core.out.popleft()
            while instruction is not None:
                try:
                    self._do(instruction)
                except ReentrantCall:  # the caller has interrupted a call of the connection
                    with self._lock:
                        core.out.appendleft(instruction)
                        self._carrying_out = False
                    self.io_loop.call_soon(self.carry_out)
                    return
                except BaseException as error:
                    stream = None
                    with self._lock:
                        if isinstance(instruction, SendBatch):
                            stream = self._streams.pop(instruction.stream, None)
                        self._undo(instruction, error)
                        self._carrying_out = False
                    if stream is not None:
                        stream.break_off()
                    if isinstance(error, Exception):
                        logger.exception("cannot carry out an instruction: %r", instruction)
                        break
                    self.io_loop.call_soon(self.carry_out)  # the caller was interrupted
                    self.recovered = error
                    raise
                with self._lock:
                    instruction = core.out.popleft() if core.out else None
                    self._carrying_out = instruction is not None

    def abandon(self) -> None:
        """Cancel all streams, and ignore later instructions."""
        self._is_abandoned = True
        streams = list(self._streams.values())
        self._streams.clear()
        for each in streams:
            each.break_off()

    def _undo(self, instruction: Instruction, error: BaseException) -> None:
        """Report a failed instruction to the core, which retries it. The caller holds the lock."""
        failure, now = InternalError(f"{type(error).__name__}: {error}"), time.monotonic()
        match instruction:
            case SendBatch() | OpenStream():
                self.core.stream_lost(instruction.stream, failure, now)
            case FindLeaders():
                self.core.leaders_failed(instruction.topic.id, failure, now)
            case GetIdentity():
                self.core.identity_failed(failure, now)
            case _:
                pass

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case SendBatch():
                stream = self._streams.get(instruction.stream)
                if stream is not None:
                    envelope = Envelope(
                        number=instruction.number,
                        partition=instruction.batch.partition,
                        stamp=instruction.stamp,
                        leader_epoch=instruction.leader_epoch,
                    )
                    stream.send(envelope.to_bytes(), instruction.batch)
                    self._answers.channel = stream.channel
            case WakeAt():
                if self._timer is not None:
                    self._timer.cancel()
                delay_s = max(0.0, instruction.at - time.monotonic())
                self._timer = self.io_loop.call_later(delay_s, self._tick)
            case OpenStream():
                self._open_stream(instruction)
            case FindLeaders():
                if not self._pass_known_leaders(instruction):
                    self._call(self._find_leaders, instruction)
            case GetIdentity():
                self._call(self._get_identity)
            case DoubtRoute():
                self._topics.router.on_failed(instruction.route, instruction.error)
            case EndStream():
                stream = self._streams.pop(instruction.stream, None)
                if stream is not None:
                    stream.end()
            case BreakStream():
                stream = self._streams.pop(instruction.stream, None)
                if stream is not None:
                    stream.break_off()

    def _tick(self) -> None:
        self.event(self.core.tick, time.monotonic())

    # -- streams --------------------------------------------------------------------------------

    def _open_stream(self, instruction: OpenStream) -> None:
        try:
            link = self._topics.router.link(instruction.route)
            shared = link.present()
        except IsologError as error:
            self._lose(instruction.stream, error)
            return
        if shared is not None:
            self._start(instruction, shared)
        else:
            call_elsewhere(("connect", link.address), self._connect, instruction, link)

    def _connect(self, instruction: OpenStream, link: BrokerLink) -> None:
        try:
            shared = link.connect(self._call_s)
        except IsologError as error:
            self._lose(instruction.stream, error)
        else:
            self._start(instruction, shared)

    def _start(self, instruction: OpenStream, shared: SharedChannel) -> None:
        number, topic = instruction.stream, instruction.topic
        request = AppendTo(
            topic=topic.name,
            topic_id=topic.id,
            transactional_id=instruction.transactional_id,
            isolation=self._settings.isolation,
            timeout_ms=self._settings.timeout_ms,
        )
        stream = AppendStream(number, shared, self._on_answer, self._lose)
        try:
            stream.start(topic, request)
        except IsologError as error:
            self._lose(number, error)
            return
        with self._lock:
            if self.core.has_stream(number):
                self._streams[number] = stream
                self.core.stream_opened(number, time.monotonic())
        if number not in self._streams:
            stream.break_off()
        self.carry_out()

    def _on_answer(self, stream: int, ack: Ack) -> None:
        self.event(self.core.on_acknowledged, stream, ack, time.monotonic())

    def _lose(self, stream: int, error: IsologError) -> None:
        self._streams.pop(stream, None)
        self.event(self.core.stream_lost, stream, error, time.monotonic())

    # -- calls that may wait for a broker -------------------------------------------------------

    def _call(self, call: Callable[[*Ts], None], *arguments: *Ts) -> None:
        call_elsewhere(("ask", id(self._connection)), call, *arguments)

    def _check_wanted(self) -> None:
        """Raise BrokerUnavailable if no batch waits for the answer any more."""
        if not self.core.unsettled:
            raise BrokerUnavailable("no broker was called: no batch is waiting any more")

    def _routes(self, instruction: FindLeaders) -> dict[int, Route | None]:
        known, topic = self._topics.router.known, instruction.topic
        return {each: known(topic.name, topic.id, each) for each in instruction.partitions}

    def _pass_known_leaders(self, instruction: FindLeaders) -> bool:
        """Pass the leaders to the core if all are cached. Return whether they are."""
        routes = self._routes(instruction)
        if None in routes.values():
            return False
        self.event(self.core.leaders_found, instruction.topic.id, routes, time.monotonic())
        return True

    def _find_leaders(self, instruction: FindLeaders) -> None:
        topic = instruction.topic
        try:
            if self._pass_known_leaders(instruction):  # another producer has looked them up
                return
            self._check_wanted()
            self._topics.router.refresh(topic.name, topic.id, self._call_s)
            routes = self._routes(instruction)
        except Exception as error:
            self.event(self.core.leaders_failed, topic.id, _failure(error), time.monotonic())
        else:
            self.event(self.core.leaders_found, topic.id, routes, time.monotonic())

    def _get_identity(self) -> None:
        try:
            self._check_wanted()
            self._connection.connect(self._call_s)  # fails fast if no broker answers
            facts = self._connection.call(NewProducer(), self._call_s)
            identity = ProducerIdentity(facts.producer_id, facts.epoch)
        except Exception as error:
            self.event(self.core.identity_failed, _failure(error), time.monotonic())
        else:
            self.event(self.core.on_identified, identity, time.monotonic())


def _failure(error: Exception) -> IsologError:
    return error if isinstance(error, IsologError) else InternalError(repr(error))


# The leader gives up a batch this much earlier than the client, so that its answer, which has the
# offsets, arrives in time. It is at most 1 / _ANSWER_PART of the timeout.
_ANSWER_MS: Final = 1000
_ANSWER_PART: Final = 5
_CREDIT_BYTES: Final = 8 << 10  # much less than a stream may have in flight


class AppendStream:
    """A stream of appends to one topic. Call :meth:`start` first.

    ``answered`` and ``ended`` are called with its ``number`` on the loop's thread, or on one that
    waits for an answer, and must not block. ``ended`` is not called for a stream that this side
    ended or cancelled. Any thread may send, without a wait.
    """

    def __init__(
        self,
        number: int,
        shared: SharedChannel,
        answered: Callable[[int, Ack], None],
        ended: Callable[[int, IsologError], None],
    ) -> None:
        self._number = number
        self._shared = shared  # this reference keeps the connection open
        self._answered = answered
        self._ended = ended
        self._lock = new_lock()
        self._unsent: deque[tuple[bytes, Outgoing]] = deque()  # waiting for credit
        self._first: memoryview | None = None  # the first of them, serialized
        self._is_over = False
        self._taken = 0  # bytes of answers whose credit is not returned yet
        self._stream: Stream | None = None
        self._schema: pa.Schema | None = None  # of all batches

    def start(self, topic: TopicDescription, request: AppendTo) -> None:
        """Open the stream without waiting for the broker. Call this once, before other methods.

        Raises:
            BrokerUnavailable, RequestTimeout: The connection cannot open a new stream now.
        """
        channel, header = self._shared.channel, _as_sent(request).to_bytes()
        self._schema = topic.schema
        try:
            body = memoryview(topic.schema.serialize())
            self._stream = channel.open_with(self._begin, APPEND, header, body)
        except TRANSPORT_ERRORS as error:
            raise self._shared.failure_of(error) from None

    @property
    def channel(self) -> SocketChannel:
        """The connection of the stream."""
        assert self._stream is not None
        return self._stream.channel

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        stream.handles_anywhere = True
        return self._handle

    def send(self, envelope: bytes, batch: Outgoing) -> None:
        """Send a batch when there is credit for it. Drop it if the stream has ended.

        Raises:
            InternalError: The batch has another schema than the stream. The broker cannot detect
                it, and would store other values.
        """
        if not batch.batch.schema.equals(self._schema):
            columns = ", ".join(batch.batch.schema.names)
            raise InternalError(f"a batch ({columns}) has another schema than its stream")
        with self._lock:
            if self._unsent or not self._send(envelope, batch):
                self._unsent.append((envelope, batch))

    def _send(self, envelope: bytes, batch: Outgoing) -> bool:
        assert self._stream is not None
        body, self._first = self._first or memoryview(batch.whole().serialize()), None
        with suppress(StreamOver):  # its end is reported separately
            if not self._stream.send(envelope, body):
                self._first = body
                return False
        return True

    def end(self) -> None:
        """End the stream. Send and report nothing more."""
        assert self._stream is not None
        self._is_over = True
        with suppress(StreamOver):
            self._stream.send(b"", end=True)

    def break_off(self) -> None:
        """Cancel the stream. Report nothing more."""
        assert self._stream is not None
        self._is_over = True
        self._stream.cancel()

    # -- on the loop's thread, or on one that waits for an answer ---------------------------------

    def _handle(self, event: StreamEvent) -> None:
        assert self._stream is not None
        match event:
            case Received():
                if event.header:
                    self._take(event.header)
                    self._taken += event.size
                    if self._taken >= _CREDIT_BYTES:
                        self._stream.grant_credit(self._taken)
                        self._taken = 0
                if event.end:
                    self._stream.cancel()  # unless this side has ended it
                    self._over(BrokerUnavailable("the broker ended the stream"))
            case Credited():
                with self._lock:
                    while self._unsent and self._send(*self._unsent[0]):
                        self._unsent.popleft()
            case _:
                lost = error_of(event, self._shared.channel.address)
                self._over(self._shared.failure_of(lost))

    def _take(self, answer: Bytes) -> None:
        try:
            ack = ack_from_bytes(bytes(answer))
        except InvalidRequest as error:
            where = self._shared.channel.address
            assert self._stream is not None
            self._stream.cancel()
            self._over(InternalError(f"invalid answer from broker {where}: {error.message}"))
        else:
            if not self._is_over:
                self._answered(self._number, ack)

    def _over(self, reason: IsologError) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(self._number, reason)


def _as_sent(request: AppendTo) -> AppendTo:
    """Return the request with the leader's timeout, which is shorter than the client's."""
    whole = request.timeout_ms
    return structs.replace(
        request, timeout_ms=max(1, whole - min(_ANSWER_MS, whole // _ANSWER_PART))
    )
