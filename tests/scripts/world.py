"""A world that scripts run in: a store, partitions, brokers, and a scheduler that interleaves them.

Every script of every broker stands before its next step. The scheduler's owner chooses the next
step, and may crash a broker between any two: its scripts stop, and its memory is lost. The steps of
a ``Together`` are carried out one by one, with any other steps in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from isolog.errors import InvalidTransaction, IsologError
from spark_stream.cluster.stores.store import Delete as StoreDelete
from spark_stream.cluster.stores.store import Put as StorePut
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.transactions import JOINS, PREFIX, decode, decode_join
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.consistency.transactions.transactions import (
    COMMITS,
    DECIDED,
    Joined,
    State,
    Transaction,
)
from spark_stream.scripts.steps import (
    CatchUp,
    DeleteMany,
    DeleteRecord,
    DropBranch,
    FindTransactions,
    Force,
    Get,
    IsReplicated,
    ListRecords,
    Marked,
    PartitionStep,
    Pause,
    PutMany,
    PutRecord,
    ReadEpochs,
    Refresh,
    Script,
    Seal,
    Step,
    TakeNumber,
    Together,
    WriteMarkers,
)
from spark_stream.scripts.transactions.deciding import Consumers, Decisions, Here
from spark_stream.scripts.transactions.finishing import Finisher, Sweeper, TransactionSettings
from spark_stream.scripts.transactions.sinks import Sinks
from tests.scripts.on_store import answer_of

BLOCK = 3
EPOCH = LeaderEpoch(4)


class Append(PartitionStep[Any]):
    """A batch arrives at the partition. Only tests yield this step."""

    transaction: int
    producer_id: int
    value: int


class ModelStore:
    """The metadata store as a dict."""

    def __init__(self) -> None:
        self.records: dict[str, StoreRecord] = {}
        self._versions = count(1)

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        return self.records.get(key)

    def list(self, prefix: str) -> list[StoreRecord]:
        return [self.records[key] for key in sorted(self.records) if key.startswith(prefix)]

    def put(self, key: str, value: Any, expected: int) -> int | None:
        known = self.records.get(key)
        if (0 if known is None else known.version) != expected:
            return None
        version = next(self._versions)
        self.records[key] = StoreRecord(key, value, version)
        return version

    def put_many(self, puts: Sequence[StorePut]) -> list[int | None]:
        return [self.put(*each) for each in puts]

    def delete_many(self, deletes: Sequence[StoreDelete]) -> list[bool]:
        return [self.delete(*each) for each in deletes]

    def delete(self, key: str, expected: int) -> bool:
        known = self.records.get(key)
        if known is None or known.version != expected:
            return False
        del self.records[key]
        return True

    def transaction(self, name: str) -> Transaction:
        record = self.records.get(PREFIX + name)
        return Transaction(name) if record is None else decode(record.value)

    def places(self, number: int) -> list[Joined]:
        """The partitions that have joined the transaction."""
        joins = [decode_join(each) for each in self.list(JOINS)]
        return [each.at for each in joins if each.number == number]


@dataclass
class ModelPartition:
    """The state of a partition: batches, and the ends of each producer's parts of transactions.

    The entries below ``replicated`` are below the high watermark. ``lags``: each check for
    replication finds one entry more than the last one. Otherwise all entries are replicated
    immediately.
    """

    batches: list[tuple[int, int, int]] = field(default_factory=list)
    ends: dict[tuple[int, int], bool] = field(default_factory=dict)
    sealed: set[int] = field(default_factory=set)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    lags: bool = False
    replicated: int = 0

    @property
    def end(self) -> int:
        """The number of entries."""
        return len(self.batches) + len(self.ends)

    def is_replicated(self, entry: int) -> bool:
        self.replicated = min(self.end, self.replicated + 1) if self.lags else self.end
        return self.replicated >= entry

    def open_parts(self, transaction: int) -> list[int]:
        found = {who for number, who, _ in self.batches if number == transaction}
        return sorted(who for who in found if (transaction, who) not in self.ends)

    def visible(self) -> list[int]:
        return [value for number, who, value in self.batches if self.ends.get((number, who))]


def here() -> Here:
    """A broker that handles a call when time begins."""
    return Here("here", 0, may_reserve=True)


class Broker:
    """The scripts of a broker, with its memory of finished transactions."""

    def __init__(self, name: str) -> None:
        self.now_ms = 0
        self.finisher = Finisher()
        self.decisions = Decisions(self.finisher, lambda: Here(name, self.now_ms, may_reserve=True))
        self.sinks = Sinks(self.decisions)
        self.consumers = Consumers(self.finisher)
        self.sweeper = Sweeper(self.finisher, TransactionSettings())
        self.blocks: dict[str, list[int]] = {}


@dataclass
class Running:
    """A script before its next step, or the remaining steps of a ``Together``."""

    broker: str
    script: Script[Any]
    step: Step
    name: str = ""
    parts: list[PartitionStep] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    result: Any = None
    error: IsologError | None = None
    over: bool = False


class World:
    """Brokers on one store, each with running scripts."""

    def __init__(self, brokers: int = 2) -> None:
        self.store = ModelStore()
        topic = Topic("t", "id", pa.schema([]), 3, {})
        self.store.put(TOPICS + topic.name, encode(topic), 0)
        self.brokers = {name: Broker(name) for name in (f"broker {n}" for n in range(brokers))}
        self.partitions: dict[Joined, ModelPartition] = {}
        self.running: list[Running] = []
        self.before_step: list[Callable[[Step], None]] = []
        self.marked_at: dict[tuple[int, Joined], int] = {}
        """The end of a partition when the transaction of this number was marked in it."""

    def at(self, number: int) -> Joined:
        place = Joined("t", "id", number)
        self.partitions.setdefault(place, ModelPartition())
        return place

    def partition(self, number: int) -> ModelPartition:
        return self.partitions[self.at(number)]

    # -- scripts ----------------------------------------------------------------------------------

    def start(self, broker: str, script: Script[Any], name: str = "") -> Running:
        """Start the script, which stands before its first step."""
        found = Running(broker, script, Step(), name)
        self._resume(found, lambda: next(script))
        if not found.over:
            self.running.append(found)
        return found

    def advance(self, which: Running) -> None:
        """Carry out one step of one script."""
        step = which.parts[0] if which.parts else which.step
        for check in self.before_step:
            check(step)
        answer: Any = None
        error: IsologError | None = None
        try:
            answer = self.carry_out(self.brokers[which.broker], step)
        except IsologError as caught:
            error = caught
        if which.parts:
            which.parts.pop(0)
            which.answers.append(answer if error is None else error)
            if which.parts:
                return
            answer, error, which.answers = which.answers, None, []
        if error is not None:
            failure = error
            self._resume(which, lambda: which.script.throw(failure))
        else:
            self._resume(which, lambda: which.script.send(answer))
        if which.over:
            self.running.remove(which)

    def _resume(self, which: Running, resume: Callable[[], Step]) -> None:
        try:
            which.step = resume()
        except StopIteration as ended:
            which.result, which.over = ended.value, True
        except IsologError as error:
            which.error, which.over = error, True
        else:
            which.parts = list(which.step.steps) if isinstance(which.step, Together) else []

    def run(self, broker: str, script: Script[Any]) -> Any:
        """Run the script from start to end, with no other steps in between."""
        found = self.start(broker, script)
        while not found.over:
            self.advance(found)
        if found.error is not None:
            raise found.error
        return found.result

    def crash(self, broker: str) -> None:
        """The broker ends between two steps, and another of its name starts."""
        for each in [each for each in self.running if each.broker == broker]:
            each.script.close()
            each.over = True
            self.running.remove(each)
        self.brokers[broker] = Broker(broker)

    # -- steps ------------------------------------------------------------------------------------

    def carry_out(self, broker: Broker, step: Step) -> Any:
        match step:
            case FindTransactions() | Get() | ListRecords():
                return answer_of(self.store, step)
            case PutRecord() | PutMany() | DeleteRecord() | DeleteMany():
                return answer_of(self.store, step)
            case Pause() | Refresh() | CatchUp():
                return None
            case TakeNumber(of, above):
                return self._take(broker, of.value, above)
            case ReadEpochs(places):
                return [EPOCH for _ in places]
            case Seal() | Force():
                assert step.least_epoch == EPOCH, step
                return self._on(self.partitions[step.at], step)
            case PartitionStep():
                return self._on(self.partitions[step.at], step)
        raise AssertionError(step)

    def _take(self, broker: Broker, of: str, above: int) -> int:
        """A number of the broker's block. Lower numbers are dropped, as by the store's rules."""
        block = broker.blocks.setdefault(of, [])
        block[:] = [number for number in block if number > above]
        while not block:
            record = self.store.get(f"numbers/{of}")
            start = 0 if record is None else record.value["next"]
            version = 0 if record is None else record.version
            self.store.put(f"numbers/{of}", {"next": start + BLOCK}, version)
            block[:] = [n for n in range(start, start + BLOCK) if n > above]
        return block.pop(0)

    def _on(self, found: ModelPartition, step: PartitionStep) -> Any:
        match step:
            case Seal(_, transaction):
                found.sealed.add(transaction)
            case WriteMarkers(_, transaction, taken):
                found.sealed.add(transaction)
                for who in found.open_parts(transaction):
                    self.marked_at[transaction, step.at] = found.end + 1
                    found.ends[transaction, who] = who in taken
                end = found.end
                return Marked(EntryIndex(end), EPOCH, not found.lags or found.replicated >= end)
            case IsReplicated(_, entry, epoch):
                assert epoch == EPOCH
                return found.is_replicated(entry)
            case DropBranch(_, transaction, producer_id):
                found.dropped.add((transaction, producer_id))
                if producer_id in found.open_parts(transaction):
                    found.ends[transaction, producer_id] = False
            case Append(_, transaction, producer_id, value):
                if transaction in found.sealed or (transaction, producer_id) in found.dropped:
                    raise InvalidTransaction("it has ended")
                found.batches.append((transaction, producer_id, value))
            case Force():
                pass
            case _:
                raise AssertionError(step)
        return None


# -- invariants at every moment ------------------------------------------------------------------


class Invariant:
    """A watcher of a world. ``check`` is called before every step."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.before_step.append(self.check)

    def check(self, step: Step) -> None:
        raise NotImplementedError


