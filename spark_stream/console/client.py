"""Requests of the console to the brokers, and their answers as values for JSON.

Each method sends one request per broker and returns soon. A broker that does not answer is left
out, and the answer shows that. All requests have the credential of the connection's user, so the
answers contain only data that this user may see.

Derived values are computed without I/O: leader changes, growth and rates from samples, and the time
until a disk is full.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from spark_stream.client.administration import list_transactions, with_refusals
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.consumers import ConsumersClient
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.leaders import (
    Partitions,
    PartitionSeen,
    call_each,
    describe_partitions,
    held_back,
)
from spark_stream.client.log import Log
from spark_stream.client.topics import TopicsClient
from spark_stream.schema.schemas import is_default
from spark_stream.schema.types import field_type_name
from spark_stream.wire.cluster_messages import BrokerStatus, DescribeCluster, GetStatus
from spark_stream.wire.messages import to_plain
from spark_stream.wire.topic_messages import ListOffsets
from spark_stream.wire.transaction_messages import UNFINISHED, ListSinks

_TOPICS_AT_ONCE: Final = 200
_CHANGES_MAX: Final = 2_000
_FAILOVER_MS: Final = 30_000  # the maximum time between two changes of one failover
_EPOCHS_MAX: Final = 16  # of a partition
_ON_DISK_MAX: Final = 3
_CALLS: Final = (GetStatus.wire_name, ListOffsets.wire_name)
"""The calls that the console repeats on each broker."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
RATE_S: Final = 10.0
"""The window of rates."""
DISK_S: Final = 180.0
"""The window for the forecast of a full disk."""
ANSWERS_S: Final = 60.0
"""The window for the answers of a broker."""
HISTORY_S: Final = 600.0
HISTORY_STEP_S: Final = 5.0
_DISK_LEAST_S: Final = 30.0  # the least span of samples for a forecast


