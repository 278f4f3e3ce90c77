"""Rates, trends and blocking transactions from consecutive samples of a cluster, without I/O.

A rate is computed from the last two samples, a trend from all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from spark_stream.cli.output.texts import broker_state
from spark_stream.client.trends import LagSample, LagTrend, sample_of, trend_of
from spark_stream.consistency.isolation import HOLDS_S, ReaderState
from spark_stream.wire.cluster_messages import ClusterDescription
from spark_stream.wire.consumer_messages import ConsumerDescription
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
from spark_stream.wire.transaction_messages import UNFINISHED, TransactionDescription


class ClusterSample(Struct, frozen=True):
    """A sample of a cluster.

    ``at``: seconds on a monotonic clock. ``now_ms``: ms since the epoch. ``denied``: the parts that
    the caller has no permission for. ``unavailable``: the parts that need the metadata store, while
    it is unavailable.
    """

    at: float
    now_ms: int
    cluster: ClusterDescription
    topics: tuple[TopicDescription, ...] = ()
    transactions: tuple[TransactionDescription, ...] = ()
    consumers: tuple[ConsumerDescription, ...] = ()
    denied: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()


class Flow(Struct, frozen=True):
    """Records and bytes written per second. None before the second sample, or if unknown."""

    records: float | None = None
    bytes: float | None = None


class BrokerLine(Struct, frozen=True):
    """A broker, with the rate of writes to its leaders."""

    id: str
    state: str
    leads: int
    replicas: int
    in_sync: int
    written: Flow


class TopicLine(Struct, frozen=True):
    """A topic. ``size``: bytes at the leaders that answer."""

    name: str
    partitions: int
    size: int
    written: Flow


class TransactionLine(Struct, frozen=True):
    """An unfinished transaction. ``held_back``: records that read_committed hides until its end."""

    transactional_id: str
    state: str
    age_s: float
    overdue: bool
    places: tuple[str, ...]
    held_back: int


class ConsumerLine(Struct, frozen=True):
    """A reader with its state, its lag in records, and the trend of the lag.

    ``waits_for``: the transactional ids that hold it back, if it waits at the LSO.
    """

    name: str
    kind: str
    isolation: str | None
    state: ReaderState
    lag: int | None
    held_back: int
    trend: LagTrend
    waits_for: tuple[str, ...] = ()


class ClusterFrame(Struct, frozen=True):
    """The contents of the view of a cluster.

    ``reader_problems``: readers that need an operator, and transactions that hold back readers.
    """

    now_ms: int
    cluster_id: str
    brokers_alive: int
    partitions: int
    written: Flow
    problems: tuple[str, ...]
    brokers: tuple[BrokerLine, ...]
    topics: tuple[TopicLine, ...]
    transactions: tuple[TransactionLine, ...]
    consumers: tuple[ConsumerLine, ...]
    denied: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    reader_problems: tuple[str, ...] = ()


Place = tuple[str, int]
"""A topic's id and a partition."""


def frame_of(samples: Sequence[ClusterSample]) -> ClusterFrame:
    """Return the view of these samples. The last one is the latest, and there is at least one."""
    now = samples[-1]
    before = samples[-2] if len(samples) > 1 else None
    flows = {} if before is None else _flows(before, now)
    cluster = now.cluster
    transactions, consumers = _transaction_lines(now), _consumer_lines(samples)
    return ClusterFrame(
        now_ms=now.now_ms,
        cluster_id=cluster.cluster_id,
        brokers_alive=sum(each.alive for each in cluster.brokers),
        partitions=cluster.partitions,
        written=_sum_of(flows.values()),
        problems=tuple(each.message for each in cluster.problems),
        brokers=tuple(_broker_lines(now, flows)),
        topics=tuple(_topic_lines(now, flows)),
        transactions=tuple(transactions),
        consumers=tuple(consumers),
        denied=now.denied,
        unavailable=now.unavailable,
        reader_problems=tuple(_reader_problems(transactions, consumers)),
    )


def _reader_problems(
    transactions: Iterable[TransactionLine], consumers: Iterable[ConsumerLine]
) -> Iterator[str]:
    for state in (ReaderState.GONE, ReaderState.STALLED):
        names = sorted(each.name for each in consumers if each.state is state)
        if names:
            yield f"readers {state.value}: {', '.join(names)}"
    for each in transactions:
        if each.held_back and each.age_s >= HOLDS_S:
            yield (
                f"transaction {each.transactional_id} is {each.state}, and holds"
                f" back {each.held_back:,} records"
            )