class NoMarkerBeforeDecision(Invariant):
    """Markers of a transaction are written only once its record has the decision."""

    def check(self, step: Step) -> None:
        if isinstance(step, WriteMarkers):
            for record in self.world.store.list(PREFIX):
                found = decode(record.value)
                if found.number == step.transaction:
                    assert found.state is not State.OPEN, step
                    if found.state in DECIDED:
                        assert step.taken == (found.taken if found.state in COMMITS else ())


class SealedBeforeMarked(Invariant):
    """Before any partition of a transaction is marked, all of them are sealed."""

    def check(self, step: Step) -> None:
        if isinstance(step, WriteMarkers):
            for record in self.world.store.list(PREFIX):
                found = decode(record.value)
                if found.number == step.transaction and found.state in DECIDED:
                    for at in self.world.store.places(found.number):
                        assert step.transaction in self.world.partitions[at].sealed, (step, at)


class FinishedMeansMarkedEverywhere(Invariant):
    """A transaction that has ended on record has no open part in any partition."""

    def check(self, step: Step) -> None:
        del step
        for record in self.world.store.list(PREFIX):
            found = decode(record.value)
            if found.state in (State.COMMITTED, State.ABORTED):
                for at in self.world.store.places(found.number):
                    assert not self.world.partitions[at].open_parts(found.number), (found, at)


