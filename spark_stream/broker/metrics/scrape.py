"""The broker's state at one scrape, each part read at most once.

All of it is for any thread: it reads published state without a lock, and never blocks. So a value
may be a moment old, and two values may be of different moments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from spark_stream.broker.actions.cluster import disk_room, known_cluster
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.serving.pool import Activity
from spark_stream.broker.serving.serving import Serving
from spark_stream.consistency.groups import Group
from spark_stream.consistency.isolation import Bounds, Isolation, Lag, lag_of, state_of
from spark_stream.consistency.lakes import tiered
from spark_stream.consistency.transactions.transactions import (
    Joined,
    PositionOf,
    ReadPosition,
    Transaction,
)
from spark_stream.counting import Place, TrafficAmounts
from spark_stream.errors import IsologError
from spark_stream.scripts.readers import Named, read_named
from spark_stream.scripts.transactions.records import read_numbered
from spark_stream.scripts.transactions.sinks import read_sinks
from spark_stream.transport.server import Server
from spark_stream.wire.cluster_messages import ClusterDescription, ProblemKind


class ScrapedBroker(Struct, frozen=True):
    """Inputs of a scrape. None of the callables blocks."""

    here: BrokerContext
    rack: str
    memory_bytes: int
    servers: Sequence[Server]
    activity: Activity
    serving: Serving
    holds_lease: Callable[[], bool]
    problem: Callable[[], str | None]
    """Returns the reason why the broker is not ready, or None if it is."""


_HELD_LONG_S: Final = 60.0
"""A transaction that holds readers back for this long is named."""


class FollowerLag(Struct, frozen=True):
    """The lag of a follower in a partition that this broker leads."""

    place: Place
    follower: str
    entries: int
    seconds: float


class Consumed(Struct, frozen=True):
    """The position and lag of a named consumer in a partition that this broker leads."""

    consumer: str
    kind: str
    isolation: Isolation | None
    """None if it is unknown."""
    place: Place
    position: int
    lag: Lag


class Scrape:
    """One scrape of a broker."""

    def __init__(self, broker: ScrapedBroker) -> None:
        self.broker = broker
        self.here = broker.here
        self.host = broker.here.host
        self.counts = broker.here.host.counts

    # -- the cluster, as this broker sees it -------------------------------------------------------

    @cached_property
    def cluster(self) -> ClusterDescription:
        """The cluster, as in `isolog cluster status`."""
        return known_cluster(self.here)

    def problems(self, *kinds: ProblemKind) -> int:
        """Return the number of objects with one of these problems."""
        return sum(each.count for each in self.cluster.problems if each.kind in kinds)

    # -- its replicas ------------------------------------------------------------------------------

    @cached_property
    def replicas(self) -> list[Partition]:
        return self.host.open_replicas()

    @cached_property
    def led(self) -> dict[Place, tuple[Partition, Bounds]]:
        """The partitions that it leads, with their bounds at one moment."""
        return {
            (each.topic, each.number): (each, each.core.bounds_state.bounds())
            for each in self.replicas
            if each.leads
        }

    @cached_property
    def topics(self) -> dict[str, tuple[int, int]]:
        """The bytes on this broker's disk and the number of segments, by topic."""
        found: dict[str, tuple[int, int]] = {}
        for each in self.replicas:
            size, segments = found.get(each.topic, (0, 0))
            found[each.topic] = size + each.log.size, segments + len(each.log.tables())
        return found

    @cached_property
    def followers(self) -> list[FollowerLag]:
        return [
            FollowerLag(place, str(follower), entries, seconds)
            for place, (partition, _) in self.led.items()
            for follower, (entries, seconds) in partition.lags().items()
        ]

    @cached_property
    def disk(self) -> tuple[int, int]:
        """The free and the total bytes of the file system of its directory."""
        return disk_room(self.here.facts.directory)

    # -- traffic and quotas ------------------------------------------------------------------------

    @cached_property
    def traffic(self) -> tuple[dict[Place, TrafficAmounts], TrafficAmounts]:
        """The traffic of each open replica, and the total, which includes closed ones."""
        return self.counts.traffic.read()

    @cached_property
    def throttled(self) -> dict[tuple[str, ...], float]:
        """The seconds by which quotas have delayed principals, by principal and operation."""
        return {
            (name, operation): seconds
            for name, use in self.here.quotas.use().items()
            for operation, seconds in (
                ("write", use.write_delayed_s),
                ("read", use.read_delayed_s),
            )
        }

    def throttled_by_operation(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {("write",): 0.0, ("read",): 0.0}
        for (_, operation), seconds in self.throttled.items():
            found[operation,] += seconds
        return found

    # -- transactions ------------------------------------------------------------------------------

    @cached_property
    def open_transactions(self) -> list[tuple[Transaction, float]]:
        """The open transactions of the last sweep at this broker, with their ages in seconds."""
        now = self.here.transactions.now_ms()
        return [(each, max(0, now - each.began_ms) / 1000) for each in self.here.transactions.open]

    @cached_property
    def holder(self) -> dict[tuple[str, ...], float]:
        """The transaction that holds readers back the longest in led partitions, if it is long.

        One at most, so that the number of series does not grow with topics and transactions.
        """
        held: dict[int, Place] = {}
        for place, (partition, bounds) in self.led.items():
            if bounds.last_stable_offset < bounds.high_watermark:
                earliest = partition.core.undecided.earliest()
                if earliest is not None and earliest[1] == bounds.last_stable_offset:
                    held.setdefault(earliest[0], place)
        if not held:
            return {}
        try:
            found = self.here.transactions.run(read_numbered(held.keys()))
        except IsologError:
            return {}
        now_ms = self.here.transactions.now_ms()
        oldest = min(found, key=lambda each: each.began_ms, default=None)
        if oldest is None or now_ms - oldest.began_ms < 1_000 * _HELD_LONG_S:
            return {}
        topic, number = held[oldest.number]
        age_s = (now_ms - oldest.began_ms) / 1_000
        return {(oldest.transactional_id, topic, str(number)): age_s}

    @cached_property
    def sinks(self) -> list[Transaction]:
        """The sinks of the cluster, or none while the metadata store does not answer."""
        try:
            return self.here.transactions.run(read_sinks(fresh=False))
        except IsologError:
            return []

    # -- consumers and queries ---------------------------------------------------------------------

    @cached_property
    def _named(self) -> Named | None:
        try:
            return self.here.transactions.run(read_named(fresh=False))
        except IsologError:
            return None

    @cached_property
    def consumed(self) -> list[Consumed]:
        """Positions and lags of named consumers and queries in the partitions that are led here.

        Empty without the metadata store.
        """
        named = self._named
        if named is None:
            return []
        return [
            *(
                found
                for name, positions in named.consumers.items()
                for found in self._consumed(
                    name, named.kind(name), named.isolation(name), positions
                )
            ),
            *(
                found
                for name, query in named.queries.items()
                for found in self._consumed(name, "query", query.isolation, query.positions)
            ),
        ]

    def _consumed(
        self,
        name: str,
        kind: str,
        isolation: Isolation | None,
        positions: Iterable[PositionOf | ReadPosition],
    ) -> Iterator[Consumed]:
        for each in positions:
            partition = self.host.replica(Joined(each.topic, each.topic_id, each.partition))
            place = each.topic, each.partition
            if partition is None or (led := self.led.get(place)) is None:
                continue
            bounds = led[1]
            lag = lag_of(
                each.offset,
                isolation,
                bounds.log_end_offset,
                bounds.high_watermark,
                bounds.last_stable_offset,
            )
            if lag is not None:
                yield Consumed(name, kind, isolation, place, each.offset, lag)

    @cached_property
    def lakes(self) -> dict[tuple[str, ...], int]:
        """The lag of each lake in the partitions that are led here."""
        found: dict[tuple[str, ...], int] = {}
        for lake in self.host.view.now.lakes.values():
            topics = {each.id: each.tiered for each in lake.topics}
            found[(lake.name,)] = sum(
                max(
                    0,
                    int(bounds.last_stable_offset)
                    - max(int(bounds.log_start_offset), topics[at.topic_id].get(at.number, 0)),
                )
                for at, bounds in self.led.values()
                if at.topic_id in topics
            )
        return found

    @cached_property
    def held_back(self) -> dict[str, tuple[int, int]]:
        """The number and bytes of segments that tables hold, by topic with local retention."""
        found: dict[str, tuple[int, int]] = {}
        lakes = self.host.view.now.lakes.values()
        for each in self.replicas:
            if each.log.format.settings.needs_table:
                have = tiered(lakes, each.topic_id, each.number) or 0
                segments, size = each.held_back(have)
                before = found.get(each.topic, (0, 0))
                found[each.topic] = before[0] + segments, before[1] + size
        return found

    @cached_property
    def consumers(self) -> dict[tuple[str, ...], tuple[int, int, int]]:
        """The sums of positions, lags and held-back records, by consumer, kind and isolation."""
        found: dict[tuple[str, ...], tuple[int, int, int]] = {}
        for each in self.consumed:
            isolation = "unknown" if each.isolation is None else each.isolation.value
            key = each.consumer, each.kind, isolation
            position, lag, held = found.get(key, (0, 0, 0))
            found[key] = (
                position + each.position,
                lag + each.lag.records,
                held + each.lag.held_back,
            )
        return found

    @cached_property
    def states(self) -> dict[tuple[str, ...], int]:
        """The state of each reader as this broker sees it: by its lag in partitions led here."""
        if self._named is None:
            return {}
        lags: dict[tuple[str, str], list[Lag]] = defaultdict(list)
        for each in self.consumed:
            lags[each.consumer, each.kind].append(each.lag)
        kinds: list[tuple[str, str, Group | None]] = [
            *((name, "query", None) for name in self._named.queries),
            *(
                (name, self._named.kind(name), group)
                for name in self._named.consumers
                for group in (self._named.groups.get(name),)
            ),
        ]
        found: dict[tuple[str, ...], int] = {}
        for name, kind, group in kinds:
            session = self._named.session(kind, name)
            mine = lags[name, kind]
            idle_ms = session.idle_ms if kind == "query" else self._named.idle_ms(name)
            state = state_of(
                session.ending,
                None if group is None else len(group.members),
                idle_ms / 1000,
                sum(each.readable for each in mine),
                sum(each.held_back for each in mine),
            )
            found[name, kind, state.value] = 1
        return found
