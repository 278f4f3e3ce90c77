"""The questions of the console to the brokers, and their answers as values for JSON.

Each method asks once and returns soon: a broker that does not answer is left out, and the answer
says so. All of them ask as the user of the connection, so they show what this user may know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from spark_stream.client.cluster import ClusterClient
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.consumers import ConsumersClient
from spark_stream.client.topics import TopicsClient
from spark_stream.client.transactions import TransactionsClient
from spark_stream.errors import IsologError
from spark_stream.schema.schemas import is_default
from spark_stream.schema.type_names import type_name
from spark_stream.wire.cluster_messages import ClusterDescription
from spark_stream.wire.messages import (
    AskedTopic,
    BrokerAddress,
    BrokerList,
    BrokerStatus,
    Empty,
    ListedOffsets,
    ListOffsets,
    PartitionOffset,
    to_plain,
)

T = TypeVar("T")

_PATIENCE_S: Final = 2.0
_TOPICS_AT_ONCE: Final = 200
_BROKERS_AT_ONCE: Final = 8
_FULL_DISK: Final = 0.9
_CHANGES_MAX: Final = 200
_UNFINISHED: Final = ("open", "committing", "aborting")


class PartitionSeen(Struct, frozen=True):
    """A partition as its leader has described it at a moment; ``leader`` is the broker's id."""

    leader: str
    at_s: float
    topic_id: str
    found: PartitionOffset


Partitions = Mapping[str, Mapping[int, PartitionSeen]]
"""By topic and number, those whose leader has answered."""


class Asking:
    """A connection to the cluster, and what the console asks through it. Any thread may use it."""

    def __init__(self, connection: ClusterConnection) -> None:
        self.connection = connection
        self.topics = TopicsClient(connection)
        self.transactions = TransactionsClient(connection)
        self._cluster = ClusterClient(connection)
        self._consumers = ConsumersClient(connection, self.topics)
        self._turn = 0
        self._seen: dict[str, dict[int, PartitionSeen]] = {}

    def status(self) -> BrokerStatus:
        """Return the status of one broker, which also says who the caller is."""
        return self.connection.act("status", Empty(), BrokerStatus)

    # -- the cluster ------------------------------------------------------------------------------

    def cluster(self) -> dict[str, Any]:
        """Return the cluster, with the status of each broker that answers."""
        found = self._cluster.describe()
        links = {each.id: each.address for each in found.brokers if each.alive}
        statuses = self._of_each(
            links, lambda link: link.act("status", Empty(), BrokerStatus, _PATIENCE_S)
        )
        shown: dict[str, Any] = plain(found)
        for each in shown["brokers"]:
            status = statuses.get(each["id"])
            each["status"] = None if status is None else plain(status)
        shown["problems"] = [*shown["problems"], *_own_problems(found, statuses)]
        shown["rolled_back"] = sorted(
            (
                plain(each) | {"broker": broker}
                for broker, status in statuses.items()
                for each in status.rolled_back
            ),
            key=lambda each: each["at_ms"],
            reverse=True,
        )
        return shown

    def _of_each(self, links: Mapping[str, str], ask: Callable[[Any], T]) -> dict[str, T]:
        """Ask brokers (id → address) all at once; return the answers of those that answer soon."""

        def answer(broker: str) -> T | None:
            with suppress(IsologError):
                return ask(self.connection.to(broker, links[broker]))
            return None

        with ThreadPoolExecutor(_BROKERS_AT_ONCE) as askers:
            answers = list(askers.map(answer, links))
        return {
            broker: each for broker, each in zip(links, answers, strict=True) if each is not None
        }

    # -- topics -----------------------------------------------------------------------------------

    def partitions(self) -> Partitions:
        """Return all partitions that have a leader, as their leaders see them.

        Each broker is asked for what it leads. If there are very many topics, some are asked about
        in turn, and the others are returned as they were.
        """
        names = self.topics.names()
        asked = names
        if len(names) > _TOPICS_AT_ONCE:
            first = self._turn % len(names)
            asked = (names[first:] + names[:first])[:_TOPICS_AT_ONCE]
            self._turn = first + _TOPICS_AT_ONCE
        request = ListOffsets(topics=[AskedTopic(topic=name, facts=True) for name in asked])
        answers = self._of_each(
            {each.id: each.address for each in self._brokers()},
            lambda link: link.act("list-offsets", request, ListedOffsets, _PATIENCE_S),
        )
        now = time.time()
        for name in asked:
            self._seen[name] = {
                number: PartitionSeen(broker, now, answer.topics[name].topic_id, found)
                for broker, answer in answers.items()
                if name in answer.topics
                for number, found in answer.topics[name].partitions.items()
            }
        self._seen = {name: self._seen.get(name, {}) for name in names}
        return self._seen

    def _brokers(self) -> Sequence[BrokerAddress]:
        return self.connection.act("list-brokers", Empty(), BrokerList).brokers

    def topic(self, name: str) -> dict[str, Any]:
        """Return a topic with its settings, its columns and where its replicas are."""
        found = self.topics.describe(name)
        shown: dict[str, Any] = plain(found)
        del shown["schema_ipc"]
        shown["columns"] = columns_of(found.schema, found.added)
        shown["is_typed"] = not is_default(found.schema)
        shown["partition_by"] = list(found.partition_by)
        return shown

    # -- transactions, consumers, sinks -----------------------------------------------------------

    def list_transactions(self) -> list[dict[str, Any]]:
        """Return all transactions, those that are not finished first, the oldest of them first."""
        found = self.transactions.all()
        found.sort(key=lambda each: (each.state not in _UNFINISHED, each.began_ms))
        return [plain(each) for each in found]

    def consumers(self) -> dict[str, Any]:
        """Return all names of consumers with their lag, and all sinks."""
        consumers = []
        for each in self._consumers.all():
            shown = plain(each) | {"lag": each.lag}
            for place, at in zip(shown["partitions"], each.partitions, strict=True):
                place["lag"] = at.lag
            consumers.append(shown)
        return {
            "consumers": consumers,
            "sinks": [plain(each) for each in self.transactions.sinks()],
        }

    def abort(self, transactional_id: str, number: int) -> dict[str, Any]:
        """Abort the open transaction of this id and number.

        Raises:
            UnknownTransaction, InvalidTransaction: there is none, or it has ended.
            PermissionDenied: the user may not.
        """
        shown: dict[str, Any] = plain(self.transactions.kill(transactional_id, number))
        return shown

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def plain(value: Any) -> Any:
    """Return a message as values for JSON."""
    return msgspec.to_builtins(value, enc_hook=to_plain)


