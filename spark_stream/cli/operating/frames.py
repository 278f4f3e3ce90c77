"""What some looks at a cluster, one after the other, tell: rates, trends, who holds readers back.

No I/O here. A rate is counted between the last two looks, a trend over all that are given.
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


class Look(Struct, frozen=True):
    """What was seen of a cluster at one moment.

    ``at``: seconds on a clock that never goes back. ``now_ms``: ms since the epoch. ``denied``: the
    parts that the caller may not see. ``unavailable``: those that need the metadata store, while it
    does not return them.
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
    """What is written in a second; None before the second look, or if nobody can say."""

    records: float | None = None
    bytes: float | None = None


class BrokerLine(Struct, frozen=True):
    """A broker, and what is written to the partitions that it leads."""

    id: str
    state: str
    leads: int
    replicas: int
    in_sync: int
    written: Flow


class TopicLine(Struct, frozen=True):
    """A topic. ``size``: bytes at its leaders, as far as they answer."""

    name: str
    partitions: int
    size: int
    written: Flow


class TransactionLine(Struct, frozen=True):
    """A transaction that is not finished. ``held_back``: records that wait for its end."""

    transactional_id: str
    state: str
    age_s: float
    overdue: bool
    places: tuple[str, ...]
    held_back: int


class ConsumerLine(Struct, frozen=True):
    """A reader's name, its state, its lag in records, and how that develops.

    ``waits_for``: the transactional ids that hold it back, if it waits.
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
    """A cluster, as it is to be shown.

    ``reader_problems``: readers that need an operator, and transactions that hold readers back.
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


def frame_of(looks: Sequence[Look]) -> ClusterFrame:
    """Return what to show of these looks, the latest of them last; there is at least one."""
    now = looks[-1]
    before = looks[-2] if len(looks) > 1 else None
    flows = {} if before is None else _flows(before, now)
    cluster = now.cluster
    transactions, consumers = _transaction_lines(now), _consumer_lines(looks)
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
                f" {each.held_back:,} records back"
            )


def _partitions(look: Look) -> Iterator[tuple[Place, PartitionDescription]]:
    for topic in look.topics:
        for each in topic.partitions:
            yield (topic.id, each.partition), each


def _flows(before: Look, now: Look) -> dict[Place, Flow]:
    """Return what is written to each partition that answered both times."""
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
    """Return the growth in a second; 0 if it shrank, as by retention or a failover."""
    return None if old is None or new is None else max(0, new - old) / passed_s


def _sum_of(flows: Iterable[Flow]) -> Flow:
    known = list(flows)
    records = [each.records for each in known if each.records is not None]
    sizes = [each.bytes for each in known if each.bytes is not None]
    return Flow(sum(records) if records else None, sum(sizes) if sizes else None)


def _broker_lines(now: Look, flows: Mapping[Place, Flow]) -> Iterator[BrokerLine]:
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


def _topic_lines(now: Look, flows: Mapping[Place, Flow]) -> list[TopicLine]:
    """Return the topics, those with the most bytes a second first."""
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


def _transaction_lines(now: Look) -> list[TransactionLine]:
    """Return the unfinished transactions, those that hold the most records back first."""
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


def _consumer_lines(looks: Sequence[Look]) -> list[ConsumerLine]:
    """Return the consumers, those with the greatest lag first."""
    samples: dict[tuple[str, str], list[LagSample]] = {}
    for look in looks:
        for consumer in look.consumers:
            known = (
                ((at.topic_id, at.partition), at.offset, at.lag - at.held_back)
                for at in consumer.partitions
                if at.lag is not None
            )
            found = samples.setdefault((consumer.name, consumer.kind), [])
            found.append(sample_of(look.at, known))
    holders = _holders(looks[-1])
    lines = []
    for consumer in looks[-1].consumers:
        trend = trend_of(samples[consumer.name, consumer.kind], in_batches=consumer.kind == "query")
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


def _holders(look: Look) -> dict[tuple[str, int], str]:
    """Return the transaction that holds records back in each partition, by its id."""
    return {
        (at.topic, at.partition): each.transactional_id
        for each in look.transactions
        for at in each.partitions
        if at.held_back
    }
