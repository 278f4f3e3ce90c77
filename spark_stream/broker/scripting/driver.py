"""The driver of scripts, by threads: it carries out each step, and its answer resumes the script.

A thread that calls :meth:`Driver.run` drives its script to the end. Any number may do so at the
same time. A step on a partition that this broker leads runs here. A step on one that another broker
leads is sent there as an internal call, where it runs or is refused, and calls no other broker: so
two brokers that call each other cannot wait for each other. If the other broker does not lead the
partition any more, this one looks up the leader once more.

:class:`StepTable` has the action of each step. Other drivers of scripts, such as the simulator's,
use the same table. No step waits for another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.stores.store import MetadataStore, StoreRecord
from spark_stream.cluster.transactions import NUMBERS, Numbers, TransactionIndex
from spark_stream.cluster.view import FollowedRecords
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.errors import IsologError, NotLeader
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import (
    FIRST_EPOCH,
    BrokerStep,
    CatchUp,
    DeleteMany,
    DeleteRecord,
    Describe,
    DropBranch,
    FindTopic,
    FindTransactions,
    Force,
    ForceReplica,
    Get,
    IsReplicated,
    ListRecords,
    MakeFolder,
    Marked,
    Numbering,
    PartitionStep,
    Pause,
    ProbeReplica,
    PutMany,
    PutRecord,
    ReadBounds,
    ReadEpochs,
    ReadExtents,
    ReadLed,
    ReadLogEnd,
    Refresh,
    RemoteStep,
    RemoveFiles,
    Script,
    Seal,
    Step,
    TakeNumber,
    Together,
    WriteMarkers,
)
from spark_stream.steps import run_script

T = TypeVar("T")
_LOOKS: Final = 2  # how often the leader of a step is looked up


_REMOTE: Final = (PartitionStep, BrokerStep)


class Peers(Protocol):
    """The other brokers of the store."""

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        """Have the broker run the steps. Return its answers.

        Raises:
            LeaderUnavailable: The broker does not answer.
        """


class Driver:
    """The driver of one broker's scripts."""

    def __init__(self, table: StepTable, peers: Peers) -> None:
        self._table = table
        self._peers = peers

    def run(self, script: Script[T]) -> T:
        """Run the script. Return its result, or raise its error."""
        return run_script(script, self._answer)

    def _answer(self, step: Step[Any]) -> Any:
        if isinstance(step, _REMOTE):
            (answer,) = self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        if isinstance(step, Together):
            return self._together(step.steps)
        return self._table.carry_out(step)

    def _together(self, steps: Sequence[RemoteStep]) -> list[Answer]:
        answers: list[Answer] = [None] * len(steps)
        left = list(range(len(steps)))
        for look in range(_LOOKS):
            if look:
                self._table.carry_out(Refresh())
            for number in left:
                answers[number] = self._tried_here(steps[number])
            for broker, numbers in elsewhere(answers, left).items():
                found = self._ask(broker, [steps[number] for number in numbers])
                for number, answer in zip(numbers, found, strict=True):
                    answers[number] = answer
            left = [number for number in left if isinstance(answers[number], NotLeader)]
            if not left:
                break
        return answers

    def _tried_here(self, step: RemoteStep) -> Answer:
        try:
            return self._table.run_here(step)
        except IsologError as error:
            return error

    def _ask(self, broker: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        try:
            return self._peers.run_steps(broker, steps)
        except IsologError as error:
            return [error.again() for _ in steps]


def elsewhere(answers: Sequence[Answer], numbers: Iterable[int]) -> dict[str, list[int]]:
    """Return the numbers of answers that name another leader, grouped by that broker."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        answer = answers[number]
        if isinstance(answer, NotLeader) and answer.details.get("leader"):
            found.setdefault(str(answer.details["leader"]), []).append(number)
    return found


logger = logger_of(__name__)

Answer = Any | IsologError


class StepTable:
    """The steps of one broker, for all drivers of its scripts."""

    def __init__(self, store: MetadataStore, host: Host) -> None:
        self._store = store
        self._host = host
        self._followed: dict[str, FollowedRecords] = {}
        self._transactions = TransactionIndex(store)
        self._numbers = {
            Numbering.TRANSACTIONS: Numbers(store, f"{NUMBERS}transactions"),
            Numbering.PRODUCERS: Numbers(store, f"{NUMBERS}producers", used=host.greatest_producer),
        }

    def carry_out(self, step: Step[Any]) -> Any:
        """Carry out a step that is on no partition. Raise its error."""
        store, host = self._store, self._host
        match step:
            case Get():
                return store.get(step.key, fresh=step.fresh)
            case ListRecords():
                return self._list(step)
            case PutRecord():
                return store.put(step.key, step.value, step.expected)
            case PutMany():
                return store.put_many(step.puts)
            case DeleteRecord():
                return store.delete(step.key, step.expected)
            case DeleteMany():
                return store.delete_many(step.deletes)
            case FindTransactions():
                return self._transactions.find(step.by, step.value, fresh=step.fresh)
            case TakeNumber():
                return self._numbers[step.of].take(step.above)
            case FindTopic():
                return host.find(step.name, step.topic_id)
            case RemoveFiles():
                return host.remove_files(step.topic)
            case Refresh(optional=True):
                return host.contact.refresh_unless_all_are_cut_off()
            case Refresh():
                return host.refresh()
            case CatchUp():
                return host.follow_store(known=True)
            case ReadEpochs():
                return self._epochs(step)
            case Pause():
                return time.sleep(step.seconds)
        raise TypeError(f"{type(step).__name__} is a step of another broker, or of none")

    def _list(self, step: ListRecords) -> Sequence[StoreRecord]:
        if step.fresh:
            return self._store.list(step.prefix)
        kind = step.prefix.partition("/")[0] + "/"
        if kind not in self._followed:
            self._followed[kind] = FollowedRecords(self._store, kind)
        return self._followed[kind].look(step.prefix)

    def reserve_used_numbers(self) -> None:
        """Reserve the numbers in this broker's logs, so that they are not given out again.

        This is called before the first number is given out.
        """
        used = self._host.greatest_numbers()
        for what, number in zip((Numbering.PRODUCERS, Numbering.TRANSACTIONS), used, strict=True):
            if self._numbers[what].pass_over(number):
                logger.error(
                    "the metadata store is older than the logs: a log has the number %d (%s), which"
                    " the store would give out again",
                    number,
                    what.value,
                )

    def run_here(self, step: RemoteStep) -> Any:
        """Carry out a step at the broker that it is for.

        Raises:
            NotLeader: The step is for another broker, which is ``leader`` in the details.
        """
        if isinstance(step, BrokerStep):
            if step.broker != self._host.broker_id:
                raise NotLeader(
                    f"the step is for broker {step.broker}, but this is broker"
                    f" {self._host.broker_id}",
                    leader=step.broker,
                )
            return _on_broker(self._host, step)
        return _on_partition(self._led(step), step)

    def _led(self, step: PartitionStep[Any]) -> Partition:
        """Return the partition, which this broker leads in an epoch that the step allows."""
        place = step.at
        partition = self._host.topic(place.topic, place.topic_id).partition(place.partition)
        if partition.leader_epoch >= step.least_epoch:
            return partition
        self._host.refresh()  # the caller has seen a later leader on record
        partition = self._host.topic(place.topic, place.topic_id).partition(place.partition)
        if partition.leader_epoch >= step.least_epoch:
            return partition
        raise NotLeader(
            f"{partition.name}: this broker leads it in epoch {partition.leader_epoch}, but epoch"
            f" {step.least_epoch} is on record",
            topic=place.topic,
            partition=place.partition,
            leader="",
        )

    def _epochs(self, step: ReadEpochs) -> list[LeaderEpoch]:
        """Return the leader epochs in this broker's view."""
        found = (self._host.view_of(PartitionId(at.topic_id, at.partition)) for at in step.places)
        return [FIRST_EPOCH if each is None else each.record.leader_epoch for each in found]


def _on_partition(partition: Partition, step: PartitionStep[Any]) -> Any:
    """Carry out a step on a partition that this broker leads."""
    match step:
        case Seal():
            return partition.transactions.seal(step.transaction)
        case WriteMarkers():
            return _mark(partition, step)
        case IsReplicated():
            return partition.is_replicated(step.entry, step.leader_epoch)
        case DropBranch():
            return partition.transactions.drop_branch(step.transaction, step.producer_id)
        case Force():
            return partition.force()
        case ReadBounds():
            return partition.known_bounds()
        case ReadExtents():
            return partition.spans()
        case Describe():
            return partition.described()
    raise TypeError(f"{type(step).__name__} is no step on a partition")


def _mark(partition: Partition, step: WriteMarkers) -> Marked:
    marked = partition.transactions.end(step.transaction, frozenset(step.taken).__contains__)
    if step.taken:
        partition.force()
    return marked


def _on_broker(host: Host, step: BrokerStep[Any]) -> Any:
    """Carry out a step of this broker."""
    match step:
        case MakeFolder():
            return host.make_folder(step.topic, step.topic_id)
        case ReadLogEnd():
            return host.log_end(step.at)
        case ForceReplica():
            host.refresh()
            return host.open_replica(step.at).force()
        case ProbeReplica():
            return host.open_replica(step.at).probe()
        case ReadLed():
            return {each: sorted(found) for each, found in host.led_numbers().items()}
    raise TypeError(f"{type(step).__name__} is no step of a broker")


REMOTE_STEPS: Final[tuple[type[RemoteStep], ...]] = (
    *(Seal, WriteMarkers, IsReplicated, DropBranch, Force, ReadBounds, ReadExtents, Describe),
    *(MakeFolder, ReadLogEnd, ForceReplica, ProbeReplica, ReadLed),
)
"""The steps that another broker may send."""
