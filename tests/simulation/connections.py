"""Connections between the processes of a simulated run, which may break, and are slow.

They run the production code: ``protocol.Connection`` at both ends, the streams of
``transport.streams``, and the streams of replication with their shells (``broker.replication``).
This module stands for sockets, the loop and the pool: bytes arrive in their order, split anywhere,
late, or not at all. A thread may be slow. A connection is lost as a whole.

**After a break.** Neither end detects a broken connection immediately, and some messages that had
arrived may still be handled, late. Where a split only delays bytes, the ends detect it by silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar, cast

from isolog.errors import BrokerUnavailable
from spark_stream.broker.replication.interfaces import Background, Ts
from spark_stream.broker.replication.lines import OnEvent, ReplicationLine, limits
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.protocol import (
    Bytes,
    Connection,
    ConnectionLimits,
    Ending,
    Event,
    Lost,
    Ready,
    StreamOpened,
    StreamOver,
)
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    ConnectionLost,
    Handle,
    Stream,
    Streams,
    failure_of,
)
from tests.simulation.network import Network
from tests.simulation.schedule import NOW, Body, Schedule, Signal

T = TypeVar("T")

_SLOW: Final = 0.05  # the share of messages that are handled late
_BUSY: Final = 0.1  # how often work has to wait for a thread
_LATE_S: Final = 3.0  # so late may either be
_SPLIT: Final = 0.3  # the share of bytes that are passed on in parts
_DROPPED: Final = 0.3  # the share of messages that are lost with their connection
_REFUSED_S: Final = 0.1
_LOOKS_S: Final = 0.5


class Process(Protocol):
    """A process with connections."""

    broker_id: str
    connections: dict[SimulatedConnection, None]

    @property
    def owner(self) -> str:
        """The owner of its tasks."""


class Surface(Process, Protocol):
    """A broker as others reach it."""

    @property
    def serves(self) -> bool:
        """Whether it takes calls."""

    def serve(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a stream."""


