"""The calls about the cluster: its brokers, and the placement of replicas and leaders."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from spark_stream.access.rules import Operation, anybody, described, on_cluster
from spark_stream.structs import Name, PartitionField
from spark_stream.wire.messages import Call, Description, Message

ADMIN = Operation.ADMIN


class BrokerDescription(Description, kw_only=False):
    """A broker of a cluster.

    ``state`` is "active", or "leaving" for one that was decommissioned and still has replicas.
    ``leaders``, ``replicas`` and ``in_sync`` count its partitions: led, stored, and in sync.
    """

    id: str
    address: str
    release: str
    rack: str | None
    state: str
    alive: bool
    leaders: int
    replicas: int
    in_sync: int


class ProblemKind(StrEnum):
    """The kinds of problems in a cluster.

    Brokers do not send ``REFUSED_WRITES``. Clients find it in the status of each broker.
    """

    METADATA_LOST = "metadata_lost"
    METADATA_AWAY = "metadata_away"
    NO_LEADER = "no_leader"
    BELOW_MIN_ISR = "below_min_isr"
    UNDER_REPLICATED = "under_replicated"
    DEAD_BROKER = "dead_broker"
    CANNOT_LEAVE = "cannot_leave"
    REFUSED_WRITES = "refused_writes"


class Problem(Struct, frozen=True):
    """A problem of the cluster.

    ``count``: the number of partitions or brokers that have it. ``names``: the first twenty of
    them, without partitions of topics that the caller may not describe.
    """

    kind: ProblemKind
    message: str
    count: int
    names: tuple[str, ...] = ()


class ClusterDescription(Description, kw_only=False):
    """A cluster.

    ``controller`` is the id of the broker that elects leaders. ``without_leader`` counts partitions
    that are unavailable at the moment, ``under_replicated`` those with replicas that are not in
    sync, ``moving`` those whose replicas are moving to other brokers. ``problems``: the worst
    first. If there is any, `isolog cluster status` ends with exit code 1.
    """

    cluster_id: str
    controller: str | None
    brokers: tuple[BrokerDescription, ...]
    topics: int
    partitions: int
    without_leader: int
    under_replicated: int
    moving: int
    problems: tuple[Problem, ...] = ()


class DescribeCluster(
    Call[ClusterDescription], name="describe-cluster", needs=on_cluster(Operation.DESCRIBE)
):
    """Describe the brokers, the number of partitions in each state, and the problems."""


class _Placement(Message):
    """The brokers of partitions, the preferred leader first."""

    topic: Name
    partitions: dict[PartitionField, list[str]] = {}


class MoveReplicas(
    _Placement, Call[None], name="move-replicas", needs=on_cluster(ADMIN), once=True
):
    """Begin to move the replicas of partitions to these brokers.

    A move continues by itself. It ends when all of these replicas are in sync.
    """


class CancelMoves(_Placement, Call[None], name="cancel-moves", needs=on_cluster(ADMIN), once=True):
    """Cancel the moves of a topic's partitions, by default of all. Only their numbers count.

    The replicas that the moves had added are removed.
    """


class Elected(Message):
    """The number of leaderships that moved, and of preferred leaders that are not in sync."""

    elected: int
    not_in_sync: int


class ElectPreferred(Call[Elected], name="elect-preferred", needs=on_cluster(ADMIN), once=True):
    """Make the first replica of each partition its leader, by default in all topics.

    ``topic_ids``: only in the topics with these ids. Those of deleted topics have no effect.
    """

    topic: Name | None = None
    topic_ids: list[str] | None = None


class Decommission(Call[None], name="decommission", needs=on_cluster(ADMIN), once=True):
    """Begin to take a broker out of the cluster.

    It gets no new replicas, its replicas move to other brokers, and then it is removed.
    """

    broker: Name


class Recommission(Call[None], name="recommission", needs=on_cluster(ADMIN), once=True):
    """Cancel a decommission: the broker stays, and gets replicas again."""

    broker: Name


class RestoreMetadata(Call[None], name="restore-metadata", needs=on_cluster(ADMIN)):
    """Write back a metadata store that was deleted while the broker had it open.

    The call replaces no file. The other brokers switch to the copy by themselves.
    """


class BrokerAddress(Message):
    """A registered broker, which may have died."""

    id: str
    address: str


class BrokerList(Message):
    """The brokers of the cluster."""

    brokers: list[BrokerAddress]


class ListBrokers(Call[BrokerList], name="list-brokers", needs=anybody):
    """List the registered brokers, alive or dead."""


class PrincipalUse(Description):
    """A principal's use of a broker, and the delay by its quota."""

    connections: int
    write_delayed_s: float
    read_delayed_s: float


class RolledBack(Description, kw_only=False):
    """Records that a broker's replica removed, because its new leader did not have them.

    Those are the offsets ``start`` to ``end - 1``. ``leader_epoch``: that of the leader.
    ``were_committed``: some were below the high watermark. Only an unclean election loses those.
    """

    topic: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    at_ms: int
    were_committed: bool = False


class BrokerStatus(Description, kw_only=False):
    """The status that a broker reports.

    Fields that the caller may not see are empty.

    Attributes:
        version: Its release of isolog.
        pid: The id of its process.
        address: Its address for clients, ``host:port``.
        directory: The directory of its logs.
        cluster_id: The id of the cluster.
        topics: The number of topics.
        partitions: The number of partitions.
        uptime_s: Seconds since its start.
        memory: Bytes of memory, without mapped files.
        broker_id: The id of the broker.
        flight: The address of its Arrow Flight facade, empty without one.
        checked_ms: The end of the last scrubbing of all segments, in ms since 1970.
        damaged: The first damaged offset of its replicas, by ``"topic/partition"``.
        refused: The code of the last error (such as ``DISK_FULL``) of replicas that refuse writes,
            by ``"topic/partition"``.
        principal: The principal of the caller.
        principals: The connected principals, and those that a quota has delayed since its start.
        log_bytes: The stored bytes of its replicas.
        disk_free: The free bytes of the disk with its directory.
        disk_total: The bytes of that disk.
        rolled_back: The ranges of records that its replicas removed after failovers since its
            start: the last 16 of each replica.
    """

    version: str
    pid: int
    address: str
    directory: str
    cluster_id: str
    topics: int
    partitions: int
    uptime_s: float
    memory: int
    broker_id: str = ""
    flight: str = ""
    checked_ms: int | None = None
    damaged: dict[str, int] = {}
    refused: dict[str, str] = {}
    principal: str = ""
    principals: dict[str, PrincipalUse] = {}
    log_bytes: int = 0
    disk_free: int = 0
    disk_total: int = 0
    rolled_back: tuple[RolledBack, ...] = ()


class GetStatus(Call[BrokerStatus], name="status", needs=described):
    """Report the broker's own status."""
