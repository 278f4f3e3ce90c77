"""A producer's core with brokers and a network that do all allowed things in a random order.

There are no threads, sockets and clocks: one event happens at a time. The leaders judge batches by
the broker's rules.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import structs

from isolog.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InvalidRecord,
    IsologError,
    NotLeader,
    OutOfOrderSequence,
    RecordNotAttempted,
    RequestTimeout,
    SchemaMismatch,
    Unauthenticated,
    UnknownOutcome,
    UnknownTopic,
)
from spark_stream.client.connecting.routes import Route
from spark_stream.client.values import Written
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.core import (
    TICK_S,
    AllSettled,
    BreakStream,
    DoubtRoute,
    EndStream,
    FindLeaders,
    GetIdentity,
    OpenStream,
    ProducerCore,
    SendBatch,
    SettleBatch,
    TopicChanged,
    WakeAt,
)
from spark_stream.client.writing.lanes import (
    JOINED_WITHIN_S,
    ProducerIdentity,
    Settlement,
    Unacknowledged,
)
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.producers import (
    EPOCH_MAX,
    WINDOW,
    Accepted,
    Duplicate,
    ProducerState,
    Stamp,
)
from spark_stream.wire.stream_messages import Ack, Acknowledged, BatchRefused
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription

BROKERS = ("a:1", "b:1", "c:1")
TIMEOUT_S = 6.0
CALL_S = 2.0
PATIENCE_S = 1.6  # that all batches are acknowledged when no more are lost
SCHEMA = pa.schema([("n", pa.int64())])


def topic_of(partitions: int, name: str = "t") -> TopicDescription:
    facts = tuple(
        PartitionDescription(number, None, None, (), (), 0, 0, 0, 0, 0)
        for number in range(partitions)
    )
    return TopicDescription(name, f"id of {name}", SCHEMA, {}, facts)


@dataclass
class Submitted:
    partition: int
    rows: list[int]
    at: float
    settlements: list[tuple[Settlement, float]] = field(default_factory=list)


@dataclass
class Sent:
    """A batch in flight to a broker."""

    partition: int
    number: int
    stamp: Stamp
    rows: list[int]


@dataclass
class Wire:
    """A stream in the network. All its batches have one schema."""

    broker: str
    schema: pa.Schema
    is_open: bool = False
    is_silent: bool = False
    frames: deque[Sent] = field(default_factory=deque)
    answers: deque[Ack] = field(default_factory=deque)


class Leader:
    """A partition: its log, and its leaders' state of producers."""

    def __init__(self) -> None:
        self.broker = BROKERS[0]
        self.log: list[int] = []
        self.states: dict[int, ProducerState] = {}

    def take(self, sent: Sent, *, refuse: bool) -> Ack:
        kept = 0 if refuse else len(sent.rows)
        before = self.states.get(sent.stamp.producer_id)
        verdict = producers.judge(before, sent.stamp, kept)
        facts = {"number": sent.number, "partition": sent.partition, "leader_epoch": 0}
        match verdict:
            case Accepted():
                offset = len(self.log)
                self.states[sent.stamp.producer_id] = producers.appended(
                    before, sent.stamp, offset, kept, 0
                )
                if refuse:
                    error = InvalidRecord("bad", kept=0, offset=None, record=0)
                    return BatchRefused(error=error, count=0, **facts)
                self.log += sent.rows
                return Acknowledged(
                    offset=offset, count=kept, partitions=2, duplicate=False, **facts
                )
            case Duplicate():
                return Acknowledged(
                    offset=verdict.offset,
                    count=verdict.count,
                    partitions=2,
                    duplicate=True,
                    **facts,
                )
            case _:
                error = OutOfOrderSequence(
                    "", sequence=sent.stamp.sequence, expected=verdict.expected
                )
                return BatchRefused(error=error, count=0, **facts)

    def forget_refusals(self) -> None:
        """Restart. Refused batches are not in the log."""
        for who, state in list(self.states.items()):
            if state.recent:
                last = state.recent[-1].sequence
                self.states[who] = ProducerState(state.epoch, last, state.recent)
            else:
                del self.states[who]


