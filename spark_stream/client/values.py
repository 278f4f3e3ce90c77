"""What the client's calls return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from spark_stream.consistency.lineage import Lineage
from spark_stream.errors import IsologError
from spark_stream.wire.cluster_messages import Problem
from spark_stream.wire.keys import DEFAULT_KEY, PARTITION_BY, split_names
from spark_stream.wire.schemas import is_default


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition as its leader sees it. ``error`` is None unless the partition cannot be used.

    ``leader``, ``replicas`` and ``isr`` are broker ids; there is no leader while nobody can lead.
    ``lag``: how many entries each follower lacks. A move brings ``adding`` and takes ``removing``
    away: both are among the ``replicas`` until it ends. In both is what it takes away that a move
    which it replaced has brought. ``high_watermark`` and ``last_stable_offset`` are None while a
    new leader does not know them yet. They, the other offsets, ``size`` and ``open_transactions``
    are None where there is an error.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    size: int | None = 0
    open_transactions: int | None = 0
    lag: Mapping[str, int] = field(default_factory=dict)
    adding: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    error: IsologError | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions; ``config`` has every setting, defaults included.

    ``schema_version``: how often its schema was altered. ``added``: the columns that it got so.
    ``warning``: what its maker should know, such as that it has one replica on a cluster.
    """

    name: str
    id: str
    schema: pa.Schema
    config: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
    replication_factor: int = 1
    schema_version: int = 0
    added: tuple[str, ...] = ()
    warning: str | None = None

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that place the topic's records; none where each batch takes its turn."""
        if is_default(self.schema):
            return DEFAULT_KEY
        return split_names(self.config.get(PARTITION_BY, ""))


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker of a cluster.

    ``state`` is "active", or "leaving" for one that was decommissioned and still has replicas.
    ``leaders``, ``replicas`` and ``in_sync`` say of how many partitions.
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


@dataclass(frozen=True, slots=True)
class ClusterDescription:
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


@dataclass(frozen=True, slots=True)
class Written:
    """An acknowledgement: ``count`` records are in the log, the first of them at ``offset``.

    A batch that its keys spread over partitions has its ``parts``, one a partition; ``partition``
    and ``offset`` are then those of its first record, and ``count`` is the sum. A batch without
    records has ``count`` and ``offset`` 0.

    Raises:
        ValueError: ``offset`` or ``count`` is negative. No broker acknowledges such a batch.
    """

    topic: str
    partition: int
    offset: int
    count: int = 1
    parts: tuple[Written, ...] = ()

    def __post_init__(self) -> None:
        if self.offset < 0 or self.count < 0:
            raise ValueError(f"{self.count} records cannot be written at offset {self.offset}")


@dataclass(frozen=True, slots=True)
class Branch:
    """The identity that a producer has in transaction ``number`` of its transactional id."""

    transactional_id: str
    number: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionPartition:
    """A partition a transaction wrote to; ``first_offset`` while it is open there."""

    topic: str
    partition: int
    first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id with its present or last transaction. Times in ms since the epoch.

    ``state``: empty, open, committing, aborting, committed or aborted. ``number`` is -1 before the
    first transaction, ``committed_batch`` -1 where no sink's batch was committed.
    """

    transactional_id: str
    state: str
    number: int
    producer_id: int
    epoch: int
    query: str
    branches: tuple[int, ...]
    partitions: tuple[TransactionPartition, ...]
    timeout_ms: int
    began_ms: int
    deadline_ms: int
    committed_batch: int


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """A sink: its id, and the query that writes under it. Times in ms since the epoch.

    ``state`` is that of its last transaction, or ``expired``: its id was not used for long, and
    only its last committed batch is remembered. ``committed_batch`` is -1 where none was committed.
    """

    transactional_id: str
    query: str
    state: str
    committed_batch: int
    last_used_ms: int


class Record(NamedTuple):
    """A record of a default-schema topic, as :meth:`Consumer.records` gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """What a look-up of offsets found in a topic, by partition.

    ``lineages`` has those of ``offsets``; ``surviving`` up to which offset the log has what each
    lineage that was asked about tells of; ``uncommitted`` the partitions with records of aborted
    or open transactions in the ranges that were asked about. ``sizes`` has the stored bytes of
    the ranges that were asked about, and of the first record of each; ``reached`` how far a budget
    of bytes goes.
    """

    topic_id: str
    offsets: Mapping[int, int]
    epochs: Mapping[int, int]
    log_start_offsets: Mapping[int, int]
    log_end_offsets: Mapping[int, int]
    lineages: Mapping[int, Lineage] = field(default_factory=dict)
    surviving: Mapping[int, Mapping[Lineage, int]] = field(default_factory=dict)
    uncommitted: tuple[int, ...] = ()
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    reached: Mapping[int, int] = field(default_factory=dict)

    def of(self, partitions: Iterable[int]) -> PartitionOffsets:
        """What was found of these partitions."""
        wanted = set(partitions)
        parts: dict[str, Any] = {
            each.name: {n: at for n, at in getattr(self, each.name).items() if n in wanted}
            for each in fields(self)
            if each.name not in ("topic_id", "uncommitted")
        }
        return replace(self, **parts, uncommitted=tuple(n for n in self.uncommitted if n in wanted))


@dataclass(frozen=True, slots=True)
class ConsumedPartition:
    """Where a named consumer, or a query, reads on in a partition.

    ``end``: the bound of its isolation level now; None where the topic was deleted or made anew.
    """

    topic: str
    partition: int
    offset: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read."""
        return None if self.end is None else max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """What is known under a consumer's name; ``kind``: ``query`` (Spark's) or ``client``.

    Of a query: the ``isolation`` that it reads under, the topics of its ``selection``, how its
    first start was asked for (``starting``) and when it was, and when it last told how far it has
    come. Times are in ms since the epoch. A client's lag is counted up to the logs' ends.
    """

    name: str
    kind: str
    isolation: str | None
    selection: str | None
    starting: str | None
    started_ms: int | None
    recorded_ms: int | None
    partitions: tuple[ConsumedPartition, ...]

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read, as far as that is known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker's own account of itself; ``memory`` in bytes, without mapped files.

    ``flight``: the address at which it serves Flight; empty if it does not.
    ``checked_ms``: when the last look at all segments ended, in ms since the epoch; None:
    none has. ``damaged``: the first offset that is known to be damaged in each of its replicas
    that has damage, by ``"topic/partition"``.
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
    damaged: Mapping[str, int] = field(default_factory=dict)