def _partitions(sample: ClusterSample) -> Iterator[tuple[Place, PartitionDescription]]:
    for topic in sample.topics:
        for each in topic.partitions:
            yield (topic.id, each.partition), each


def _flows(before: ClusterSample, now: ClusterSample) -> dict[Place, Flow]:
    """Return the rate of writes to each partition that answered in both samples."""
    earlier = dict(_partitions(before))
    passed_s = now.at - before.at
    found = {}
    for place, each in _partitions(now):
        old = earlier.get(place)
        if old is None or passed_s <= 0:
            continue
        found[place] = Flow(
            _per_second(old.log_end_offset, each.log_end_offset, passed_s),
            _per_second(old.size, each.size, passed_s),
        )
    return found


def _per_second(old: int | None, new: int | None, passed_s: float) -> float | None:
    """Return the growth per second, 0 if the value shrank, such as by retention or a failover."""
    return None if old is None or new is None else max(0, new - old) / passed_s


def _sum_of(flows: Iterable[Flow]) -> Flow:
    known = list(flows)
    records = [each.records for each in known if each.records is not None]
    sizes = [each.bytes for each in known if each.bytes is not None]
    return Flow(sum(records) if records else None, sum(sizes) if sizes else None)


def _broker_lines(now: ClusterSample, flows: Mapping[Place, Flow]) -> Iterator[BrokerLine]:
    led: dict[str | None, list[Flow]] = {}
    for place, each in _partitions(now):
        if place in flows:
            led.setdefault(each.leader, []).append(flows[place])
    for broker in now.cluster.brokers:
        yield BrokerLine(
            broker.id,
            broker_state(broker, now.cluster.controller),
            broker.leaders,
            broker.replicas,
            broker.in_sync,
            _sum_of(led.get(broker.id, ())),
        )


def _topic_lines(now: ClusterSample, flows: Mapping[Place, Flow]) -> list[TopicLine]:
    """Return the topics, sorted by bytes per second."""
    lines = [
        TopicLine(
            topic.name,
            len(topic.partitions),
            sum(each.size or 0 for each in topic.partitions),
            _sum_of(
                flows[topic.id, each.partition]
                for each in topic.partitions
                if (topic.id, each.partition) in flows
            ),
        )
        for topic in now.topics
    ]
    return sorted(lines, key=lambda each: (-(each.written.bytes or 0), -each.size, each.name))


def _transaction_lines(now: ClusterSample) -> list[TransactionLine]:
    """Return the unfinished transactions, sorted by the records that they hold back."""
    lines = []
    for each in now.transactions:
        if each.state not in UNFINISHED:
            continue
        lines.append(
            TransactionLine(
                each.transactional_id,
                each.state,
                max(0.0, (now.now_ms - each.began_ms) / 1000),
                each.state == "open" and now.now_ms > each.deadline_ms,
                tuple(f"{at.topic}/{at.partition}" for at in each.partitions),
                sum(at.held_back or 0 for at in each.partitions),
            )
        )
    return sorted(lines, key=lambda each: (-each.held_back, -each.age_s, each.transactional_id))


def _consumer_lines(samples: Sequence[ClusterSample]) -> list[ConsumerLine]:
    """Return the consumers, sorted by their lag."""
    lags: dict[tuple[str, str], list[LagSample]] = {}
    for sample in samples:
        for consumer in sample.consumers:
            known = (
                ((at.topic_id, at.partition), at.offset, at.lag - at.held_back)
                for at in consumer.partitions
                if at.lag is not None
            )
            found = lags.setdefault((consumer.name, consumer.kind), [])
            found.append(sample_of(sample.at, known))
    holders = _holders(samples[-1])
    lines = []
    for consumer in samples[-1].consumers:
        trend = trend_of(lags[consumer.name, consumer.kind], in_batches=consumer.kind == "query")
        held = [at for at in consumer.partitions if at.held_back and at.held_back == at.lag]
        waits_for = {holders.get((at.topic, at.partition)) for at in held} - {None}
        lines.append(
            ConsumerLine(
                consumer.name,
                consumer.owned_by,
                consumer.isolation,
                consumer.state,
                consumer.lag,
                consumer.held_back,
                trend,
                tuple(sorted(each for each in waits_for if each is not None)),
            )
        )
    return sorted(lines, key=lambda each: (-(each.lag or 0), each.name))


def _holders(sample: ClusterSample) -> dict[tuple[str, int], str]:
    """Return the id of the transaction that holds back records in each partition."""
    return {
        (at.topic, at.partition): each.transactional_id
        for each in sample.transactions
        for at in each.partitions
        if at.held_back
    }
