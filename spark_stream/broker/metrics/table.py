"""All series of a broker: the one place for their names, meanings, labels, and how each is read.

To add a series, add a row, and run `make docs`. Names end with their unit; those of counters end
with ``_total``. A series with a label for topics, partitions, principals or transactions is
``detailed``: it is shown at `/metrics/all` only. Sinks are few, and at both. So is the one
transaction that holds readers back the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Final, TypeAlias

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.metrics.scrape import Scrape
from spark_stream.counting import Amount, Distribution, TrafficAmounts
from spark_stream.environment import VERSION
from spark_stream.wire.cluster_messages import ProblemKind


class SeriesKind(StrEnum):
    """What Prometheus calls the type of a series."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Subject(Enum):
    """What a series is about; the order is that of the page."""

    CLUSTER = "The cluster, as this broker sees it (take `max`, not `sum`, over brokers)"
    BROKER = "The broker and its replicas"
    TRAFFIC = "Traffic"
    LATENCY = "Latency and errors"
    TRANSACTIONS = "Transactions, and what readers wait for"
    REPLICATION = "Replication"
    DISK = "Disk"
    LOAD = "Memory, connections, quotas"
    STORE = "Metadata store"
    CONSUMERS = "Consumers, queries and sinks"


Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = float | Distribution
Reading: TypeAlias = Sample | Mapping[Labels, Sample]


class Series(Struct, frozen=True):
    """One family of series. ``read`` returns one value, or values by the values of ``labels``."""

    subject: Subject
    name: str
    kind: SeriesKind
    meaning: str
    read: Callable[[Scrape], Reading]
    labels: Labels = ()
    detailed: bool = False


COUNTER, GAUGE, HISTOGRAM = SeriesKind.COUNTER, SeriesKind.GAUGE, SeriesKind.HISTOGRAM
CLUSTER, BROKER, TRAFFIC = Subject.CLUSTER, Subject.BROKER, Subject.TRAFFIC
LATENCY, TRANSACTIONS, REPLICATION = Subject.LATENCY, Subject.TRANSACTIONS, Subject.REPLICATION
DISK, LOAD, STORE, CONSUMERS = Subject.DISK, Subject.LOAD, Subject.STORE, Subject.CONSUMERS
_PLACE: Final = ("topic", "partition")


def _info(scrape: Scrape) -> Reading:
    facts, rack = scrape.here.facts, scrape.broker.rack
    return {(scrape.host.broker_id, VERSION, rack, facts.cluster_id): 1}


def _in_total(
    amount: Callable[[TrafficAmounts], Amount], what: Callable[[Amount], int]
) -> Callable[[Scrape], Reading]:
    return lambda scrape: what(amount(scrape.traffic[1]))


def _of_replicas(
    amount: Callable[[TrafficAmounts], Amount], what: Callable[[Amount], int]
) -> Callable[[Scrape], Reading]:
    return lambda scrape: {
        (topic, str(number)): what(amount(found))
        for (topic, number), found in scrape.traffic[0].items()
    }


def _bounds(what: str) -> Callable[[Scrape], Reading]:
    return lambda scrape: {
        (topic, str(number)): int(getattr(bounds, what))
        for (topic, number), (_, bounds) in scrape.led.items()
    }


def _traffic() -> list[Series]:
    """Return, for what is appended, fetched and replicated, the series in total and in detail."""
    whats: tuple[tuple[str, str, Callable[[TrafficAmounts], Amount]], ...] = (
        ("append", "that producers have appended", lambda found: found.appended),
        (
            "fetch",
            "that readers have fetched (mapped files count too)",
            lambda found: found.fetched,
        ),
        ("replicate", "that this broker has fetched as a follower", lambda found: found.replicated),
    )
    units: tuple[tuple[str, Callable[[Amount], int]], ...] = (
        ("batches", lambda amount: amount.batches),
        ("records", lambda amount: amount.records),
        ("bytes", lambda amount: amount.bytes),
    )
    found: list[Series] = []
    for what, whose, amount in whats:
        for unit, count in units:
            found.append(
                Series(
                    TRAFFIC,
                    f"isolog_{what}_{unit}_total",
                    COUNTER,
                    f"{unit.capitalize()} {whose}",
                    _in_total(amount, count),
                )
            )
            found.append(
                Series(
                    TRAFFIC,
                    f"isolog_partition_{what}_{unit}_total",
                    COUNTER,
                    f"The same, by replica of this broker: {unit}",
                    _of_replicas(amount, count),
                    _PLACE,
                    detailed=True,
                )
            )
    return found


