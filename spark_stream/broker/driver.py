"""Drives scripts: carries out each step, and resumes the script with the answer or the error.

A thread that calls :meth:`Driver.run` drives its script to the end; any number may do so at once. A
step on a partition that this broker leads runs here. One that another broker leads goes there as an
internal action; there it runs or is refused, and calls nobody else: so two brokers that call each
other cannot wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from spark_stream.broker.host import Host
from spark_stream.broker.partition import Partition
from spark_stream.cluster.numbers import Numbers
from spark_stream.cluster.store import MetadataStore
from spark_stream.errors import IsologError, NotLeader
from spark_stream.scripts.steps import (
    Delete,
    DropBranch,
    FindTopic,
    Force,
    Get,
    ListRecords,
    MakeFiles,
    Numbering,
    PartitionStep,
    Put,
    ReadBounds,
    ReadExtents,
    RemoveFiles,
    Script,
    Seal,
    Serve,
    Step,
    StopServing,
    TakeNumber,
    Together,
    WriteMarkers,
)

T = TypeVar("T")
Answer = Any | IsologError


class Peers(Protocol):
    """The other brokers of the store."""

    def run_steps(self, broker_id: str, steps: Sequence[PartitionStep]) -> list[Answer]:
        """What the broker answers to each step; LeaderUnavailable if it does not."""


class Driver:
    """Drives the scripts of one broker."""

    def __init__(self, store: MetadataStore, host: Host, peers: Peers) -> None:
        self._store = store
        self._host = host
        self._peers = peers
        self._numbers = {
            Numbering.TRANSACTIONS: Numbers(store, "numbers/transactions"),
            Numbering.PRODUCERS: Numbers(store, "numbers/producers"),
        }
        self._table: Mapping[type[Step], Callable[[Any], Any]] = {
            Get: lambda step: store.get(step.key),
            ListRecords: lambda step: store.list(step.prefix),
            Put: lambda step: store.put(step.key, step.value, step.expected),
            Delete: lambda step: store.delete(step.key, step.expected),
            TakeNumber: lambda step: self._numbers[step.of].take(step.above),
            FindTopic: lambda step: host.find(step.name, step.topic_id),
            Together: lambda step: self._together(step.steps),
            MakeFiles: lambda step: host.make_files(step.topic, step.first),
            RemoveFiles: lambda step: host.remove_files(step.topic, step.first),
            Serve: lambda step: host.serve(step.topic),
            StopServing: lambda step: host.stop_serving(step.topic),
        }

    def run(self, script: Script[T]) -> T:
        """The script's result; raises what it raises."""
        try:
            step = next(script)
            while True:
                try:
                    answer = self._answer(step)
                except IsologError as error:
                    step = script.throw(error)
                else:
                    step = script.send(answer)
        except StopIteration as ended:
            return cast(T, ended.value)
        finally:
            script.close()

    def run_here(self, step: PartitionStep) -> Any:
        """Carries out a step on a partition that this broker leads; NotLeader if it does not."""
        place = step.at
        partition = self._host.topic(place.topic, place.topic_id).partition(place.partition)
        return _HERE[type(step)](partition, step)

    def _answer(self, step: Step) -> Any:
        if isinstance(step, PartitionStep):
            (answer,) = self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        return self._table[type(step)](step)

    def _together(self, steps: Sequence[PartitionStep]) -> list[Answer]:
        answers: list[Answer] = []
        elsewhere: dict[str, list[int]] = {}
        for number, step in enumerate(steps):
            try:
                answers.append(self.run_here(step))
            except NotLeader as error:
                elsewhere.setdefault(str(error.details.get("leader")), []).append(number)
                answers.append(error)
            except IsologError as error:
                answers.append(error)
        for leader, numbers in elsewhere.items():
            try:
                found = self._peers.run_steps(leader, [steps[number] for number in numbers])
            except IsologError as error:
                found = [error.again() for _ in numbers]
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers


def _mark(partition: Partition, step: WriteMarkers) -> None:
    partition.end_transaction(step.transaction, frozenset(step.taken).__contains__)


_HERE: Final[Mapping[type[PartitionStep], Callable[[Partition, Any], Any]]] = {
    Seal: lambda partition, step: partition.seal(step.transaction),
    WriteMarkers: _mark,
    DropBranch: lambda at, step: at.drop_branch(step.transaction, step.producer_id),
    Force: lambda partition, step: partition.force(),
    ReadBounds: lambda partition, step: partition.bounds(),
    ReadExtents: lambda partition, step: partition.spans(),
}
