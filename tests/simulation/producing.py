"""A producer of a run: the production core, streams and connections, and a shell.

``client.writing.core`` decides. ``client.writing.appending`` carries batches over streams of a
``protocol.Connection``. This stands for ``client.writing.loop``, with tasks for its threads. All
clients of a run are one process: they share one connection to each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from msgspec import Struct

from isolog.errors import BrokerUnavailable, IsologError, UnknownOutcome
from spark_stream.client.connecting.link import SharedChannel
from spark_stream.client.connecting.routes import Route, Routes
from spark_stream.client.writing.core import (
    AllSettled,
    BreakStream,
    DoubtRoute,
    EndStream,
    FindLeaders,
    GetIdentity,
    Instruction,
    OpenStream,
    ProducerCore,
    SendBatch,
    SettleBatch,
    TopicChanged,
    WakeAt,
)
from spark_stream.client.writing.lanes import (
    Outgoing,
    ProducerIdentity,
    Settlement,
    Unacknowledged,
    settlement_of,
)
from spark_stream.client.writing.loop import AppendStream
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from spark_stream.protocol import ConnectionLimits
from spark_stream.transport.streams import failure_of
from spark_stream.wire.stream_messages import Ack, AppendTo, BatchRefused, Envelope
from spark_stream.wire.topic_messages import TopicDescription
from tests.simulation.broker import SCHEMA
from tests.simulation.connections import (
    SimulatedChannel,
    SimulatedConnection,
    Threads,
    connect,
)
from tests.simulation.history import Part
from tests.simulation.network import CALL_S, CLIENTS, NoAnswer
from tests.simulation.schedule import Body, Signal

if TYPE_CHECKING:
    from tests.simulation.clients.asking import Session
    from tests.simulation.world import World

_BEAT_S: Final = 2.0
_DEATH_S: Final = 6.0
_IDLE_S: Final = 1.0
_CREDITS: Final = (600, 4_000, 1 << 20)
_TIMES_S: Final = (3.0, 3.0, 12.0)


class ClientProcess:
    """The process of all clients."""

    broker_id = CLIENTS
    owner = ""

    def __init__(self, world: World) -> None:
        self.connections: dict[SimulatedConnection, None] = {}
        self._world = world
        self._chance = world.form.chance("client threads")
        self._channels: dict[str, _Shared] = {}
        self._producers = 0

    def next_number(self) -> int:
        """Return the number of the next producer."""
        self._producers += 1
        return self._producers

    def use_channel(
        self,
        address: str,
        ready: Callable[[SimulatedChannel], None],
        failed: Callable[[IsologError], None],
    ) -> Callable[[], None]:
        """Call ``ready`` with a connection to a broker, or ``failed``.

        Return what ends the use of it.
        """
        shared = self._channels.get(address)
        if shared is None:
            shared = self._channels[address] = self._connect(address)
        shared.users += 1
        if shared.channel.is_ready:
            ready(shared.channel)
        else:
            shared.waiting.append((ready, failed))
        return partial(self._release, shared)

    def _release(self, shared: _Shared) -> None:
        shared.users -= 1
        if not shared.users:
            self._world.schedule.start("idle connection", self._close_if_idle(shared))

    def _close_if_idle(self, shared: _Shared) -> Body:
        yield _IDLE_S
        if not shared.users:
            self._forget(shared)
            shared.channel.close()

    def _forget(self, shared: _Shared) -> None:
        if self._channels.get(shared.channel.address) is shared:
            del self._channels[shared.channel.address]

    def _connect(self, address: str) -> _Shared:
        def ready(channel: SimulatedChannel) -> None:
            waiting, shared.waiting = shared.waiting, []
            for begin, _ in waiting:
                begin(channel)

        def ended(why: str) -> None:
            self._forget(shared)
            waiting, shared.waiting = shared.waiting, []
            for _, fail in waiting:
                fail(BrokerUnavailable(why))

        world = self._world
        shared = _Shared(SimulatedChannel(address, ready, ended), [])
        here = ConnectionLimits(heartbeat_s=_BEAT_S, silence_s=_DEATH_S)
        there = ConnectionLimits(
            credit=self._chance.choice(_CREDITS), heartbeat_s=_BEAT_S, silence_s=_DEATH_S
        )
        threads = Threads(world.schedule, self._chance, self.owner)
        broker = world.broker(address)
        body = connect(shared.channel, self, broker, world.network, threads, here, there)
        world.schedule.start(f"clients call {address}", body, self.owner)
        return shared


_Waiting = tuple[Callable[[SimulatedChannel], None], Callable[[IsologError], None]]


class _Shared(Struct, eq=False):
    """A connection, and how many streams use it."""

    channel: SimulatedChannel
    waiting: list[_Waiting]
    users: int = 0


class BatchFate:
    """The outcome of a batch."""

    def __init__(self, session: Session) -> None:
        self.settlement: Settlement | None = None
        self.settled = Signal(session.world.schedule)

    def settle(self, settlement: Settlement) -> None:
        assert self.settlement is None, f"settled twice: {self.settlement}, {settlement}"
        self.settlement = settlement
        self.settled.give()


class SimulatedProducer:
    """A producer with its core. ``identity``: a body that gets an identity, or raises."""

    def __init__(
        self,
        session: Session,
        identity: Callable[[], Body] | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        self._session = session
        self._world = session.world
        self.number = session.world.clients.next_number()
        self._identity = identity
        self._isolation = isolation
        self._timeout_s: float = session.chance.choice(_TIMES_S)
        self.core = ProducerCore(self._timeout_s, CALL_S)
        self._routes: dict[str, Routes] = {}
        self._streams: dict[int, AppendStream] = {}
        self._uses: dict[int, Callable[[], None]] = {}
        self._timer = 0
        self._is_at_work = False
        self.part: Part | None = None
        """The transaction and the producer id that it writes as."""

    def submit(self, topic: Topic, partition: int, values: Sequence[int]) -> BatchFate:
        """Hand the core a batch."""
        batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
        written = BatchFate(self._session)
        known = description_of(topic.name, topic.id)

        def tell(core: ProducerCore, now: float) -> None:
            core.topic(known, now)
            core.submit(topic.id, batch, partition, written.settle, now)

        self.event(tell)
        return written

    def event(self, tell: Callable[[ProducerCore, float], None]) -> None:
        """As ``ProducerLoop.event``."""
        core = self.core
        tell(core, self._world.clock.monotonic())
        while core.outcomes:
            match core.outcomes.popleft():
                case SettleBatch(batch=batch, settlement=settlement):
                    batch.settle_all(settlement)
                case TopicChanged() | AllSettled():
                    pass
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            while core.out:
                self._do(core.out.popleft())
        finally:
            self._is_at_work = False

    def write_as(
        self, producer_id: int, epoch: int, transaction: int, transactional_id: str
    ) -> None:
        """Begin to write in a transaction."""
        self.part = (transaction, producer_id)
        self.core.write_as(ProducerIdentity(producer_id, epoch, transaction), transactional_id)

    def close(self) -> None:
        """End once everything is settled."""
        self.event(lambda core, _: core.close())

    def _do(self, instruction: Instruction) -> None:
        start, name = self._world.schedule.start, self._session.name
        match instruction:
            case SendBatch(batch=batch):
                stream = self._streams.get(instruction.stream)
                if stream is not None:
                    envelope = Envelope(
                        number=instruction.number,
                        partition=batch.partition,
                        stamp=instruction.stamp,
                        leader_epoch=instruction.leader_epoch,
                    )
                    stream.send(envelope.to_bytes(), batch)
            case WakeAt():
                self._timer += 1
                start(f"{name}'s timer", self._wake(self._timer, instruction.at))
            case OpenStream():
                self._open(instruction)
            case FindLeaders():
                start(f"{name} asks for leaders", self._ask_leaders(instruction))
            case GetIdentity():
                start(f"{name} asks for an identity", self._ask_identity())
            case DoubtRoute(route=route):
                self._routes[route.topic_id].on_failed(route)
            case EndStream() | BreakStream():
                stream = self._streams.pop(instruction.stream, None)
                if stream is not None and isinstance(instruction, EndStream):
                    stream.end()
                elif stream is not None:
                    stream.break_off()
                self._release(instruction.stream)

    def _wake(self, number: int, at: float) -> Body:
        yield max(0.0, at - self._world.clock.monotonic())
        if number == self._timer:
            self.event(lambda core, now: core.tick(now))

    def _open(self, asked: OpenStream) -> None:
        lose = partial(self._lose, asked.stream)
        use = self._world.clients.use_channel
        self._uses[asked.stream] = lambda: None
        end = use(asked.route.address, partial(self._start, asked), lose)
        if asked.stream in self._uses:
            self._uses[asked.stream] = end
        else:
            end()

    def _start(self, asked: OpenStream, channel: SimulatedChannel) -> None:
        number = asked.stream
        if not self.core.has_stream(number):
            return
        stream = AppendStream(
            number, cast(SharedChannel, _Holder(channel)), self._answered, self._lose
        )
        request = AppendTo(
            topic=asked.topic.name,
            topic_id=asked.topic.id,
            transactional_id=asked.transactional_id,
            isolation=self._isolation,
            timeout_ms=int(self._timeout_s * 1000),
        )
        try:
            stream.start(asked.topic, request)
        except IsologError as error:
            self._lose(number, error)
            return
        self._streams[number] = stream
        self.event(lambda core, now: core.stream_opened(number, now))

    def _answered(self, stream: int, ack: Ack) -> None:
        self.event(lambda core, now: core.on_acknowledged(stream, ack, now))

    def _lose(self, stream: int, error: IsologError) -> None:
        self._streams.pop(stream, None)
        self._release(stream)
        self.event(lambda core, now: core.stream_lost(stream, error, now))

    def _release(self, stream: int) -> None:
        end = self._uses.pop(stream, None)
        if end is not None:
            end()

    def _ask_leaders(self, asked: FindLeaders) -> Body:
        topic, session = asked.topic, self._session
        routes = self._routes.setdefault(topic.id, Routes(topic.name, topic.id))
        if any(routes.get(each) is None for each in asked.partitions):
            find = methodcaller("find_leaders", topic.name, topic.id)
            what = f"leaders of {topic.name}"
            try:
                found = yield from session.call(session.any_broker(), what, find)
            except (IsologError, NoAnswer) as error:
                failure = error if isinstance(error, IsologError) else BrokerUnavailable(str(error))
                self.event(lambda core, now: core.leaders_failed(topic.id, failure, now))
                return
            for facts in found:
                routes.record_leader(facts)
        known = {each: routes.get(each) for each in asked.partitions}
        self.event(lambda core, now: core.leaders_found(topic.id, known, now))

    def _ask_identity(self) -> Body:
        assert self._identity is not None
        try:
            identity: ProducerIdentity = yield from self._identity()
        except (IsologError, NoAnswer) as error:
            failure = error if isinstance(error, IsologError) else BrokerUnavailable(str(error))
            self.event(lambda core, now: core.identity_failed(failure, now))
            return
        self.event(lambda core, now: core.on_identified(identity, now))


class _Holder:
    """As ``SharedChannel``."""

    def __init__(self, channel: SimulatedChannel) -> None:
        self.channel = channel

    def failure_of(self, error: Exception) -> IsologError:
        return failure_of(error, "")


def send_once(
    session: Session, route: Route, request: AppendTo, values: Sequence[int], written: BatchFate
) -> None:
    """Send a batch without a stamp, as a client does that has no producer id."""
    world, ends = session.world, list[Callable[[], None]]()

    def over(settlement: Settlement) -> None:
        if written.settlement is None:
            written.settle(settlement)
            for each in ends:
                each()

    def fail(error: IsologError) -> None:
        over(Unacknowledged(UnknownOutcome(f"{list(values)}: {error.message}")))

    def start(channel: SimulatedChannel) -> None:
        batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
        sent = Outgoing(batch, route.partition, 0.0, over)

        def answered(_: int, ack: Ack) -> None:
            error = ack.error if isinstance(ack, BatchRefused) else None
            over(settlement_of(route.topic, sent, ack, error))

        def ended(_: int, error: IsologError) -> None:
            fail(error)

        stream = AppendStream(0, cast(SharedChannel, _Holder(channel)), answered, ended)
        try:
            stream.start(description_of(route.topic, route.topic_id), request)
        except IsologError as error:
            over(Unacknowledged(error))
            return
        envelope = Envelope(partition=route.partition, leader_epoch=route.epoch)
        stream.send(envelope.to_bytes(), sent)

    ends.append(world.clients.use_channel(route.address, start, lambda e: over(Unacknowledged(e))))
    if written.settlement is not None:
        ends[0]()
    world.schedule.start("patience", _give_up(fail))


def _give_up(fail: Callable[[IsologError], None]) -> Body:
    yield CALL_S
    fail(BrokerUnavailable("no answer"))


def description_of(topic: str, topic_id: str) -> TopicDescription:
    """Return a topic as a producer has it. No actor uses partitions that are added later."""
    return TopicDescription(name=topic, id=topic_id, schema=SCHEMA, config={}, partitions=())