class ConsoleClient:
    """The requests of the console over one connection. All threads may use it."""

    def __init__(self, connection: ClusterConnection) -> None:
        self.connection = connection
        self.topics = TopicsClient(connection)
        self.log = Log(connection)
        self.named = ConsumersClient(connection, self.topics, LakeTables(connection, self.topics))
        self.answers: RecentSamples[tuple[str, str], float | None] = RecentSamples(ANSWERS_S)
        """The latencies of each broker and call. None: no answer in time."""
        self._started_s: dict[str, float] = {}
        """A time on this host's monotonic clock at which each broker was already running."""
        self._turn = 0
        self._seen: dict[str, Mapping[int, PartitionSeen]] = {}

    def status(self) -> BrokerStatus:
        """Return the status of one broker, which includes the principal of the caller."""
        return self.connection.call(GetStatus())

    # -- the cluster ------------------------------------------------------------------------------

    def cluster(self) -> dict[str, Any]:
        """Return the cluster with the status of each broker that answers."""
        found = self.connection.call(DescribeCluster())
        links = {each.id: each.address for each in found.brokers if each.alive}
        sent_s = time.monotonic()
        statuses = call_each(self.connection, links, GetStatus(), self._note_answer)
        answered_s = time.monotonic()
        self.answers.keep({(each, action) for each in links for action in _CALLS})
        shown: dict[str, Any] = plain(with_refusals(found, statuses))
        for each in shown["brokers"]:
            status = statuses.get(each["id"])
            if status is not None:
                uptime_s = status.uptime_s
                self.note_process(each["id"], sent_s - uptime_s, answered_s - uptime_s)
            each["status"] = None if status is None else plain(status)
            each["answers"] = plain(self.answers_of(each["id"]))
        shown["rolled_back"] = sorted(
            (
                plain(each) | {"broker": broker}
                for broker, status in statuses.items()
                for each in status.rolled_back
            ),
            key=itemgetter("at_ms"),
            reverse=True,
        )
        return shown

    def note_process(self, broker: str, earliest_s: float, latest_s: float) -> None:
        """Discard the latencies of a broker's earlier process if the broker was restarted.

        The broker's process started between these two times, which differ by the latency of a call.
        """
        if earliest_s > self._started_s.get(broker, math.inf):
            for action in _CALLS:
                self.answers.drop((broker, action))
        self._started_s[broker] = latest_s

    def answers_of(self, broker: str) -> BrokerAnswers:
        """Return a broker's answers. The median is that of ``status``."""
        status, offsets = (answers_of(self.answers.of((broker, each))) for each in _CALLS)
        return BrokerAnswers(
            status.asked + offsets.asked, status.unanswered + offsets.unanswered, status.median_s
        )

    def _note_answer(self, broker: str, action: str, took_s: float | None) -> None:
        self.answers.add((broker, action), time.monotonic(), took_s)

    # -- topics -----------------------------------------------------------------------------------

    def partitions(self) -> Partitions:
        """Return all partitions that have a leader, from the leaders' answers.

        With very many topics, each call requests some of them in turn, and returns the previous
        answers for the others.
        """
        names = self.topics.names()
        requested = names
        if len(names) > _TOPICS_AT_ONCE:
            first = self._turn % len(names)
            requested = (names[first:] + names[:first])[:_TOPICS_AT_ONCE]
            self._turn = first + _TOPICS_AT_ONCE
        self._seen.update(describe_partitions(self.connection, requested, self._note_answer))
        self._seen = {name: self._seen.get(name, {}) for name in names}
        return self._seen

    def topic(self, name: str) -> dict[str, Any]:
        """Return a topic with its settings, its columns and its replicas."""
        found = self.topics.describe(name)
        shown: dict[str, Any] = plain(found)
        del shown["schema_ipc"]
        shown["columns"] = columns_of(found.schema, found.added)
        shown["is_typed"] = not is_default(found.schema)
        shown["partition_by"] = list(found.partition_by)
        return shown

    # -- transactions, consumers, sinks -----------------------------------------------------------

    def list_transactions(self) -> list[dict[str, Any]]:
        """Return all transactions, unfinished ones first, then the oldest first."""
        found = list_transactions(self.connection)
        found.sort(key=lambda each: (each.state not in UNFINISHED, each.began_ms))
        return [plain(each) for each in found]

    def consumers(self) -> dict[str, Any]:
        """Return all consumers with their lag, and all sinks."""
        consumers = []
        for each in self.named.all():
            shown = plain(each) | {
                "state": each.state.value,
                "lag": each.lag,
                "held_back": each.held_back,
            }
            for place, at in zip(shown["partitions"], each.partitions, strict=True):
                place["lag"] = at.lag
            consumers.append(shown)
        return {
            "consumers": consumers,
            "sinks": [plain(each) for each in self.connection.call(ListSinks()).sinks],
        }

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def plain(value: Any) -> Any:
    """Convert a message to values for JSON."""
    return msgspec.to_builtins(value, enc_hook=to_plain)