def columns_of(schema: pa.Schema, added: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the columns of a schema, with Spark's names of their types."""
    return [
        {
            "name": each.name,
            "type": type_name(each.type),
            "nullable": each.nullable,
            "added": each.name in added,
        }
        for each in schema
    ]


def _own_problems(
    cluster: ClusterDescription, statuses: Mapping[str, BrokerStatus]
) -> list[dict[str, Any]]:
    """Return what is amiss and only the brokers' statuses tell."""
    found = []
    for broker in cluster.brokers:
        status = statuses.get(broker.id)
        if status is None:
            if broker.alive:
                text = f"broker {broker.id} does not answer"
                found.append(_problem("no_answer", text, broker.id))
            continue
        used = 1 - status.disk_free / status.disk_total if status.disk_total else 0.0
        if used >= _FULL_DISK:
            text = f"the disk of broker {broker.id} is {used:.0%} full"
            found.append(_problem("full_disk", text, broker.id))
        for name, offset in status.damaged.items():
            text = f"{name} is damaged from offset {offset} on, at broker {broker.id}"
            found.append(_problem("damaged", text, name))
    return found


def _problem(kind: str, message: str, name: str) -> dict[str, Any]:
    return {"kind": kind, "message": message, "count": 1, "names": [name]}


# -- what follows from the answers ----------------------------------------------------------------


def partition_shown(number: int, seen: PartitionSeen) -> dict[str, Any]:
    """Return a partition as the page draws it."""
    found, facts = seen.found, seen.found.facts
    assert facts is not None
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
        "epochs": plain(facts.epochs),
        "open": plain(facts.open),
    }


def leader_changes(partitions: Partitions) -> list[dict[str, Any]]:
    """Return the leader epochs that began after a partition's first one, the latest first."""
    found = [
        {"topic": topic, "partition": number, **plain(epoch)}
        for topic, numbers in partitions.items()
        for number, seen in numbers.items()
        if seen.found.facts is not None
        for epoch in seen.found.facts.epochs[1:]
    ]
    found.sort(key=lambda each: each["began_ms"], reverse=True)
    return found[:_CHANGES_MAX]


def open_places(partitions: Partitions) -> dict[int, list[dict[str, Any]]]:
    """Return by open transaction the partitions that it has written to, as far as they are known.

    ``first_offset``: of its records there; ``held_back``: how many records read_committed does not
    show because of it, which is none if an earlier transaction is open there.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for topic, numbers in partitions.items():
        for partition, seen in numbers.items():
            facts = seen.found.facts
            for each in facts.open if facts is not None else ():
                is_first = facts is not None and facts.last_stable_offset == each.first_offset
                place = {
                    "topic": topic,
                    "partition": partition,
                    "first_offset": each.first_offset,
                    "held_back": seen.found.log_end_offset - each.first_offset if is_first else 0,
                }
                found.setdefault(each.transaction, []).append(place)
    return found
