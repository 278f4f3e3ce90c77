"""Requests about the cluster: its brokers, and the placement of replicas and leaders."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import ask_each
from spark_stream.client.topics import checked_topic
from spark_stream.errors import InvalidRequest, IsologError, MetadataLost, UnknownBroker
from spark_stream.wire.cluster_messages import (
    BrokerStatus,
    CancelMoves,
    ClusterDescription,
    Decommission,
    DescribeCluster,
    ElectPreferred,
    GetStatus,
    MoveReplicas,
    Problem,
    ProblemKind,
    Recommission,
    RestoreMetadata,
)

_TAKEN_S: Final = 10.0  # brokers check many times a second
_TAKEN_PAUSE_S: Final = 0.1
_NAMES_MAX: Final = 20
_OF_PARTITIONS: Final = (
    ProblemKind.NO_LEADER,
    ProblemKind.BELOW_MIN_ISR,
    ProblemKind.UNDER_REPLICATED,
)
"""The problems of partitions, which a disk may cause."""


class ClusterClient:
    """The cluster of a connection; any of its brokers can answer."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    def describe(self) -> ClusterDescription:
        """Return the cluster as it is now."""
        return self._connection.call(DescribeCluster())

    def inspect(self) -> tuple[ClusterDescription, dict[str, BrokerStatus]]:
        """Return the cluster with all its problems, and the status of each broker that answers."""
        found = self.describe()
        links = {each.id: each.address for each in found.brokers if each.alive}
        statuses = ask_each(self._connection, links, GetStatus())
        return with_refusals(found, statuses), statuses

    def move_replicas(self, topic: str, partitions: Mapping[int, Sequence[str | int]]) -> None:
        """Begin to move the replicas of these partitions."""
        moves = {number: [str(each) for each in brokers] for number, brokers in partitions.items()}
        asked = MoveReplicas.of(topic=checked_topic(topic), partitions=moves)
        self._connection.call(asked)

    def cancel_moves(self, topic: str) -> None:
        """Cancel the moves of the topic's partitions that are under way."""
        asked = CancelMoves.of(topic=checked_topic(topic))
        self._connection.call(asked)

    def elect_preferred_leaders(self, topic: str | None) -> int:
        """Make preferred leaders lead; return how many partitions changed their leader."""
        asked = ElectPreferred.of(topic=None if topic is None else checked_topic(topic))
        return self._connection.call(asked).elected

    def decommission(self, broker: str | int) -> None:
        """Begin to take the broker out of the cluster."""
        self._connection.call(Decommission(broker=_checked_broker(broker)))

    def recommission(self, broker: str | int) -> None:
        """Cancel a decommission."""
        self._connection.call(Recommission(broker=_checked_broker(broker)))

    def restore_metadata(self) -> None:
        """Have the brokers write back a deleted metadata store; wait until all of them use it.

        Raises:
            InvalidRequest: Nothing is missing, or another file is in its place.
            MetadataLost: Running brokers do not use what was written back.
        """
        self._connection.call(RestoreMetadata())
        deadline = time.monotonic() + _TAKEN_S
        while reasons := self._without_store():
            if time.monotonic() > deadline:
                raise MetadataLost(
                    "a broker has written the metadata store back, but others do not use it: "
                    + "; ".join(f"broker {each}: {why}" for each, why in reasons.items()),
                    hint="See their log files. A broker that has stopped must be started again.",
                )
            time.sleep(_TAKEN_PAUSE_S)

    def _without_store(self) -> dict[str, str]:
        """Return the running brokers that refuse changes or do not answer, each with its reason."""
        reasons = {}
        for broker in self.describe().brokers:
            if not broker.alive:
                continue
            link = self._connection.to(broker.id, broker.address)
            try:
                facts = link.call(DescribeCluster(), _TAKEN_S)
            except IsologError as error:
                reasons[broker.id] = error.message
                continue
            for problem in facts.problems:
                if problem.kind == ProblemKind.METADATA_LOST:
                    reasons[broker.id] = problem.message
        return reasons


def disk_fault(broker: str, code: str, replicas: int) -> str:
    """Return the fault of a broker's disk, by the error code of the writes that it refused."""
    fault = "is full" if code == "DISK_FULL" else f"fails ({code})"
    what = "1 replica refuses" if replicas == 1 else f"{replicas} replicas refuse"
    return f"the disk of broker {broker} {fault}: {what} writes"


def with_refusals(
    cluster: ClusterDescription, statuses: Mapping[str, BrokerStatus]
) -> ClusterDescription:
    """Return the cluster with a problem for each disk that refuses writes, before its effects."""
    disks = []
    for broker, status in sorted(statuses.items()):
        for code in sorted(set(status.refused.values())):
            places = sorted(place for place, each in status.refused.items() if each == code)
            text = disk_fault(broker, code, len(places))
            named = tuple(places[:_NAMES_MAX])
            disks.append(Problem(ProblemKind.REFUSED_WRITES, text, len(places), named))
    causes = [each for each in cluster.problems if each.kind not in _OF_PARTITIONS]
    effects = [each for each in cluster.problems if each.kind in _OF_PARTITIONS]
    return replace(cluster, problems=(*causes, *disks, *effects)) if disks else cluster


def _checked_broker(broker: str | int) -> str:
    try:
        return Decommission.of(broker=str(broker)).broker
    except InvalidRequest:
        raise UnknownBroker(f"there is no broker {str(broker)!r}") from None