def columns_of(schema: pa.Schema, added: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the columns of a schema with Spark's names of their types."""
    return [
        {
            "name": each.name,
            "type": field_type_name(each),
            "nullable": each.nullable,
            "added": each.name in added,
        }
        for each in schema
    ]


# -- values derived from the answers ---------------------------------------------------------------


def partition_shown(
    number: int, seen: PartitionSeen, leaders: Mapping[int, LeaderSeen]
) -> dict[str, Any]:
    """Return a partition for the page. ``leaders``: the observed leaders by epoch."""
    found, facts = seen.found, seen.found.facts
    assert facts is not None
    held = held_back(facts)
    return {
        "partition": number,
        "leader": seen.leader,
        "leader_epoch": found.epoch,
        "log_start": found.log_start_offset,
        "log_end": found.log_end_offset,
        "high_watermark": facts.high_watermark,
        "last_stable": facts.last_stable_offset,
        "size": facts.size,
        "followers": facts.followers,
        "epochs": [
            plain(each) | {"leader": _broker(leaders.get(each.epoch))} for each in facts.epochs
        ],
        "open": [plain(each) | {"held_back": held.get(each.transaction, 0)} for each in facts.open],
    }


class LeaderSeen(Struct, frozen=True):
    """The leader of an epoch, and the time at which the console first observed it."""

    broker: str
    at_ms: int


Leaders = dict[tuple[str, str, int], dict[int, LeaderSeen]]
"""The leaders that the console has observed, by topic, topic id and partition, and by epoch."""


def note_leaders(leaders: Leaders, partitions: Partitions) -> Leaders:
    """Return the observed leaders extended by the current leaders.

    A missing partition keeps its leaders, because brokers do not answer during a failover. Leaders
    of deleted topics are dropped.
    """
    found = {key: each for key, each in leaders.items() if key[0] in partitions}
    for topic, numbers in partitions.items():
        for number, seen in numbers.items():
            led = found.get((topic, seen.topic_id, number), {})
            now = LeaderSeen(seen.leader, round(seen.at_s * 1000))
            found[topic, seen.topic_id, number] = {seen.found.epoch: now, **led}
    return found


def leader_changes(partitions: Partitions, leaders: Leaders) -> list[dict[str, Any]]:
    """Return the leader epochs after each partition's first epoch, the latest first.

    ``before`` and ``leader``: the leaders before and in the epoch, None if the console has not
    observed them. A log has no entry of an epoch without appends. Then ``offset`` is None, and
    ``began_ms`` is the time of the first observation, or None.
    """
    found = []
    for topic, numbers in partitions.items():
        for number, seen in numbers.items():
            led = leaders.get((topic, seen.topic_id, number), {})
            logged = [] if seen.found.facts is None else seen.found.facts.epochs
            starts = {each.epoch: each for each in logged}
            first, last = min(starts, default=0), seen.found.epoch
            later_ms = round(seen.at_s * 1000)
            for epoch in range(last, max(first, last - _EPOCHS_MAX), -1):
                start, who = starts.get(epoch), led.get(epoch)
                began_ms = start.began_ms if start else who.at_ms if who else None
                later_ms = later_ms if began_ms is None else min(later_ms, began_ms)
                change = {
                    "topic": topic,
                    "partition": number,
                    "epoch": epoch,
                    "offset": start.offset if start else None,
                    "began_ms": began_ms,
                    "before": _broker(led.get(epoch - 1)),
                    "leader": _broker(who),
                }
                found.append((later_ms, change))
    found.sort(key=itemgetter(0), reverse=True)
    return [change for _, change in found]


def failovers(
    changes: Sequence[Mapping[str, Any]], started_ms: Mapping[str, int | None]
) -> list[dict[str, Any]]:
    """Group changes of leaders, the latest first, by the previous leader and by their time.

    ``started_ms``: when the process of each broker started, None if the broker is dead. A failover
    is whole. After the limit of changes, no further failover is returned.

    ``reason``: ``died``, ``restarted`` (after it had lost the partitions), ``reelected``, ``moved``
    (the broker continued to run) or ``unknown`` (the previous leader was not observed).
    """
    found: list[dict[str, Any]] = []
    latest: dict[str | None, dict[str, Any]] = {}
    for each in changes:
        at_ms, group = each["began_ms"], latest.get(each["before"])
        if group is None or not _is_same(group, at_ms):
            group = {"before": each["before"], "first_ms": at_ms, "last_ms": at_ms, "changes": []}
            latest[each["before"]] = group
            found.append(group)
        if at_ms is not None:
            group["first_ms"] = at_ms
        group["changes"].append(each)
    shown: list[dict[str, Any]] = []
    count = 0
    for group in found:
        count += len(group["changes"])
        if count > _CHANGES_MAX and shown:
            break
        shown.append(group | {"reason": _reason(group, started_ms)})
    return shown


def _is_same(group: Mapping[str, Any], at_ms: int | None) -> bool:
    first_ms: int | None = group["first_ms"]
    if at_ms is None or first_ms is None:
        return at_ms is first_ms
    return first_ms - at_ms <= _FAILOVER_MS


def _reason(group: Mapping[str, Any], started_ms: Mapping[str, int | None]) -> str:
    before = group["before"]
    if before is None:
        return "unknown"
    if all(each["leader"] == before for each in group["changes"]):
        return "reelected"
    started = started_ms.get(before)
    if started is None:
        return "died"
    return "restarted" if group["last_ms"] is not None and started > group["last_ms"] else "moved"


def _broker(seen: LeaderSeen | None) -> str | None:
    return None if seen is None else seen.broker


def on_disks(
    partitions: Partitions, growths: Mapping[tuple[str, int], float]
) -> dict[str, list[dict[str, Any]]]:
    """Return the topics on the disk of each broker, the fastest growing first.

    ``growths``: growth of each partition in bytes per second. The size of a replica is taken from
    the leader.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for topic, numbers in partitions.items():
        for number, seen in numbers.items():
            facts = seen.found.facts
            for broker in () if facts is None else (seen.leader, *facts.followers):
                sums = found.setdefault(broker, {}).setdefault(topic, [0, 0.0])
                sums[0] += facts.size if facts is not None else 0
                sums[1] += growths.get((topic, number), 0.0)
    return {
        broker: [
            {"topic": topic, "size": size, "bytes_per_s": round(grows)}
            for topic, (size, grows) in sorted(
                topics.items(), key=lambda each: (-round(each[1][1]), -each[1][0], each[0])
            )[:_ON_DISK_MAX]
        ]
        for broker, topics in found.items()
    }


def holders(partitions: Partitions) -> dict[tuple[str, int], int]:
    """Return the transaction that holds back records, by topic id and partition."""
    return {
        (seen.topic_id, number): transaction
        for numbers in partitions.values()
        for number, seen in numbers.items()
        for transaction, held in held_back(seen.found.facts).items()
        if held
    }


def open_places(partitions: Partitions) -> dict[int, list[dict[str, Any]]]:
    """Return the known partitions that each open transaction has written to.

    ``first_offset``: offset of its first record in the partition. ``held_back``: see
    :func:`client.leaders.held_back`.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for topic, numbers in partitions.items():
        for partition, seen in numbers.items():
            facts = seen.found.facts
            held = held_back(facts)
            for each in facts.open if facts is not None else ():
                place = {
                    "topic": topic,
                    "partition": partition,
                    "first_offset": each.first_offset,
                    "held_back": held.get(each.transaction, 0),
                }
                found.setdefault(each.transaction, []).append(place)
    return found


class RecentSamples(Generic[K, T]):
    """Timed samples of the last seconds by key, the oldest first."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: dict[K, list[tuple[float, T]]] = {}

    def add(self, key: K, at_s: float, value: T) -> None:
        """Add a sample, unless it is not later than the last sample."""
        kept = self._samples.setdefault(key, [])
        if not kept or at_s > kept[-1][0]:
            kept.append((at_s, value))
        while len(kept) > 2 and kept[0][0] < at_s - self._window_s:
            del kept[0]

    def of(self, key: K) -> Sequence[tuple[float, T]]:
        """Return the samples of a key."""
        return self._samples.get(key, ())

    def drop(self, key: K) -> None:
        """Remove the samples of a key."""
        self._samples.pop(key, None)

    def keep(self, keys: Collection[K]) -> None:
        """Remove all keys except these."""
        known = list(self._samples.items())  # another thread may add a key during the loop
        self._samples = {key: each for key, each in known if key in keys}


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """Return the growth of the value per second, from the first sample to the last."""
    if len(samples) < 2:
        return 0.0
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    return (last - first) / (last_s - first_s)


def full_in_s(free: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds until a disk is full. None without growth or with too few samples."""
    slope = growth(free)
    if slope >= 0 or free[-1][0] - free[0][0] < _DISK_LEAST_S:
        return None
    return free[-1][1] / -slope


class BrokerAnswers(Struct, frozen=True):
    """The recent answers of a broker. ``median_s`` is None if there are none."""

    asked: int = 0
    unanswered: int = 0
    median_s: float | None = None


def answers_of(took_s: Sequence[tuple[float, float | None]]) -> BrokerAnswers:
    """Summarize these requests. A latency of None means no answer in time."""
    times = [each for _, each in took_s if each is not None]
    median_s = statistics.median(times) if times else None
    return BrokerAnswers(len(took_s), len(took_s) - len(times), median_s)