TABLE: Final[tuple[Series, ...]] = (
    Series(CLUSTER, "isolog_brokers", GAUGE, "Registered brokers",
           lambda s: len(s.cluster.brokers)),
    Series(CLUSTER, "isolog_brokers_alive", GAUGE,
           "Brokers that renew their leases. While this broker cannot renew its own: brokers that"
           " answer it",
           lambda s: sum(each.alive for each in s.cluster.brokers)),
    Series(CLUSTER, "isolog_topics", GAUGE, "Topics", lambda s: s.cluster.topics),
    Series(CLUSTER, "isolog_partitions", GAUGE, "Partitions", lambda s: s.cluster.partitions),
    Series(CLUSTER, "isolog_partitions_without_leader", GAUGE,
           "Partitions without a leader that is alive and holds its lease, or its followers'"
           " promises: they can be neither read nor written",
           lambda s: s.cluster.without_leader),
    Series(CLUSTER, "isolog_partitions_below_min_insync", GAUGE,
           "Partitions with fewer in-sync replicas than `min.insync.replicas`: writes that wait"
           " for replicas fail",
           lambda s: s.problems(ProblemKind.BELOW_MIN_ISR)),
    Series(CLUSTER, "isolog_partitions_under_replicated", GAUGE,
           "Partitions with replicas that are not in sync",
           lambda s: s.cluster.under_replicated),
    Series(CLUSTER, "isolog_partitions_moving", GAUGE, "Partitions whose replicas move",
           lambda s: s.cluster.moving),
    Series(BROKER, "isolog_broker_info", GAUGE, "Always 1; the labels say which broker this is",
           _info, ("broker", "version", "rack", "cluster")),
    Series(BROKER, "isolog_ready", GAUGE, "1 if the broker is ready, as at `/health/ready`",
           lambda s: s.broker.problem() is None),
    Series(BROKER, "isolog_lease_held", GAUGE,
           "1 if the broker's lease lasts. At 0 it leads only what its followers have promised it",
           lambda s: s.broker.holds_lease()),
    Series(BROKER, "isolog_controller", GAUGE, "1 if the broker is the controller",
           lambda s: s.cluster.controller == s.host.broker_id),
    Series(BROKER, "isolog_leaders", GAUGE, "Partitions that the broker leads",
           lambda s: len(s.led)),
    Series(BROKER, "isolog_replicas", GAUGE, "Replicas that the broker has open",
           lambda s: len(s.replicas)),
    Series(BROKER, "isolog_replicas_damaged", GAUGE,
           "Replicas with damage that could not be healed yet",
           lambda s: sum(each.log.hole is not None for each in s.replicas)),
    Series(BROKER, "isolog_replicas_refusing_writes", GAUGE,
           "Replicas whose logs refuse writes: the disk is full, or has failed",
           lambda s: sum(each.fitness.trouble is not None for each in s.replicas)),
    Series(BROKER, "isolog_elections_total", COUNTER,
           "Times that the broker began a leader epoch; `unclean`: it was not in sync, and records"
           " may be lost",
           lambda s: {(kind,): count for kind, count in s.counts.elections.read().items()},
           ("kind",)),
    Series(BROKER, "isolog_isr_changes_total", COUNTER,
           "Changes of the in-sync replicas of partitions that the broker leads: `shrink` or"
           " `expand`",
           lambda s: {(kind,): count for kind, count in s.counts.isr_changes.read().items()},
           ("kind",)),
    *_traffic(),
    Series(LATENCY, "isolog_append_seconds", HISTOGRAM,
           "From when a batch is decoded until it is answered, by the producer's isolation",
           lambda s: {(level.value,): found.read() for level, found in s.counts.appends.items()},
           ("isolation",)),
    Series(LATENCY, "isolog_fetch_seconds", HISTOGRAM,
           "What a fetch spends on reading the log, without waits for records, for its reader or"
           " for a quota",
           lambda s: s.counts.fetches.read()),
    Series(LATENCY, "isolog_commit_seconds", HISTOGRAM, "Commits of transactions",
           lambda s: s.counts.actions["commit-transaction"].read()),
    Series(LATENCY, "isolog_cut_seconds", HISTOGRAM, "Searches for an atomic cut",
           lambda s: s.counts.actions["atomic-cut"].read()),
    Series(LATENCY, "isolog_action_seconds", HISTOGRAM, "Every kind of action of clients",
           lambda s: {(name,): found.read() for name, found in s.counts.actions.items()},
           ("action",), detailed=True),
    Series(LATENCY, "isolog_refused_total", COUNTER,
           "Requests and batches that got an error, by its code",
           lambda s: {(code,): count for code, count in s.counts.refused.read().items()},
           ("code",)),
    Series(TRANSACTIONS, "isolog_transactions_open", GAUGE,
           "Open transactions that this broker looks after (half a second old at most)",
           lambda s: len(s.open_transactions)),
    Series(TRANSACTIONS, "isolog_transaction_oldest_seconds", GAUGE,
           "For how long the oldest of them has been open; 0 without any",
           lambda s: max((seconds for _, seconds in s.open_transactions), default=0)),
    Series(TRANSACTIONS, "isolog_transaction_open_seconds", GAUGE, "The same, for each of them",
           lambda s: {(each.transactional_id,): age for each, age in s.open_transactions},
           ("transactional_id",), detailed=True),
    Series(TRANSACTIONS, "isolog_lso_held_back_records", GAUGE,
           "Records between LSO and high watermark: replicated, and held back by transactions",
           lambda s: sum(b.high_watermark - b.last_stable_offset for _, b in s.led.values())),
    Series(TRANSACTIONS, "isolog_lso_holder_seconds", GAUGE,
           "Seconds since the start of the oldest transaction that holds readers back in partitions"
           " that the broker leads. The labels name it and one of these partitions. One series at"
           " most, and only after a minute",
           lambda s: s.holder, ("transactional_id", *_PLACE)),
    Series(TRANSACTIONS, "isolog_unreplicated_records", GAUGE,
           "Records between high watermark and log end: not yet on all in-sync replicas",
           lambda s: sum(b.log_end_offset - b.high_watermark for _, b in s.led.values())),
    Series(TRANSACTIONS, "isolog_partition_log_start_offset", GAUGE,
           "Log start, of partitions that the broker leads", _bounds("log_start_offset"),
           _PLACE, detailed=True),
    Series(TRANSACTIONS, "isolog_partition_last_stable_offset", GAUGE, "LSO, of the same",
           _bounds("last_stable_offset"), _PLACE, detailed=True),
    Series(TRANSACTIONS, "isolog_partition_high_watermark", GAUGE, "High watermark, of the same",
           _bounds("high_watermark"), _PLACE, detailed=True),
    Series(TRANSACTIONS, "isolog_partition_log_end_offset", GAUGE, "Log end (LEO), of the same",
           _bounds("log_end_offset"), _PLACE, detailed=True),
    Series(REPLICATION, "isolog_follower_lag_entries", GAUGE,
           "Entries (batches and markers) that a follower lacks, in the partition that the broker"
           " leads where these are most. A follower that is away has none",
           lambda s: s.farthest_behind(lambda each: each.entries), ("follower",)),
    Series(REPLICATION, "isolog_follower_lag_seconds", GAUGE,
           "For how long a follower has lacked the first of them, likewise",
           lambda s: s.farthest_behind(lambda each: each.seconds), ("follower",)),
    Series(REPLICATION, "isolog_partition_follower_lag_entries", GAUGE,
           "Entries that a follower lacks, by partition",
           lambda s: {(*_place(each.place), each.follower): each.entries for each in s.followers},
           (*_PLACE, "follower"), detailed=True),
    Series(REPLICATION, "isolog_partition_follower_lag_seconds", GAUGE,
           "For how long a follower has lacked the first of them, by partition",
           lambda s: {(*_place(each.place), each.follower): each.seconds for each in s.followers},
           (*_PLACE, "follower"), detailed=True),
    Series(DISK, "isolog_disk_size_bytes", GAUGE, "Size of the directory's file system",
           lambda s: s.disk[1]),
    Series(DISK, "isolog_disk_free_bytes", GAUGE, "What is free of it", lambda s: s.disk[0]),
    Series(DISK, "isolog_log_bytes", GAUGE, "Bytes of all logs of the broker",
           lambda s: sum(size for size, _ in s.topics.values())),
    Series(DISK, "isolog_segments", GAUGE, "Segments of all logs of the broker",
           lambda s: sum(count for _, count in s.topics.values())),
    Series(DISK, "isolog_topic_log_bytes", GAUGE, "Bytes of the broker's logs, by topic",
           lambda s: {(name,): size for name, (size, _) in s.topics.items()},
           ("topic",), detailed=True),
    Series(DISK, "isolog_topic_segments", GAUGE, "Segments of the broker's logs, by topic",
           lambda s: {(name,): count for name, (_, count) in s.topics.items()},
           ("topic",), detailed=True),
    Series(DISK, "isolog_force_seconds", HISTOGRAM, "Forces of files (fdatasync)",
           lambda s: s.counts.forces.read()),
    Series(DISK, "isolog_scrub_bytes_total", COUNTER, "Bytes that were read to find damage",
           lambda s: s.here.scrub.read_bytes),
    Series(DISK, "isolog_scrub_damaged_total", COUNTER, "Damaged batches that this has found",
           lambda s: s.here.scrub.damaged),
    Series(DISK, "isolog_scrub_end_timestamp_seconds", GAUGE,
           "When all segments had been read the last time; 0 if never since the start",
           lambda s: 0 if s.here.scrub.last is None else s.here.scrub.last.ended_us / 1e6),
    Series(LOAD, "isolog_batches_memory_bytes", GAUGE, "Memory that batches take now",
           lambda s: pa.total_allocated_bytes()),
    Series(LOAD, "isolog_batches_memory_limit_bytes", GAUGE, "`memory_bytes` of the broker",
           lambda s: s.broker.memory_bytes),
    Series(LOAD, "isolog_follower_cache_bytes", GAUGE,
           "Memory that keeps batches for followers", lambda s: s.host.recent_bytes),
    Series(LOAD, "isolog_quota_held_bytes", GAUGE, "What clients have sent that waits for a quota",
           lambda s: s.here.quotas.held_bytes),
    Series(LOAD, "isolog_connections", GAUGE, "Connections of clients and of other brokers",
           lambda s: s.broker.connections()),
    Series(LOAD, "isolog_streams", GAUGE,
           "Streams that are open: of appends, of fetches, of followers, and calls under way",
           lambda s: s.broker.calls()),
    Series(LOAD, "isolog_fetches_waiting", GAUGE, "Fetches that wait for records",
           lambda s: s.broker.fetches_waiting()),
    Series(LOAD, "isolog_throttled_seconds_total", COUNTER,
           "For how long quotas have delayed clients: `write` or `read`",
           lambda s: s.throttled_by_operation(), ("operation",)),
    Series(LOAD, "isolog_principal_throttled_seconds_total", COUNTER, "The same, by principal",
           lambda s: s.throttled, ("principal", "operation"), detailed=True),
    Series(STORE, "isolog_store_reachable", GAUGE,
           "0 while the metadata store does not answer, takes no changes, or has lost changes",
           lambda s: not s.problems(ProblemKind.METADATA_AWAY, ProblemKind.METADATA_LOST)),
    Series(STORE, "isolog_store_seconds", HISTOGRAM,
           "Requests to the metadata store: `read` or `write`",
           lambda s: {("read",): s.counts.store_reads.read(),
                      ("write",): s.counts.store_writes.read()},
           ("operation",)),
    Series(STORE, "isolog_store_errors_total", COUNTER, "Those of them that failed",
           lambda s: {(kind,): count for kind, count in s.counts.store_errors.read().items()},
           ("operation",)),
    Series(CONSUMERS, "isolog_consumer_lag_records", GAUGE,
           "Unread records of a named consumer, group or query, in partitions that the broker"
           " leads: up to the log end under `read_uncommitted` (and where the level is `unknown`),"
           " else up to the high watermark. Take `sum` over brokers",
           lambda s: {key: lag for key, (_, lag, _) in s.consumers.items()},
           ("consumer", "kind", "isolation")),
    Series(CONSUMERS, "isolog_consumer_held_back_records", GAUGE,
           "The records of this lag that its level does not return yet, because of an open"
           " transaction",
           lambda s: {key: held for key, (_, _, held) in s.consumers.items()},
           ("consumer", "kind", "isolation")),
    Series(CONSUMERS, "isolog_consumer_position_records", GAUGE,
           "The sum of its positions in the same partitions: it stands still if it reads nothing",
           lambda s: {key: position for key, (position, _, _) in s.consumers.items()},
           ("consumer", "kind", "isolation")),
    Series(CONSUMERS, "isolog_consumer_state", GAUGE,
           "Always 1. The label `state` of a named consumer, group or query is `running`,"
           " `catching_up`, `waiting_at_lso`, `stalled`, `stopped`, `empty` or `gone`. A broker"
           " counts the lag in partitions that it leads, so two brokers may show different states"
           " of a running reader. Take `max` over brokers",
           lambda s: s.states, ("consumer", "kind", "state")),
    Series(CONSUMERS, "isolog_group_lost_members_total", COUNTER,
           "Members of a group that the broker removed because their sessions expired: they"
           " crashed or hung, and did not leave. Take `sum` over brokers",
           lambda s: {(name,): count for name, count in s.counts.lost_members.read().items()},
           ("consumer",)),
    Series(CONSUMERS, "isolog_consumer_partition_lag_records", GAUGE, "Its lag, by partition",
           lambda s: {(each.consumer, each.kind, *_place(each.place)): each.lag.records
                      for each in s.consumed},
           ("consumer", "kind", *_PLACE), detailed=True),
    Series(CONSUMERS, "isolog_consumer_partition_position", GAUGE, "Its position, by partition",
           lambda s: {(each.consumer, each.kind, *_place(each.place)): each.position
                      for each in s.consumed},
           ("consumer", "kind", *_PLACE), detailed=True),
    Series(CONSUMERS, "isolog_sink_committed_batch", GAUGE,
           "The last batch that a query's sink has committed; -1 before the first. Every broker"
           " shows it: take `max`",
           lambda s: {(each.transactional_id, each.query): each.committed_batch
                      for each in s.sinks},
           ("sink", "query")),
)  # fmt: skip


def _place(place: tuple[str, int]) -> Labels:
    return place[0], str(place[1])
