"""The control messages about the cluster: its brokers, and where replicas and leaders are to be."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from spark_stream.structs import Name, PartitionField
from spark_stream.wire.messages import Description, Message


class BrokerDescription(Description, kw_only=False):
    """A broker of a cluster.

    ``state`` is "active", or "leaving" for one that was decommissioned and still has replicas.
    ``leaders``, ``replicas`` and ``in_sync`` count its partitions: led, kept, and in sync.
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
    """Something that is amiss.

    ``count``: how many partitions or brokers have it. ``names``: the first twenty of them, without
    partitions of topics that the caller may not describe.
    """

    kind: ProblemKind
    message: str
    count: int
    names: tuple[str, ...] = ()


class ClusterDescription(Description, kw_only=False):
    """A cluster.

    ``controller`` is the id of the broker that elects leaders. ``without_leader`` counts partitions
    that nobody can use at the moment, ``under_replicated`` those with replicas that are not in
    sync, ``moving`` those whose replicas are on their way to other brokers. ``problems``: what is
    amiss, the worst first; where there is any, `isolog cluster status` ends with exit code 1.
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


class MoveReplicas(Message):
    """The brokers on which each partition is to be, the preferred leader first."""

    topic: Name
    partitions: dict[PartitionField, list[str]] = {}


class ElectPreferred(Message):
    """Lets the first replica of each partition lead; ``topic`` None: of all topics."""

    topic: Name | None = None


class Elected(Message):
    """``elected``: leaderships that moved; ``not_in_sync``: preferred leaders that cannot lead."""

    elected: int
    not_in_sync: int


class NamedBroker(Message):
    """The broker an action is about."""

    broker: Name
