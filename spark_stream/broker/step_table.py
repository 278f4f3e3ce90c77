"""What each step of a script does in one broker. One step waits for no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_stream.broker.host import Host
from spark_stream.broker.joining import TakeBatch
from spark_stream.broker.partition import Partition
from spark_stream.cluster.numbers import Numbers
from spark_stream.cluster.store import MetadataStore
from spark_stream.errors import IsologError
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
    Seal,
    Serve,
    Step,
    StopServing,
    TakeNumber,
    WriteMarkers,
)

logger = logging.getLogger(__name__)

Answer = Any | IsologError


class StepTable:
    """The steps of one broker. Whoever drives its scripts carries them out here."""

    def __init__(self, store: MetadataStore, host: Host) -> None:
        self._host = host
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
            MakeFiles: lambda step: host.make_files(step.topic, step.first),
            RemoveFiles: lambda step: host.remove_files(step.topic, step.first),
            Serve: lambda step: host.serve(step.topic),
            StopServing: lambda step: host.stop_serving(step.topic),
            TakeBatch: lambda step: step.take(),
        }

    def carry_out(self, step: Step) -> Any:
        """Carries out a step that is on no partition; raises what it raises."""
        return self._table[type(step)](step)

    def pass_over_used_numbers(self) -> None:
        """Takes no number again that is in a log of this broker. Before anybody asks for one."""
        used = self._host.greatest_numbers()
        for what, number in zip((Numbering.PRODUCERS, Numbering.TRANSACTIONS), used, strict=True):
            if self._numbers[what].pass_over(number):
                logger.error(
                    "the metadata store is older than the logs: number %d of %s, which is in a"
                    " log, was not known to it",
                    number,
                    what.value,
                )

    def run_here(self, step: PartitionStep) -> Any:
        """Carries out a step on a partition that this broker leads; NotLeader if it does not."""
        place = step.at
        partition = self._host.topic(place.topic, place.topic_id).partition(place.partition)
        return _HERE[type(step)](partition, step)


def _mark(partition: Partition, step: WriteMarkers) -> None:
    partition.end_transaction(step.transaction, frozenset(step.taken).__contains__)
    if step.taken:
        partition.force()


_HERE: Final[Mapping[type[PartitionStep], Callable[[Partition, Any], Any]]] = {
    Seal: lambda partition, step: partition.seal(step.transaction),
    WriteMarkers: _mark,
    DropBranch: lambda at, step: at.drop_branch(step.transaction, step.producer_id),
    Force: lambda partition, step: partition.force(),
    ReadBounds: lambda partition, step: partition.bounds(),
    ReadExtents: lambda partition, step: partition.spans(),
}
