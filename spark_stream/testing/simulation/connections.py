"""Connections between the brokers of a simulated run, which may break, and are slow.

What runs on them is what ships: ``protocol.Connection`` at both ends, the streams of
``transport.streams``, and the streams of replication with their shells (``broker.replication``).
This module stands for sockets, the loop and the pool: bytes arrive in their order, split anywhere,
late, or not at all; a thread may be slow. A connection is lost as a whole.

**After a break.** Neither end knows at once that a connection is broken, and some of what had
arrived may still be handled, late. Where a split only holds bytes up, the ends find out by silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol, TypeVar, cast

from spark_stream.broker.replication.background import Background, Work
from spark_stream.broker.replication.lines import Happened, ReplicationLine, limits
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.errors import BrokerUnavailable
from spark_stream.protocol import Bytes, Connection, Event, Lost, Ready, StreamOpened
from spark_stream.testing.simulation.network import Network
from spark_stream.testing.simulation.schedule import NOW, Body, Schedule, Signal
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.streams import Stream, Streams
from spark_stream.wire.methods import REPLICATE

T = TypeVar("T")

_SLOW: Final = 0.05  # how often what has arrived is handled late
_BUSY: Final = 0.1  # how often work has to wait for a thread
_LATE_S: Final = 3.0  # so late may either be
_SPLIT: Final = 0.3  # how often what has arrived is handed on in parts
_DROPPED: Final = 0.3  # how often what has arrived is lost with its connection
_REFUSED_S: Final = 0.1
_LOOKS_S: Final = 0.5


class Surface(Protocol):
    """A broker as others reach it."""

    broker_id: str
    connections: dict[SimulatedConnection, None]

    @property
    def owner(self) -> str:
        """Who owns its tasks."""

    @property
    def serves(self) -> bool:
        """Whether it takes calls."""

    def serve(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a stream."""


class Threads:
    """The threads of one process: work is an event of its own, and sometimes late."""

    def __init__(self, schedule: Schedule, chance: Random, owner: str) -> None:
        self.schedule = schedule
        self.chance = chance
        self.owner = owner
        self.background = Background(self.submit, self.call_later)

    def submit(self, work: Work) -> bool:
        """Have a thread of the pool do it."""
        self.schedule.start("work", self._do(work), self.owner)
        return True

    def call_later(self, delay_s: float, work: Work) -> None:
        """Have the loop do it."""
        self.schedule.start("timer", self._wait(delay_s, work), self.owner)

    def dawdle(self) -> Body:
        """A thread is slow."""
        yield self.chance.random() * self.chance.choice((0.0, 0.0, 0.1, _LATE_S))

    def _do(self, work: Work) -> Body:
        if self.chance.random() < _BUSY:
            yield self.chance.random() * self.chance.choice((0.1, _LATE_S))
        work()

    def _wait(self, delay_s: float, work: Work) -> Body:
        yield delay_s
        work()


class _End:
    """One end of a connection: what ``SocketChannel`` is over a socket."""

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
        """Receive from now on."""
        schedule, owner = self._threads.schedule, self._threads.owner
        schedule.start(f"{self.name} receives", self._receive(), owner)
        schedule.start(f"{self.name} ticks", self._tick(), owner)
        self._flush()

    @property
    def channel(self) -> SocketChannel:
        """As its streams know it."""
        return cast(SocketChannel, self)

    def command(self, act: Callable[[Connection], T]) -> T:
        """As ``SocketChannel.command``."""
        result = act(self._connection)
        self._flush()
        return result

    def command_soon(self, act: Callable[[Connection], None]) -> None:
        """As ``SocketChannel.command_soon``."""
        self._threads.submit(lambda: self.command(act))

    def close(self) -> None:
        """Close the connection; the other end learns of it behind what was sent."""
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
                events = self._connection.filled(count, clock.monotonic())
            self._hand_on(events)
            yield NOW

    def _tick(self) -> Body:
        while self._connection.lost is None:
            yield self._connection.tick_s
            self._hand_on(self._connection.tick(self._threads.schedule.clock.monotonic()))


