"""A reader of a run: the production core, streams and connections, and a shell.

``client.reading.core`` decides about requests and answers. This module stands for
``client.reading.loop``, with tasks for its threads. At the broker the fetch is the production code.
:func:`watched` passes its answers to the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from isolog.errors import BrokerUnavailable, IsologError, RequestTimeout
from spark_stream.broker.serving.fetching import Answers, AwaitRecords
from spark_stream.client.connecting.routes import Route
from spark_stream.client.reading.core import FetchCore, RangeCore, RangeFetch, RangeMoved, RangeOver
from spark_stream.client.reading.fetching import decoded_rows
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import NO_LINEAGE
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.protocol import Credited, Received
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    Handle,
    Stream,
    StreamEvent,
    error_of,
    failure_of,
)
from spark_stream.wire.messages import FETCH
from spark_stream.wire.stream_messages import ChunkFacts, EndFacts, Fetch, FetchRange, fetch_answer
from tests.simulation.broker import SimulatedBroker
from tests.simulation.connections import SimulatedChannel
from tests.simulation.history import Fetched, Place
from tests.simulation.invariants.base import Looked
from tests.simulation.network import CALL_S, NoAnswer
from tests.simulation.schedule import Body, Signal, Within

if TYPE_CHECKING:
    from tests.simulation.clients.asking import Session
    from tests.simulation.world import World

_PATIENCE_S: Final = 2.0
_AHEAD_BYTES: Final = 1 << 20


class SimulatedReader:
    """A reader of ranges: ``[start, end)``, or all from ``start`` on."""

    def __init__(
        self,
        session: Session,
        wanted: Mapping[Place, tuple[Topic, int, int | None]],
        isolation: Isolation,
    ) -> None:
        self._session = session
        self._world = session.world
        self._isolation = isolation
        self._topics = {place: topic for place, (topic, _, _) in wanted.items()}
        self._ends = {place: end for place, (_, _, end) in wanted.items()}
        self._cores = {
            place: RangeCore(
                start,
                end,
                patience_s=_PATIENCE_S,
                may_use_followers=isolation is not Isolation.READ_UNCOMMITTED,
            )
            for place, (_, start, end) in wanted.items()
        }
        self._core = FetchCore(self._cores, silence_s=CALL_S, ahead_bytes=_AHEAD_BYTES)
        self._got: dict[Place, list[int]] = {place: [] for place in wanted}
        self._left = set(wanted)
        self._calls: dict[int, Stream] = {}
        self._has_ended = False
        self._news = Signal(self._world.schedule)

    def position(self, place: Place) -> int:
        """The position of the reader."""
        return self._cores[place].position

    def go_back(self, place: Place, offset: int) -> None:
        """Read on from an offset, where its records are the leader's."""
        self._got[place].clear()
        self._core.go_back(place, offset, NO_LINEAGE)
        self._left.add(place)

    def go_on(self, place: Place) -> None:
        """Read on after an error."""
        core = self._cores[place]
        self._core.go_back(place, core.position, core.lineage)
        self._left.add(place)

    def read(self, *, once: bool = False) -> Body:
        """Read until all ranges have ended. ``once``: or a call is.

        Raises:
            IsologError: a range cannot be read on.
        """
        core, now = self._core, self._world.clock.monotonic
        self._has_ended = False
        while self._left and not (once and self._has_ended):
            self._news = Signal(self._world.schedule)
            asks = core.next(now())
            try:
                self._take_out()
            finally:
                for ask in asks:
                    self._world.schedule.start(f"{self._session.name} asks", self._ask(ask))
            if not self._left:
                return
            due = core.wake_at()
            yield self._news if due is None else Within(self._news, max(0.0, due - now()))
            for number in core.overdue(now()):
                stream = self._calls.pop(number, None)
                if stream is not None:
                    stream.cancel()
                core.on_lost(number, RequestTimeout("a fetch says nothing"), now())

    def _take_out(self) -> None:
        out, self._core.out[:] = list(self._core.out), []
        for each in out:
            if isinstance(each, RangeMoved) or not self._core.is_current(each.key, each.number):
                continue
            self._left.discard(each.key)
            if isinstance(each, RangeOver) and each.error is not None:
                raise each.error
            end, position = self._ends[each.key], self.position(each.key)
            if end is not None and position < end:
                course = self._world.history.courses[each.key]
                self._world.notice("ended_short", course, position, end)

    def _ask(self, ask: RangeFetch[Place]) -> Body:
        session, topic, at = self._session, self._topics[ask.key], ask.key[1]
        try:
            route: Route = yield from session.route(topic, at)
        except (IsologError, NoAnswer) as error:
            failure = error if isinstance(error, IsologError) else BrokerUnavailable(str(error))
            self._core.on_failed(ask.number, failure, self._world.clock.monotonic())
            self._hear(is_over=True)
            return
        near = session.near(route) if ask.may_use_follower else None
        begun = [ask.number] if near is not None else []
        number = self._core.begin(
            [ask.number], self._world.clock.monotonic(), follower_fetches=begun
        )
        if number is None:
            return
        asked = FetchRange(
            topic=topic.name,
            topic_id=topic.id,
            partition=at,
            start=ask.start,
            end=self._ends[ask.key],
            isolation=self._isolation,
            start_lineage=ask.lineage,
            leader_epoch=route.epoch,
            near=near is not None,
        )
        what = f"reads {topic.name}/{at} from {ask.start} ({self._isolation.value})"
        broker = near or route.leader
        self._world.tell(f"{session.name} {what} at {broker}")
        body = Fetch(ranges=[asked]).to_bytes()
        self._world.asks[body] = tuple(self._got[ask.key])
        call = _AskedFetch(self, number, ask, route, is_near=near is not None)
        use = self._world.clients.use_channel
        call.release = use(near or route.address, partial(call.start, body), call.lose)
        if call.is_over:
            call.release()

    def _hear(self, *, is_over: bool) -> None:
        self._has_ended |= is_over
        self._news.give()


