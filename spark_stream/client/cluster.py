"""The cluster with its problems, and the repair of its metadata."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import ask_each
from spark_stream.errors import InvalidRequest, IsologError, MetadataLost, UnknownBroker
from spark_stream.wire.cluster_messages import (
    BrokerStatus,
    ClusterDescription,
    Decommission,
    DescribeCluster,
    GetStatus,
    Problem,
    ProblemKind,
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


def inspect_cluster(
    connection: ClusterConnection,
) -> tuple[ClusterDescription, dict[str, BrokerStatus]]:
    """Return the cluster with all its problems, and the status of each broker that answers."""
    found = connection.call(DescribeCluster())
    links = {each.id: each.address for each in found.brokers if each.alive}
    statuses = ask_each(connection, links, GetStatus())
    return with_refusals(found, statuses), statuses


def restore_metadata(connection: ClusterConnection) -> None:
    """Have the brokers write back a deleted metadata store; wait until all of them use it.

    Raises:
        InvalidRequest: Nothing is missing, or another file is in its place.
        MetadataLost: Running brokers do not use what was written back.
    """
    connection.call(RestoreMetadata())
    deadline = time.monotonic() + _TAKEN_S
    while reasons := _without_store(connection):
        if time.monotonic() > deadline:
            raise MetadataLost(
                "a broker has written the metadata store back, but others do not use it: "
                + "; ".join(f"broker {each}: {why}" for each, why in reasons.items()),
                hint="See their log files. A broker that has stopped must be started again.",
            )
        time.sleep(_TAKEN_PAUSE_S)


def _without_store(connection: ClusterConnection) -> dict[str, str]:
    """Return the running brokers that refuse changes or do not answer, each with its reason."""
    reasons = {}
    for broker in connection.call(DescribeCluster()).brokers:
        if not broker.alive:
            continue
        link = connection.to(broker.id, broker.address)
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


def checked_broker(broker: str | int) -> str:
    """Return the id of a broker, or raise UnknownBroker if no broker can have it."""
    try:
        return Decommission.of(broker=str(broker)).broker
    except InvalidRequest:
        raise UnknownBroker(f"there is no broker {str(broker)!r}") from None
