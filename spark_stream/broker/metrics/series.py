"""All series of a broker: their names, kinds, meanings and labels, and how each is read.

To add a series, add a field to a group, read it in ``read``, and run `make docs`.

A group with a label for topics, partitions, principals or transactions is ``detailed``: it is shown
at `/metrics/all` only. Sinks are few, and shown at both. So is the one transaction that holds
readers back the longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import pyarrow as pa

from spark_stream.broker.metrics.scrape import Scrape
from spark_stream.counting import Distribution, Place
from spark_stream.environment import VERSION
from spark_stream.figures import (
    ByLabels,
    Distributions,
    Figures,
    Labels,
    Subject,
    counter,
    gauge,
    histogram,
)
from spark_stream.wire.cluster_messages import ProblemKind

_PLACE: Final = ("topic", "partition")


class ClusterFigures(Figures[Scrape], subject=Subject.CLUSTER):
    """The brokers, topics and partitions of the cluster."""

    brokers: int = gauge("Registered brokers")
    brokers_alive: int = gauge(
        "Brokers that renew their leases. While this broker cannot renew its own: brokers that"
        " answer it"
    )
    topics: int = gauge("Topics")
    partitions: int = gauge("Partitions")
    partitions_without_leader: int = gauge(
        "Partitions without a leader that is alive and holds its lease, or its followers' promises:"
        " they can be neither read nor written"
    )
    partitions_below_min_insync: int = gauge(
        "Partitions with fewer in-sync replicas than `min.insync.replicas`: writes that wait for"
        " replicas fail"
    )
    partitions_under_replicated: int = gauge("Partitions with replicas that are not in sync")
    partitions_moving: int = gauge("Partitions whose replicas move")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        found = scrape.cluster
        return cls(
            brokers=len(found.brokers),
            brokers_alive=sum(each.alive for each in found.brokers),
            topics=found.topics,
            partitions=found.partitions,
            partitions_without_leader=found.without_leader,
            partitions_below_min_insync=scrape.problems(ProblemKind.BELOW_MIN_ISR),
            partitions_under_replicated=found.under_replicated,
            partitions_moving=found.moving,
        )


class BrokerFigures(Figures[Scrape], subject=Subject.BROKER):
    """The state of the broker and its replicas."""

    broker_info: ByLabels = gauge(
        "Always 1; the labels say which broker this is", "broker", "version", "rack", "cluster"
    )
    ready: bool = gauge("1 if the broker is ready, as at `/health/ready`")
    lease_held: bool = gauge(
        "1 if the broker's lease lasts. At 0 it leads only what its followers have promised it"
    )
    controller: bool = gauge("1 if the broker is the controller")
    leaders: int = gauge("Partitions that the broker leads")
    replicas: int = gauge("Replicas that the broker has open")
    replicas_damaged: int = gauge("Replicas with damage that could not be healed yet")
    replicas_refusing_writes: int = gauge(
        "Replicas whose logs refuse writes: the disk is full, or has failed"
    )
    elections: ByLabels = counter(
        "Times that the broker began a leader epoch; `unclean`: it was not in sync, and records"
        " may be lost",
        "kind",
    )
    isr_changes: ByLabels = counter(
        "Changes of the in-sync replicas of partitions that the broker leads: `shrink` or `expand`",
        "kind",
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        me, counts = scrape.host.broker_id, scrape.counts
        cluster_id = scrape.here.facts.cluster_id
        return cls(
            broker_info={(me, VERSION, scrape.broker.rack, cluster_id): 1},
            ready=scrape.broker.problem() is None,
            lease_held=scrape.broker.holds_lease(),
            controller=scrape.cluster.controller == me,
            leaders=len(scrape.led),
            replicas=len(scrape.replicas),
            replicas_damaged=sum(each.log.hole is not None for each in scrape.replicas),
            replicas_refusing_writes=sum(
                each.fitness.trouble is not None for each in scrape.replicas
            ),
            elections=_by_name(counts.elections.read()),
            isr_changes=_by_name(counts.isr_changes.read()),
        )


class TrafficFigures(Figures[Scrape], subject=Subject.TRAFFIC):
    """The traffic of all replicas since the start of the broker."""

    append_batches: int = counter("Batches that producers have appended")
    append_records: int = counter("Records that producers have appended")
    append_bytes: int = counter("Bytes that producers have appended")
    fetch_batches: int = counter("Batches that readers have fetched (mapped files count too)")
    fetch_records: int = counter("Records that readers have fetched (mapped files count too)")
    fetch_bytes: int = counter("Bytes that readers have fetched (mapped files count too)")
    replicate_batches: int = counter("Batches that this broker has fetched as a follower")
    replicate_records: int = counter("Records that this broker has fetched as a follower")
    replicate_bytes: int = counter("Bytes that this broker has fetched as a follower")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        _, total = scrape.traffic
        return cls(
            append_batches=total.appended.batches,
            append_records=total.appended.records,
            append_bytes=total.appended.bytes,
            fetch_batches=total.fetched.batches,
            fetch_records=total.fetched.records,
            fetch_bytes=total.fetched.bytes,
            replicate_batches=total.replicated.batches,
            replicate_records=total.replicated.records,
            replicate_bytes=total.replicated.bytes,
        )


class ReplicaTraffic(Figures[Scrape], subject=Subject.TRAFFIC, detailed=True):
    """The traffic of each replica."""

    partition_append_batches: ByLabels = counter("Appended batches, by replica", *_PLACE)
    partition_append_records: ByLabels = counter("Appended records, by replica", *_PLACE)
    partition_append_bytes: ByLabels = counter("Appended bytes, by replica", *_PLACE)
    partition_fetch_batches: ByLabels = counter("Fetched batches, by replica", *_PLACE)
    partition_fetch_records: ByLabels = counter("Fetched records, by replica", *_PLACE)
    partition_fetch_bytes: ByLabels = counter("Fetched bytes, by replica", *_PLACE)
    partition_replicate_batches: ByLabels = counter("Replicated batches, by replica", *_PLACE)
    partition_replicate_records: ByLabels = counter("Replicated records, by replica", *_PLACE)
    partition_replicate_bytes: ByLabels = counter("Replicated bytes, by replica", *_PLACE)

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        found = [(_labels(place), each) for place, each in scrape.traffic[0].items()]
        return cls(
            partition_append_batches={at: each.appended.batches for at, each in found},
            partition_append_records={at: each.appended.records for at, each in found},
            partition_append_bytes={at: each.appended.bytes for at, each in found},
            partition_fetch_batches={at: each.fetched.batches for at, each in found},
            partition_fetch_records={at: each.fetched.records for at, each in found},
            partition_fetch_bytes={at: each.fetched.bytes for at, each in found},
            partition_replicate_batches={at: each.replicated.batches for at, each in found},
            partition_replicate_records={at: each.replicated.records for at, each in found},
            partition_replicate_bytes={at: each.replicated.bytes for at, each in found},
        )


class LatencyFigures(Figures[Scrape], subject=Subject.LATENCY):
    """Latencies of calls and streams, and errors."""

    append_seconds: Distributions = histogram(
        "From when a batch is decoded until it is answered, by the producer's isolation",
        "isolation",
    )
    fetch_seconds: Distribution = histogram(
        "The time that a fetch spends on reading the log, without waits for records, for its reader"
        " or for a quota"
    )
    commit_seconds: Distribution = histogram("Commits of transactions")
    cut_seconds: Distribution = histogram("Searches for an atomic cut")
    refused: ByLabels = counter("Requests and batches that got an error, by its code", "code")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        counts = scrape.counts
        return cls(
            append_seconds={
                (level.value,): found.read() for level, found in counts.appends.items()
            },
            fetch_seconds=counts.fetches.read(),
            commit_seconds=counts.actions["commit-transaction"].read(),
            cut_seconds=counts.actions["atomic-cut"].read(),
            refused=_by_name(counts.refused.read()),
        )


class ActionLatencies(Figures[Scrape], subject=Subject.LATENCY, detailed=True):
    """Latencies of calls, by kind."""

    action_seconds: Distributions = histogram("Every kind of action of clients", "action")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        found = scrape.counts.actions
        return cls(action_seconds={(name,): each.read() for name, each in found.items()})


class TransactionFigures(Figures[Scrape], subject=Subject.TRANSACTIONS):
    """Open transactions, and records that readers do not get yet."""

    transactions_open: int = gauge(
        "Open transactions that this broker looks after (half a second old at most)"
    )
    transaction_oldest_seconds: float = gauge(
        "For how long the oldest of them has been open; 0 without any"
    )
    lso_held_back_records: int = gauge(
        "Records between LSO and high watermark: replicated, and held back by transactions"
    )
    lso_holder_seconds: ByLabels = gauge(
        "Seconds since the start of the oldest transaction that holds readers back in partitions"
        " that the broker leads. The labels name it and one of these partitions. One series at"
        " most, and only after a minute",
        "transactional_id",
        *_PLACE,
    )
    unreplicated_records: int = gauge(
        "Records between high watermark and log end: not yet on all in-sync replicas"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        bounds = [each for _, each in scrape.led.values()]
        return cls(
            transactions_open=len(scrape.open_transactions),
            transaction_oldest_seconds=max(
                (seconds for _, seconds in scrape.open_transactions), default=0
            ),
            lso_held_back_records=sum(
                each.high_watermark - each.last_stable_offset for each in bounds
            ),
            lso_holder_seconds=scrape.holder,
            unreplicated_records=sum(each.log_end_offset - each.high_watermark for each in bounds),
        )


class BoundsOfPartitions(Figures[Scrape], subject=Subject.TRANSACTIONS, detailed=True):
    """The age of each open transaction, and the bounds of each partition that the broker leads."""

    transaction_open_seconds: ByLabels = gauge(
        "For how long each open transaction has been open", "transactional_id"
    )
    partition_log_start_offset: ByLabels = gauge(
        "Log start, of partitions that the broker leads", *_PLACE
    )
    partition_last_stable_offset: ByLabels = gauge("LSO, of the same", *_PLACE)
    partition_high_watermark: ByLabels = gauge("High watermark, of the same", *_PLACE)
    partition_log_end_offset: ByLabels = gauge("Log end (LEO), of the same", *_PLACE)

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        led = [(_labels(place), bounds) for place, (_, bounds) in scrape.led.items()]
        return cls(
            transaction_open_seconds={
                (each.transactional_id,): age for each, age in scrape.open_transactions
            },
            partition_log_start_offset={at: int(each.log_start_offset) for at, each in led},
            partition_last_stable_offset={at: int(each.last_stable_offset) for at, each in led},
            partition_high_watermark={at: int(each.high_watermark) for at, each in led},
            partition_log_end_offset={at: int(each.log_end_offset) for at, each in led},
        )


class FollowerFigures(Figures[Scrape], subject=Subject.REPLICATION):
    """The greatest lag of each follower."""

    follower_lag_entries: ByLabels = gauge(
        "Entries (batches and markers) that a follower lacks, in the partition that the broker"
        " leads where these are most. A follower that is away has none",
        "follower",
    )
    follower_lag_seconds: ByLabels = gauge(
        "For how long a follower has lacked the first of them, likewise", "follower"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        entries: dict[Labels, float] = {}
        seconds: dict[Labels, float] = {}
        for each in scrape.followers:
            key = (each.follower,)
            entries[key] = max(entries.get(key, 0), each.entries)
            seconds[key] = max(seconds.get(key, 0), each.seconds)
        return cls(follower_lag_entries=entries, follower_lag_seconds=seconds)


class FollowersOfPartitions(Figures[Scrape], subject=Subject.REPLICATION, detailed=True):
    """The lag of each follower in each partition."""

    partition_follower_lag_entries: ByLabels = gauge(
        "Entries that a follower lacks, by partition", *_PLACE, "follower"
    )
    partition_follower_lag_seconds: ByLabels = gauge(
        "For how long a follower has lacked the first of them, by partition", *_PLACE, "follower"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        found = [((*_labels(each.place), each.follower), each) for each in scrape.followers]
        return cls(
            partition_follower_lag_entries={key: each.entries for key, each in found},
            partition_follower_lag_seconds={key: each.seconds for key, each in found},
        )


class DiskFigures(Figures[Scrape], subject=Subject.DISK):
    """The disk, the logs on it, and the search for damage."""

    disk_size_bytes: int = gauge("Size of the directory's file system")
    disk_free_bytes: int = gauge("Free bytes of the directory's file system")
    log_bytes: int = gauge("Bytes of all logs of the broker")
    segments: int = gauge("Segments of all logs of the broker")
    force_seconds: Distribution = histogram("Forces of files (fdatasync)")
    scrub_bytes: int = counter("Bytes that were read to find damage")
    scrub_damaged: int = counter("Damaged batches that the search for damage has found")
    scrub_end_timestamp_seconds: float = gauge(
        "When all segments had been read the last time; 0 if never since the start of the broker"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        free, size = scrape.disk
        scrub = scrape.here.scrub
        return cls(
            disk_size_bytes=size,
            disk_free_bytes=free,
            log_bytes=sum(size for size, _ in scrape.topics.values()),
            segments=sum(count for _, count in scrape.topics.values()),
            force_seconds=scrape.counts.forces.read(),
            scrub_bytes=scrub.read_bytes,
            scrub_damaged=scrub.damaged,
            scrub_end_timestamp_seconds=0 if scrub.last is None else scrub.last.ended_us / 1e6,
        )


class TopicSizes(Figures[Scrape], subject=Subject.DISK, detailed=True):
    """The size of each topic on the broker's disk."""

    topic_log_bytes: ByLabels = gauge("Bytes of the broker's logs, by topic", "topic")
    topic_segments: ByLabels = gauge("Segments of the broker's logs, by topic", "topic")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        return cls(
            topic_log_bytes={(name,): size for name, (size, _) in scrape.topics.items()},
            topic_segments={(name,): count for name, (_, count) in scrape.topics.items()},
        )