class FinishedMeansReplicatedEverywhere(Invariant):
    """A transaction that has ended on record has its markers below the high watermarks."""

    def check(self, step: Step) -> None:
        del step
        for record in self.world.store.list(PREFIX):
            found = decode(record.value)
            if found.state in (State.COMMITTED, State.ABORTED):
                for at in self.world.store.places(found.number):
                    partition = self.world.partitions[at]
                    marked = self.world.marked_at.get((found.number, at), 0)
                    assert not partition.lags or partition.replicated >= marked, (found, at)


class FatesAgree(Invariant):
    """A producer's parts of a transaction ended alike in all partitions."""

    def check(self, step: Step) -> None:
        del step
        fates: dict[tuple[int, int], bool] = {}
        for partition in self.world.partitions.values():
            for part, committed in partition.ends.items():
                assert fates.setdefault(part, committed) is committed, part


class NumbersRise(Invariant):
    """The numbers of an id's transactions rise, at all brokers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[str, int] = {}

    def check(self, step: Step) -> None:
        del step
        for record in self.world.store.list(PREFIX):
            number = decode(record.value).number
            assert number >= self._last.get(record.key, -1)
            self._last[record.key] = number


INVARIANTS = (
    NoMarkerBeforeDecision,
    SealedBeforeMarked,
    FinishedMeansMarkedEverywhere,
    FinishedMeansReplicatedEverywhere,
    FatesAgree,
    NumbersRise,
)
