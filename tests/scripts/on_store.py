"""Scripts of several brokers on a real metadata store. Folders of topics are names in a set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from isolog.errors import IsologError, LeaderUnavailable
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.cluster.transactions import PREFIX, decode, keys_of
from spark_stream.consistency.ids import BrokerId
from spark_stream.scripts.steps import (
    BrokerStep,
    CatchUp,
    DeleteMany,
    DeleteRecord,
    FindTransactions,
    ForceReplica,
    Get,
    ListRecords,
    MakeFolder,
    PartitionStep,
    Pause,
    PutMany,
    PutRecord,
    ReadBounds,
    ReadLogEnd,
    Refresh,
    RemoveFiles,
    Script,
    Step,
    Together,
)

StoreStep = FindTransactions | Get | ListRecords | PutRecord | PutMany | DeleteRecord | DeleteMany


@dataclass
class OnStore:
    """The driver of one broker's scripts on a store.

    ``folders`` has broker and topic id of each topic folder, of all brokers. ``down``: the brokers
    that do not answer. ``log_ends``: the answers of brokers about their logs.
    """

    store: MetadataStore
    broker: BrokerId = BrokerId("b1")  # noqa: RUF009, a NewType call makes a str
    folders: set[tuple[str, str]] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    log_ends: dict[BrokerId, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    paused_s: float = 0.0

    def other(self, broker: str) -> OnStore:
        """Another broker of the same store, which has just started."""
        return replace(self, broker=BrokerId(broker), steps=[], paused_s=0.0)

    def run(self, script: Script[Any]) -> Any:
        """Return the script's result, or raise its error."""
        return self.start(script).end()

    def start(self, script: Script[Any]) -> Driven:
        """The script before its first step."""
        return Driven(self, script)

    def stops_after(self, script: Script[Any], steps: int) -> bool:
        """Carry out so many steps, then stop as a crash does. Return False if it ended before."""
        driven = self.start(script)
        return all(driven.advance() for _ in range(steps))

    def carry_out(self, step: Step) -> Any:
        self.steps.append(step)
        match step:
            case Get() | ListRecords() | PutRecord() | PutMany() | DeleteRecord() | DeleteMany():
                return answer_of(self.store, step)
            case FindTransactions():
                return answer_of(self.store, step)
            case Together(steps):
                return [self._tried(each) for each in steps]
            case RemoveFiles(topic):
                self.folders.discard((self.broker, topic.id))
            case Refresh() | CatchUp():
                pass
            case Pause(seconds):
                self.paused_s += seconds
            case _:
                raise AssertionError(step)
        return None

    def _tried(self, step: PartitionStep | BrokerStep) -> Any:
        try:
            return self._on_broker(step)
        except IsologError as error:
            return error

    def _on_broker(self, step: PartitionStep | BrokerStep) -> Any:
        if isinstance(step, BrokerStep) and step.broker in self.down:
            raise LeaderUnavailable(f"broker {step.broker} is down")
        match step:
            case MakeFolder(broker, _, topic_id):
                self.folders.add((broker, topic_id))
            case ForceReplica():
                pass
            case ReadLogEnd(broker, _):
                return self.log_ends.get(broker)
            case ReadBounds():
                pass
            case _:
                raise AssertionError(step)
        return None


def answer_of(store: MetadataStore, step: StoreStep) -> Any:
    """The store's answer to a step."""
    match step:
        case Get(key):
            return store.get(key)
        case FindTransactions(by, value):
            found = [decode(each.value) for each in store.list(PREFIX)]
            return [each for each in found if (by, value) in keys_of(each)]
        case ListRecords(prefix):
            return store.list(prefix)
        case PutRecord(key, value, expected):
            return store.put(key, value, expected)
        case PutMany(puts):
            return store.put_many(puts)
        case DeleteRecord(key, expected):
            return store.delete(key, expected)
        case DeleteMany(deletes):
            return store.delete_many(deletes)


class Driven:
    """A running script. An abandoned one has stopped, as after a crash."""

    def __init__(self, world: OnStore, script: Script[Any]) -> None:
        self._world = world
        self._script = script
        self._answer: Any = None
        self._error: IsologError | None = None
        self.result: Any = None

    def end(self) -> Any:
        """Carry out all remaining steps. Return the script's result."""
        while self.advance():
            pass
        return self.result

    def advance(self) -> bool:
        """Carry out one step. Return False if the script has ended."""
        try:
            if self._error is None:
                step = self._script.send(self._answer)
            else:
                step = self._script.throw(self._error)
        except StopIteration as ended:
            self.result = ended.value
            return False
        self._answer, self._error = None, None
        try:
            self._answer = self._world.carry_out(step)
        except IsologError as error:
            self._error = error
        return True