class LoadFigures(Figures[Scrape], subject=Subject.LOAD):
    """Memory, connections, streams, and delays by quotas."""

    batches_memory_bytes: int = gauge("Memory that batches take now")
    batches_memory_limit_bytes: int = gauge("`memory_bytes` of the broker")
    follower_cache_bytes: int = gauge("Memory that keeps batches for followers")
    quota_held_bytes: int = gauge("Bytes from clients that wait for a quota")
    connections: int = gauge("Connections of clients and of other brokers")
    streams: int = gauge(
        "Streams that are open: of appends, of fetches, of followers, and calls under way"
    )
    fetches_waiting: int = gauge("Fetches that wait for records")
    throttled_seconds: ByLabels = counter(
        "For how long quotas have delayed clients: `write` or `read`", "operation"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        broker = scrape.broker
        return cls(
            batches_memory_bytes=pa.total_allocated_bytes(),
            batches_memory_limit_bytes=broker.memory_bytes,
            follower_cache_bytes=scrape.host.recent_bytes,
            quota_held_bytes=scrape.here.quotas.held_bytes,
            connections=sum(each.connections for each in broker.servers),
            streams=broker.activity.calls,
            fetches_waiting=broker.serving.fetches_waiting,
            throttled_seconds=scrape.throttled_by_operation(),
        )


class PrincipalFigures(Figures[Scrape], subject=Subject.LOAD, detailed=True):
    """Delays by quotas, by principal."""

    principal_throttled_seconds: ByLabels = counter(
        "For how long quotas have delayed clients, by principal", "principal", "operation"
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        return cls(principal_throttled_seconds=scrape.throttled)


class StoreFigures(Figures[Scrape], subject=Subject.STORE):
    """Requests to the metadata store."""

    store_reachable: bool = gauge(
        "0 while the metadata store does not answer, takes no changes, or has lost changes"
    )
    store_seconds: Distributions = histogram(
        "Requests to the metadata store: `read` or `write`", "operation"
    )
    store_errors: ByLabels = counter("Requests to the metadata store that failed", "operation")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        counts = scrape.counts
        lost = scrape.problems(ProblemKind.METADATA_AWAY, ProblemKind.METADATA_LOST)
        return cls(
            store_reachable=not lost,
            store_seconds={
                ("read",): counts.store_reads.read(),
                ("write",): counts.store_writes.read(),
            },
            store_errors=_by_name(counts.store_errors.read()),
        )


class ConsumerFigures(Figures[Scrape], subject=Subject.CONSUMERS):
    """Named consumers, groups, queries and sinks."""

    consumer_lag_records: ByLabels = gauge(
        "Unread records of a named consumer, group or query, in partitions that the broker leads:"
        " up to the log end under `read_uncommitted` (and where the level is `unknown`), else up to"
        " the high watermark. Take `sum` over brokers",
        *("consumer", "kind", "isolation"),
    )
    consumer_held_back_records: ByLabels = gauge(
        "The records of this lag that its level does not return yet, because of an open"
        " transaction",
        *("consumer", "kind", "isolation"),
    )
    consumer_position_records: ByLabels = gauge(
        "The sum of its positions in the same partitions: it stands still if it reads nothing",
        *("consumer", "kind", "isolation"),
    )
    consumer_state: ByLabels = gauge(
        "Always 1. The label `state` of a named consumer, group or query is `running`,"
        " `catching_up`, `waiting_at_lso`, `stalled`, `stopped`, `empty` or `gone`. A broker counts"
        " the lag in partitions that it leads, so two brokers may show different states of a"
        " running reader. Take `max` over brokers",
        *("consumer", "kind", "state"),
    )
    group_lost_members: ByLabels = counter(
        "Members of a group that the broker removed because their sessions expired: they crashed or"
        " hung, and did not leave. Take `sum` over brokers",
        "consumer",
    )
    sink_committed_batch: ByLabels = gauge(
        "The last batch that a query's sink has committed; -1 before the first. Every broker shows"
        " it: take `max`",
        *("sink", "query"),
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        consumers = scrape.consumers
        return cls(
            consumer_lag_records={key: lag for key, (_, lag, _) in consumers.items()},
            consumer_held_back_records={key: held for key, (_, _, held) in consumers.items()},
            consumer_position_records={key: at for key, (at, _, _) in consumers.items()},
            consumer_state=scrape.states,
            group_lost_members=_by_name(scrape.counts.lost_members.read()),
            sink_committed_batch={
                (each.transactional_id, each.query): each.committed_batch for each in scrape.sinks
            },
        )


class ConsumersInPartitions(Figures[Scrape], subject=Subject.CONSUMERS, detailed=True):
    """The lag and the position of each named reader in each partition that the broker leads."""

    consumer_partition_lag_records: ByLabels = gauge(
        "The lag of a named consumer, group or query, by partition", "consumer", "kind", *_PLACE
    )
    consumer_partition_position: ByLabels = gauge(
        "Its position, by partition", "consumer", "kind", *_PLACE
    )

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        found = [
            ((each.consumer, each.kind, *_labels(each.place)), each) for each in scrape.consumed
        ]
        return cls(
            consumer_partition_lag_records={key: each.lag.records for key, each in found},
            consumer_partition_position={key: each.position for key, each in found},
        )


class LakeFigures(Figures[Scrape], subject=Subject.LAKES):
    """The progress of lakes, and the segments that wait for them."""

    lake_lag_records: ByLabels = gauge(
        "Offsets up to the last stable one, also of aborted records, that a lake's worker has not"
        " read back from its tables, in partitions that the broker leads. Take `sum` over brokers",
        "lake",
    )
    lake_report_age_seconds: ByLabels = gauge(
        "The time since a worker of the lake has reported its progress, or since the lake was"
        " created. A worker reports at least once a minute, or after each round",
        "lake",
    )
    lake_freshness_seconds: ByLabels = gauge("`freshness` of the lake", "lake")
    lake_stopped: ByLabels = gauge(
        "1 after the worker stopped for a reason that a retry does not mend, until the next round"
        " of a worker. `isolog lake list` shows the reason",
        "lake",
    )
    segments_held: int = gauge(
        "Segments past their local retention that the broker keeps, because a table of the topic"
        " lacks their records"
    )
    segments_held_bytes: int = gauge("Bytes of these segments")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        lakes, now_ms = scrape.host.view.now.lakes.values(), scrape.here.transactions.now_ms()
        held = scrape.held_back.values()
        return cls(
            lake_lag_records=scrape.lakes,
            lake_report_age_seconds={
                (each.name,): max(0, now_ms - (each.recorded_ms or each.created_ms)) / 1_000
                for each in lakes
            },
            lake_freshness_seconds={(each.name,): each.freshness_ms / 1_000 for each in lakes},
            lake_stopped={(each.name,): bool(each.stopped) for each in lakes},
            segments_held=sum(segments for segments, _ in held),
            segments_held_bytes=sum(size for _, size in held),
        )


class HeldTopics(Figures[Scrape], subject=Subject.LAKES, detailed=True):
    """The held segments of each topic."""

    topic_segments_held: ByLabels = gauge("These segments, by topic", "topic")
    topic_segments_held_bytes: ByLabels = gauge("Bytes of these segments, by topic", "topic")

    @classmethod
    def read(cls, scrape: Scrape) -> Self:
        held = scrape.held_back.items()
        return cls(
            topic_segments_held={(name,): segments for name, (segments, _) in held},
            topic_segments_held_bytes={(name,): size for name, (_, size) in held},
        )


GROUPS: Final[tuple[type[Figures[Scrape]], ...]] = (
    ClusterFigures, BrokerFigures, TrafficFigures, ReplicaTraffic, LatencyFigures, ActionLatencies,
    TransactionFigures, BoundsOfPartitions, FollowerFigures, FollowersOfPartitions, DiskFigures,
    TopicSizes, LoadFigures, PrincipalFigures, StoreFigures, ConsumerFigures,
    ConsumersInPartitions, LakeFigures, HeldTopics,
)  # fmt: skip
TABLE: Final = tuple(series for group in GROUPS for series in group.series())


def _labels(place: Place) -> Labels:
    return place[0], str(place[1])


def _by_name(counts: Mapping[str, int]) -> ByLabels:
    return {(name,): count for name, count in counts.items()}