class SimulatedConnection:
    """A connection of a follower to its leader."""

    def __init__(self, network: Network, follower: Surface, leader: Surface) -> None:
        self._network = network
        self._brokers = follower, leader
        self._ends: list[_End] = []
        self.is_held = False
        """Whether nothing arrives, and neither end is told."""
        for each in self._brokers:
            each.connections[self] = None
        network.connections[self] = follower.broker_id, leader.broker_id

    def join(self, one: _End, other: _End) -> None:
        """Let bytes go from now on."""
        one.other, other.other = other, one
        self._ends = [one, other]
        for each in self._ends:
            each.begin()

    def break_off(self) -> None:
        """What is on its way may be lost."""
        for each in self._ends:
            each.cut()

    def carry(self, receiver: str) -> Body:
        """Bytes are on their way to one end."""
        yield from self._network.carry(self, receiver)

    def forget(self, name: str) -> None:
        """One end has ended."""
        for each in self._brokers:
            if each.broker_id == name:
                each.connections.pop(self, None)
        self._network.connections.pop(self, None)


class _SimulatedLine:
    """A line to a leader (``broker.replication.lines``)."""

    def __init__(self, opening: bytes, happened: Happened) -> None:
        self._opening = opening
        self._happened = happened
        self._end: _End | None = None
        self._stream: Stream | None = None
        self._is_over = False

    def joined(self, end: _End) -> None:
        """There is a connection."""
        self._end = end
        if self._is_over:
            end.close()

    def handle(self, end: _End, event: Event) -> None:
        """Take an event of the connection."""
        if isinstance(event, Ready) and not self._is_over:
            number = end.command(
                lambda core: core.open(REPLICATE, b"", self._opening) if core.is_ready else None
            )
            if number is None:
                return  # it was lost with the same bytes
            self._stream = end.streams.add(end.channel, number)
            self._stream.handle = lambda found: self._happened(self, found)
        elif isinstance(event, Lost) and self._stream is None:
            self.fail(event.message)
        else:
            end.streams.dispatch(event)

    def fail(self, why: str) -> None:
        """There is no connection."""
        if not self._is_over:
            self._happened(self, BrokerUnavailable(why))

    def send(self, header: Bytes) -> bool:
        assert self._stream is not None
        return self._stream.send(header)

    def consumed(self, size: int) -> None:
        assert self._stream is not None
        self._stream.consumed(size)

    def end(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.cancel()
        if self._end is not None:
            self._end.close()


def _serve(leader: Surface, end: _End, event: Event) -> None:
    if isinstance(event, StreamOpened):
        leader.serve(event, end.streams.add(end.channel, event.stream))
    else:
        end.streams.dispatch(event)


class SimulatedLines:
    """Opens lines from one broker to others."""

    def __init__(
        self,
        me: Surface,
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

    def call(self, address: str, opening: bytes, happened: Happened) -> ReplicationLine:
        """Open a line; the address is the broker's id."""
        line = _SimulatedLine(opening, happened)
        name = f"{self._me.broker_id} calls {address}"
        self._threads.schedule.start(name, self._connect(line, address), self._threads.owner)
        return line

    def _connect(self, line: _SimulatedLine, address: str) -> Body:
        yield NOW
        leader = self._brokers.get(address)
        reached = self._network.connects(self._me.broker_id, address)
        if leader is None or not leader.serves or not reached:
            yield _REFUSED_S
            line.fail(f"broker {address} does not answer")
            return
        whole = SimulatedConnection(self._network, self._me, leader)
        schedule, chance = self._threads.schedule, self._threads.chance
        ends = []
        for is_client, here, there, threads in (
            (True, self._me, leader, self._threads),
            (False, leader, self._me, Threads(schedule, chance, leader.owner)),
        ):
            connection = Connection(
                is_client=is_client,
                greeting=b"",
                now=schedule.clock.monotonic(),
                limits=limits(self._settings),
            )
            handle = line.handle if is_client else _served_by(leader)
            ends.append(_End(whole, threads, here.broker_id, there.broker_id, connection, handle))
        whole.join(*ends)
        line.joined(ends[0])


def _served_by(leader: Surface) -> Callable[[_End, Event], None]:
    return lambda end, event: _serve(leader, end, event)