class World:
    def __init__(self, seed: int, epoch: int = 0) -> None:
        self.chance = random.Random(seed)
        self.now = 1000.0
        self.core = ProducerCore(TIMEOUT_S, CALL_S)
        self.topic = topic_of(2)
        self.leaders = [Leader() for _ in self.topic.partitions]
        self.submitted: list[Submitted] = []
        self.wires: dict[int, Wire] = {}
        self.late: list[tuple[str, Sent]] = []  # of closed streams
        self.questions: deque[FindLeaders | GetIdentity] = deque()
        self.wake_at: float | None = None
        self.epoch = epoch
        self.identities = 0
        self.rows = 0
        self.stamped: dict[tuple[int, int, int], int] = {}
        self.finished = 0
        self.calm_at = 0.0
        self.patience_s = PATIENCE_S
        self.stamps: dict[int, Stamp] = {}

    # -- events -----------------------------------------------------------------------------

    def submit(self) -> None:
        partition = self.chance.randrange(len(self.leaders))
        rows = list(range(self.rows, self.rows + self.chance.randint(1, 3)))
        self.rows += len(rows)
        mine = Submitted(partition, rows, self.now)
        self.submitted.append(mine)
        known = self.core.topic(self.topic, self.now)
        self.core.submit(
            self.topic.id,
            fitted_to(pa.record_batch({"n": rows}), known),
            partition,
            lambda each: mine.settlements.append((each, self.now)),
            self.now,
            joins=self.chance.choice([0, 8]),
        )

    def alter(self) -> None:
        """Add a column to the topic."""
        version = self.topic.schema_version + 1
        added = (*self.topic.added, f"c{version}")
        schema = self.topic.schema.append(pa.field(added[-1], pa.int8()))
        self.topic = structs.replace(self.topic, schema=schema, schema_version=version, added=added)
        self.core.topic(self.topic, self.now)

    def carry_out(self) -> None:
        """Carry out the next instruction."""
        if not self.core.out:
            return
        match self.core.out.popleft():
            case SendBatch() as sent:
                self._check_stamp(sent)
                wire = self.wires.get(sent.stream)
                if wire is None:
                    return
                assert wire.is_open
                batch = sent.batch.whole()
                assert batch.schema == wire.schema
                rows = batch.column("n").to_pylist()
                wire.frames.append(Sent(sent.batch.partition, sent.number, sent.stamp, rows))
                self.stamps[sent.number] = sent.stamp
                assert self._unanswered(wire, sent) <= WINDOW
            case OpenStream() as opened:
                self.wires[opened.stream] = Wire(opened.route.address, opened.topic.schema)
            case EndStream() | BreakStream() as ended:
                self._drop(ended.stream)
            case FindLeaders() | GetIdentity() as question:
                self.questions.append(question)
            case WakeAt() as wake:
                self.wake_at = wake.at
            case DoubtRoute():
                pass
        self._note()

    def answer(self) -> None:
        """Answer the first request at random."""
        if not self.questions:
            return
        question, roll = self.questions.popleft(), self.chance.random()
        if isinstance(question, GetIdentity):
            if roll < 0.2:
                error = self._failure(Unauthenticated("nobody"))
                self.core.identity_failed(error, self.now)
            else:
                self.identities += 1
                self.core.on_identified(ProducerIdentity(self.identities, self.epoch), self.now)
        elif roll < 0.2:
            error = self._failure(UnknownTopic("gone"))
            self.core.leaders_failed(self.topic.id, error, self.now)
        else:
            routes: dict[int, Route | None] = {}
            for each in question.partitions:
                broker = self.leaders[each].broker
                if self.chance.random() < 0.2:
                    broker = self.chance.choice(BROKERS)  # an outdated answer
                routes[each] = Route("t", self.topic.id, each, broker, broker, 0)
                if self.chance.random() < 0.1:
                    routes[each] = None
            self.core.leaders_found(self.topic.id, routes, self.now)
        self._note()

    def open(self) -> None:
        opening = [number for number, wire in self.wires.items() if not wire.is_open]
        if opening:
            number = self.chance.choice(opening)
            if self.chance.random() < 0.2:
                self.lose(number)
            else:
                self.wires[number].is_open = True
                self.core.stream_opened(number, self.now)

    def deliver(self) -> None:
        """Deliver the next batch of a stream to a broker, or a late one of a closed stream."""
        if self.late and self.chance.random() < 0.3:
            broker, sent = self.late.pop(0)
            if self.leaders[sent.partition].broker == broker:
                self.leaders[sent.partition].take(sent, refuse=False)
            return
        wire = self._wire(lambda each: each.frames and not each.is_silent)
        if wire is None:
            return
        sent = wire.frames.popleft()
        leader = self.leaders[sent.partition]
        if leader.broker != wire.broker:
            error: IsologError = NotLeader("not me")
        elif self.chance.random() < 0.02:
            error = BrokerStopping("stopping")
        elif self.chance.random() < 0.02:
            error = RequestTimeout("the partition was held by others")
        else:
            refuse = self.chance.random() < 0.15
            wire.answers.append(leader.take(sent, refuse=refuse))
            return
        wire.answers.append(
            BatchRefused(number=sent.number, partition=sent.partition, error=error, count=0)
        )

    def hear(self) -> None:
        """Deliver an answer, sometimes twice."""
        wire = self._wire(lambda each: each.answers and not each.is_silent)
        if wire is None:
            return
        (number,) = [number for number, each in self.wires.items() if each is wire]
        ack = wire.answers.popleft()
        for _ in range(2 if self.chance.random() < 0.05 else 1):
            self.core.on_acknowledged(number, ack, self.now)
        if self.chance.random() < 0.05:  # of a closed stream
            self.core.on_acknowledged(number + 1000, ack, self.now)
        self._note()

    def lose(self, number: int | None = None) -> None:
        if number is None and self.wires:
            number = self.chance.choice(list(self.wires))
        if number is not None:
            self._drop(number)
            self.core.stream_lost(number, self._failure(SchemaMismatch("other")), self.now)
            self._note()

    def silence(self) -> None:
        """Make a broker silent on a stream."""
        wire = self._wire(lambda each: each.is_open)
        if wire is not None:
            wire.is_silent = True
            self.patience_s = PATIENCE_S + CALL_S + TICK_S

    def discard(self) -> None:
        self.core.discard(UnknownOutcome("discarded"))
        self._note()

    def move(self) -> None:
        self.chance.choice(self.leaders).broker = self.chance.choice(BROKERS)

    def restart(self) -> None:
        for number in list(self.wires):
            self.lose(number)
        self.late.clear()
        for each in self.leaders:
            each.forget_refusals()

    def wait(self) -> None:
        self.pass_time(self.chance.choice([0.01, 0.1, 1.0, 4.0]))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    def tick(self) -> None:
        if self.wake_at is not None and self.wake_at <= self.now:
            self.wake_at = None
            self.core.tick(self.now)
            self._note()

    # -- the end ----------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Run without failures until all work is done."""
        self.calm_at = self.now
        self.core.close()
        self._note()
        self.chance.random = lambda: 0.99  # type: ignore[method-assign]
        for _ in range(3000):
            if self.finished and not self.core.out:
                break
            for _ in range(30):
                self.carry_out()
                self.answer()
                self.open()
                self.deliver()
                self.hear()
            self.pass_time(0.05)
        while self.late:
            broker, sent = self.late.pop(0)
            if self.leaders[sent.partition].broker == broker:
                self.leaders[sent.partition].take(sent, refuse=False)

    def check(self) -> None:
        assert self.finished == 1
        assert self.core.unsettled == 0
        acknowledged: list[list[int]] = [[] for _ in self.leaders]
        for each in self.submitted:
            log = self.leaders[each.partition].log
            assert len(each.settlements) == 1, each
            ((settlement, at),) = each.settlements
            given_up_at = each.at + TIMEOUT_S - JOINED_WITHIN_S
            patient_until = max(each.at, self.calm_at) + self.patience_s
            assert at < patient_until or given_up_at < patient_until, "it took too long"
            if isinstance(settlement, Written):
                place = slice(settlement.offset, settlement.offset + settlement.count)
                assert log[place] == each.rows
                acknowledged[each.partition] += each.rows
            else:
                assert isinstance(settlement, Unacknowledged)
                assert settlement.kept is None
                if not isinstance(settlement.error, UnknownOutcome):
                    assert not set(log) & set(each.rows), settlement.error
                if at < given_up_at:  # it was not given up
                    expected = InvalidRecord | RecordNotAttempted | UnknownOutcome | RequestTimeout
                    expected |= SchemaMismatch | Unauthenticated | UnknownTopic
                    assert isinstance(settlement.error, expected), settlement.error
        for leader, mine in zip(self.leaders, acknowledged, strict=True):
            assert mine == sorted(set(mine))
            assert len(leader.log) == len(set(leader.log))
            # After the last epoch another producer id follows, and no broker refuses batches of
            # the old one in flight. They were given up before.
            log = leader.log if self.epoch < EPOCH_MAX else set(mine).intersection(leader.log)
            assert [each for each in leader.log if each in log] == sorted(log)

    # -- helpers -------------------------------------------------------------------------------

    def _failure(self, lasting: IsologError) -> IsologError:
        """Return an error, usually retriable, seldom final."""
        return lasting if self.chance.random() < 0.1 else BrokerUnavailable("nobody, for now")

    def _wire(self, has: object) -> Wire | None:
        found = [each for each in self.wires.values() if has(each)]  # type: ignore[operator]
        return self.chance.choice(found) if found else None

    def _drop(self, number: int) -> None:
        wire = self.wires.pop(number, None)
        if wire is not None and self.chance.random() < 0.7:
            self.late += [(wire.broker, each) for each in wire.frames]

    def _note(self) -> None:
        while self.core.outcomes:
            match self.core.outcomes.popleft():
                case SettleBatch() as settled:
                    assert not self.finished
                    settled.batch.settle_all(settled.settlement)
                case TopicChanged() as news:
                    assert news.partitions is None, "the topic has as many partitions as ever"
                case AllSettled():
                    self.finished += 1

    def _unanswered(self, wire: Wire, last: SendBatch) -> int:
        """Return the number of batches in flight of the last batch's partition and epoch."""
        return sum(
            each.partition == last.batch.partition
            and (stamp := self.stamps[each.number]).epoch == last.stamp.epoch
            and stamp.producer_id == last.stamp.producer_id
            for each in [*wire.frames, *wire.answers]
        )

    def _check_stamp(self, sent: SendBatch) -> None:
        """Check that a new sequence is the next one of its epoch."""
        stamp = sent.stamp
        assert stamp is not None
        assert stamp.epoch <= EPOCH_MAX
        place = (sent.batch.partition, stamp.producer_id, stamp.epoch)
        following = self.stamped.get(place, 0)
        assert stamp.sequence <= following
        self.stamped[place] = max(following, stamp.sequence + 1)