class Threads:
    """The threads of one process: work is a separate event, and sometimes late."""

    def __init__(self, schedule: Schedule, chance: Random, owner: str) -> None:
        self.schedule = schedule
        self.chance = chance
        self.owner = owner
        self.background = Background(self.submit, self.submit, self.call_later)

    def submit(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Have a thread of the pool call it."""
        self.schedule.start("work", self._do(partial(function, *args)), self.owner)
        return True

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Have the loop do it."""
        self.schedule.start("timer", self._wait(delay_s, work), self.owner)

    def dawdle(self) -> Body:
        """A thread is slow."""
        yield self.chance.random() * self.chance.choice((0.0, 0.0, 0.1, _LATE_S))

    def _do(self, work: Callable[[], None]) -> Body:
        if self.chance.random() < _BUSY:
            yield self.chance.random() * self.chance.choice((0.1, _LATE_S))
        work()

    def _wait(self, delay_s: float, work: Callable[[], None]) -> Body:
        yield delay_s
        work()


class _End:
    """One end of a connection, in place of a ``SocketChannel`` over a socket."""

    is_clogged = False

    def __init__(
        self,
        whole: SimulatedConnection,
        threads: Threads,
        name: str,
        peer: str,
        connection: Connection,
        handle: Callable[[_End, Event], None],
    ) -> None:
        self.streams = Streams(peer)
        self.name = name
        self._whole = whole
        self._threads = threads
        self._connection = connection
        self._handle = handle
        self._arrived = bytearray()
        self._news: Signal | None = None
        self._is_cut = self._is_closed = False
        self.other: _End

    def begin(self) -> None:
        """Begin to receive."""
        schedule, owner = self._threads.schedule, self._threads.owner
        schedule.start(f"{self.name} receives", self._receive(), owner)
        schedule.start(f"{self.name} ticks", self._tick(), owner)
        self._flush()

    @property
    def channel(self) -> SocketChannel:
        """The connection of its streams."""
        return cast(SocketChannel, self)

    @property
    def version(self) -> int:
        """As ``SocketChannel.version``."""
        return self._connection.version

    def command(self, act: Callable[[Connection, *Ts], T], *args: *Ts, more: bool = False) -> T:
        """As ``SocketChannel.command``."""
        result = act(self._connection, *args)
        if not more:
            self._flush()
        return result

    def command_soon(self, act: Callable[[Connection, *Ts], None], *args: *Ts) -> None:
        """As ``SocketChannel.command_soon``."""
        self._threads.submit(partial(self.command, act, *args))

    def close(self) -> None:
        """Close the connection. The other end receives that after the sent bytes."""
        self._threads.submit(lambda: self._lose("the connection was closed"))

    def arrive(self, data: Bytes) -> None:
        """Take bytes that the other end has sent."""
        self._arrived += data
        self._wake()

    def cut(self) -> None:
        """The connection is broken."""
        self._is_cut = True
        self._wake()

    def end_arrivals(self) -> None:
        """The other end has closed the connection."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.give()

    def _flush(self) -> None:
        for part in self._connection.output():
            self.other.arrive(part)

    def _lose(self, why: str) -> None:
        self._hand_on(self._connection.closed_by_peer(why))

    def _hand_on(self, events: list[Event]) -> None:
        self._flush()
        for event in events:
            if isinstance(event, Lost):
                self.other.end_arrivals()
                self._whole.forget(self.name)
            self._handle(self, event)

    def _receive(self) -> Body:
        chance, clock = self._threads.chance, self._threads.schedule.clock
        while self._connection.lost is None:
            if not self._arrived and not self._is_cut and not self._is_closed:
                self._news = Signal(self._threads.schedule)
                yield self._news
                continue
            if not self._arrived or (self._is_cut and chance.random() < _DROPPED):
                yield from self._threads.dawdle()
                self._lose("the connection broke")
                return
            if self._is_cut or chance.random() < _SLOW:
                yield from self._threads.dawdle()
            while self._whole.is_held and not self._is_cut:
                yield _LOOKS_S
            yield from self._whole.carry(self.name)
            count = len(self._arrived)
            if chance.random() < _SPLIT:
                count = chance.randint(1, count)
            target = self._connection.target
            if target is not None:
                count = min(count, target.nbytes)
            data = bytes(self._arrived[:count])
            del self._arrived[:count]
            if target is None:
                events = self._connection.receive(data, clock.monotonic())
            else:
                target[:count] = data
                events = self._connection.on_filled(count, clock.monotonic())
            while self._connection.has_more:
                events += self._connection.receive(b"", clock.monotonic())
            self._hand_on(events)
            yield NOW

    def _tick(self) -> Body:
        while self._connection.lost is None:
            yield self._connection.tick_s
            self._hand_on(self._connection.tick(self._threads.schedule.clock.monotonic()))


class SimulatedConnection:
    """A connection of a client or a follower to a broker."""

    def __init__(self, network: Network, client: Process, broker: Process) -> None:
        self._network = network
        self._processes = client, broker
        self._ends: list[_End] = []
        self.is_held = False
        """Whether bytes are dropped without a signal to either end."""
        for each in self._processes:
            each.connections[self] = None
        network.connections[self] = client.broker_id, broker.broker_id

    def join(self, one: _End, other: _End) -> None:
        """Stop holding bytes up."""
        one.other, other.other = other, one
        self._ends = [one, other]
        for each in self._ends:
            each.begin()

    def break_off(self) -> None:
        """Bytes under way may be lost."""
        for each in self._ends:
            each.cut()

    def carry(self, receiver: str) -> Body:
        """Bytes are on their way to one end."""
        yield from self._network.carry(self, receiver)

    def forget(self, name: str) -> None:
        """One end has ended."""
        for each in self._processes:
            if each.broker_id == name:
                each.connections.pop(self, None)
        self._network.connections.pop(self, None)


class SimulatedChannel:
    """A client's connection, in place of a ``ClientChannel`` over a socket. No method waits.

    ``ready`` is called once it takes streams, ``ended`` with the reason when it ends, or when it
    cannot be made.
    """

    def __init__(
        self,
        address: str,
        ready: Callable[[SimulatedChannel], None],
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.address = address
        self.is_ready = False
        self._ready = ready
        self._ended = ended
        self._end: _End | None = None
        self._is_closed = False

    def open_with(
        self,
        begin: Callable[[Stream], Handle],
        method: str,
        header: bytes,
        body: Bytes = b"",
        *,
        end: bool = False,
    ) -> Stream:
        """As ``ClientChannel.open_with``."""
        here = self._end
        assert here is not None

        def act(core: Connection) -> Stream | None:
            number = core.open(method, header, body, end=end)
            if number is None:
                return None
            stream = here.streams.add(here.channel, number)
            stream.handle = begin(stream)
            return stream

        try:
            stream = here.command(act)
        except StreamOver:
            raise ConnectionLost("CLOSED", f"the connection to {self.address} is over") from None
        if stream is None:
            raise TimeoutError
        return stream

    def close(self) -> None:
        """As ``ClientChannel.close``."""
        self._is_closed = True
        if self._end is not None:
            self._end.close()

    def joined(self, end: _End) -> None:
        """There is a connection."""
        self._end = end
        if self._is_closed:
            end.close()

    def fail(self, why: str) -> None:
        """There is no connection."""
        self._ended(why)

    def handle(self, end: _End, event: Event) -> None:
        """Take an event of the connection."""
        if isinstance(event, Ready):
            self.is_ready = True
            self._ready(self)
            return
        end.streams.dispatch(event)
        if isinstance(event, Ending | Lost):
            self.is_ready = False
        if isinstance(event, Lost):
            self._ended(event.message)


def _serve(broker: Surface, end: _End, event: Event) -> None:
    if isinstance(event, StreamOpened):
        broker.serve(event, end.streams.add(end.channel, event.stream))
    else:
        end.streams.dispatch(event)


def connect(
    channel: SimulatedChannel,
    me: Process,
    broker: Surface | None,
    network: Network,
    threads: Threads,
    limits_here: ConnectionLimits,
    limits_there: ConnectionLimits,
) -> Body:
    """A body that connects ``channel``, a connection of ``me`` to a broker."""
    yield NOW
    address = channel.address
    if broker is None or not broker.serves or not network.connects(me.broker_id, address):
        yield _REFUSED_S
        channel.fail(f"broker {address} does not answer")
        return
    whole, schedule = SimulatedConnection(network, me, broker), threads.schedule
    there = Threads(schedule, threads.chance, broker.owner)
    now = schedule.clock.monotonic()
    client = Connection(is_client=True, greeting=b"", now=now, limits=limits_here)
    server = Connection(is_client=False, greeting=b"", now=now, limits=limits_there)
    served: Callable[[_End, Event], None] = partial(_serve, broker)
    ends = (
        _End(whole, threads, me.broker_id, broker.broker_id, client, channel.handle),
        _End(whole, there, broker.broker_id, me.broker_id, server, served),
    )
    whole.join(*ends)
    channel.joined(ends[0])


class SimulatedLines:
    """Opens lines from one broker to others."""

    def __init__(
        self,
        me: Process,
        threads: Threads,
        settings: ReplicationSettings,
        brokers: Mapping[str, Surface],
        network: Network,
    ) -> None:
        self._me = me
        self._threads = threads
        self._settings = settings
        self._brokers = brokers
        self._network = network

    def call(self, address: str, opening: bytes, on_event: OnEvent) -> ReplicationLine:
        """Open a line. The address is the broker's id."""
        line = ReplicationLine(opening, on_event)

        def ready(channel: SimulatedChannel) -> None:
            try:
                line.open(channel)
            except TRANSPORT_ERRORS as error:  # it was lost with the same bytes
                line.fail(failure_of(error, address))

        def ended(why: str) -> None:
            if not line.is_open:
                line.fail(BrokerUnavailable(why))

        channel, allowed = SimulatedChannel(address, ready, ended), limits(self._settings)
        broker, threads = self._brokers.get(address), self._threads
        body = connect(channel, self._me, broker, self._network, threads, allowed, allowed)
        threads.schedule.start(f"{self._me.broker_id} calls {address}", body, threads.owner)
        return line