class _AskedFetch:
    """A fetch that is under way."""

    def __init__(
        self,
        reader: SimulatedReader,
        number: int,
        ask: RangeFetch[Place],
        route: Route,
        *,
        is_near: bool,
    ) -> None:
        self._is_near = is_near
        self._reader = reader
        self._number = number
        self._ask = ask
        self._route = route
        self._stream: Stream | None = None
        self._schema: pa.Schema | None = None
        self.release: Callable[[], None] = lambda: None
        self.is_over = False
        self._called = reader._world.history.moment()
        self._position = int(ask.start)
        self._records: list[tuple[int, int]] = []
        self._last: EndFacts | None = None

    def start(self, body: bytes, channel: SimulatedChannel) -> None:
        """Open its stream."""
        try:
            channel.open_with(self._begin, FETCH, b"", body, end=True)
        except TRANSPORT_ERRORS as error:
            self.lose(failure_of(error, channel.address))

    def _begin(self, stream: Stream) -> Handle:
        self._stream = self._reader._calls[self._number] = stream
        return self._handle

    def lose(self, error: IsologError) -> None:
        """Record its loss or its refusal."""
        reader, route = self._reader, self._route
        if not (self._is_near and isinstance(error, BrokerUnavailable | RequestTimeout)):
            reader._session.doubt(route)
        reader._core.on_lost(self._number, error, reader._world.clock.monotonic())
        self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._note()
            self._reader._calls.pop(self._number, None)
            self.release()
            self._reader._hear(is_over=True)

    def _note(self) -> None:
        """Report the client's records to the invariants."""
        last, reader = self._last, self._reader
        if last is None and not self._records:
            return
        read = Fetched(
            reader._session.name,
            self._ask.key,
            reader._isolation,
            self._called,
            int(self._ask.start),
            self._position,
            self._records,
            None if last is None else last.leader_epoch,
            None if last is None else last.bounds,
        )
        reader._world.notice("fetched", read)

    def _handle(self, event: StreamEvent) -> None:
        if isinstance(event, Credited):
            return
        if not isinstance(event, Received):
            self.lose(failure_of(error_of(event, self._route.address), self._route.address))
            return
        if event.header or event.body:
            self._receive(event)
        if event.end:
            self._reader._core.on_ended(self._number)
            self._end()

    def _receive(self, frame: Received) -> None:
        assert self._stream is not None
        self._stream.grant_credit(frame.size)
        if self._schema is None:
            self._schema = pa.ipc.read_schema(pa.py_buffer(frame.body))
            return
        reader, facts = self._reader, fetch_answer(bytes(frame.header))
        assert isinstance(facts, ChunkFacts | EndFacts)
        partitions, values = None, list[int]()
        if isinstance(facts, EndFacts):
            reader._session.answered(self._route, facts.leader_epoch)
            partitions = facts.partitions
        elif frame.body:
            values = decoded_rows(self._schema, frame.body, facts).column(0).to_pylist()
        number, place, now = self._ask.number, self._ask.key, reader._world.clock.monotonic()
        core, size = reader._core, frame.size
        if core.on_received(number, facts.next, facts.lineage, len(values), partitions, size, now):
            reader._got[place] += values
            self._position = int(facts.next)
            if isinstance(facts, ChunkFacts):
                self._records += zip(_offsets_of(facts, len(values)), values, strict=True)
            else:
                self._last = facts
            core.on_taken(place, number, size)
            reader._hear(is_over=False)


def _offsets_of(facts: ChunkFacts, rows: int) -> list[int]:
    """Return the offsets of a chunk's rows."""
    spans = [(facts.base, rows)] if facts.spans is None else facts.spans
    return [int(first) + at for first, count in spans for at in range(count)]


def watched(
    world: World,
    broker: SimulatedBroker,
    asked: FetchRange,
    got: tuple[int, ...] | None,
    schema: pa.Schema,
    answers: Answers,
) -> Answers:
    """Pass the answers of a fetch on, and report them to the invariants.

    ``got``: the earlier records of a reader that continues.
    """
    place = (asked.topic_id or "", asked.partition)
    at = Joined(asked.topic, asked.topic_id or "", asked.partition)
    partition = broker.host.replica(at)
    assert partition is not None
    began = partition.leader_epoch
    world.look_at(broker)
    line = world.history.lines[broker.broker_id, place]
    values: list[int] = []
    try:
        for step in answers:
            assert not isinstance(step, AwaitRecords)  # the simulator's fetches do not wait
            if asked.isolation is Isolation.READ_UNCOMMITTED and got is not None:
                # Not before: it may be refused, as its leader was replaced since it began.
                world.notice("went_on", line, got, asked.start)
                got = None
            records, facts = step
            told = fetch_answer(facts)
            if isinstance(told, ChunkFacts):
                if isinstance(records, tuple):
                    records = decoded_rows(schema, b"".join(records), told)
                values += records.column(0).to_pylist()
            elif isinstance(told, EndFacts):
                world.look_at(broker)
                if told.bounds is not None:
                    world.notice("told", line.course, told.bounds, told.leader_epoch)
                # Reader and follower may not have read yet that an unclean election lost records.
                counts = not asked.near or line.course.counts(asked.leader_epoch or 0)
                if not line.deleted and partition.leader_epoch == began and counts:
                    end = int(told.next)
                    world.notice("looked", Looked(line, asked.isolation, asked.start, end, values))
                    if asked.isolation is Isolation.READ_ATOMIC:
                        world.notice("cut", {place: end})
            yield step
    finally:
        answers.close()
