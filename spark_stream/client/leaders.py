"""Answers of partition leaders: offsets, and partitions as their leaders describe them.

:func:`look_up_offsets` gets offsets of topics whose partitions have several leaders, with few
calls. One broker gets the request for all topics. It answers for the partitions that it leads and
names the leaders of the others. Then each of these leaders gets one call. So with a single leader
one call is enough, whatever the number of topics, and new partitions are found as well.

:func:`call_each` and :func:`describe_partitions` omit the brokers that do not answer soon, so a
dead broker does not delay a view for long.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from msgspec import Struct, structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import seconds_left
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.threads import in_parallel
from spark_stream.errors import BrokerUnavailable, IsologError, LeaderUnavailable, RequestTimeout
from spark_stream.wire.cluster_messages import ListBrokers
from spark_stream.wire.messages import A, Call
from spark_stream.wire.topic_messages import (
    AskedTopic,
    LeaderFacts,
    ListedOffsets,
    ListOffsets,
    PartitionFacts,
    PartitionOffset,
    PartitionOffsets,
)

_PATIENCE_S: Final = 2.0
_BROKERS_AT_ONCE: Final = 8
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5

Note = Callable[[str, str, float | None], None]
"""A function of a broker, a call's name, and the seconds until the answer (None without one)."""


class PartitionSeen(Struct, frozen=True):
    """A partition as its leader described it at one moment. ``leader`` is the broker's id."""

    leader: str
    at_s: float
    topic_id: str
    found: PartitionOffset


Partitions = Mapping[str, Mapping[int, PartitionSeen]]
"""Partitions by topic and number. Those whose leader did not answer are missing."""


def call_each(
    connection: ClusterConnection,
    links: Mapping[str, str],
    call: Call[A],
    note: Note | None = None,
) -> dict[str, A]:
    """Call brokers (id → address) in parallel. Return the answers that arrive in time."""

    def answer(broker: str) -> A | None:
        began = time.monotonic()
        found, has_answered = None, True
        try:
            link = connection.to(broker, links[broker])
            found = link.call(call, _PATIENCE_S)
        except (BrokerUnavailable, RequestTimeout):
            has_answered = False
        except IsologError:
            pass  # a refusal is an answer
        if note is not None:
            note(broker, call.wire_name, time.monotonic() - began if has_answered else None)
        return found

    answers = in_parallel(answer, links, _BROKERS_AT_ONCE)
    return {broker: each for broker, each in zip(links, answers, strict=True) if each is not None}


def describe_partitions(
    connection: ClusterConnection, topics: Sequence[str], note: Note | None = None
) -> dict[str, dict[int, PartitionSeen]]:
    """Return the partitions of these topics, with the facts of their leaders."""
    if not topics:
        return {}
    request = ListOffsets(topics=[AskedTopic(topic=name, facts=True) for name in topics])
    brokers = connection.call(ListBrokers()).brokers
    links = {each.id: each.address for each in brokers}
    answers = call_each(connection, links, request, note)
    now = time.time()
    return {
        name: {
            number: PartitionSeen(broker, now, answer.topics[name].topic_id, found)
            for broker, answer in answers.items()
            if name in answer.topics
            for number, found in answer.topics[name].partitions.items()
        }
        for name in topics
    }


def held_back(facts: PartitionFacts | None) -> dict[int, int]:
    """Return the records that each open transaction holds back in a partition, by its number.

    These are the replicated records from the last stable offset on. The earliest transaction holds
    all of them back, and later ones hold back none.
    """
    if facts is None or facts.high_watermark is None or facts.last_stable_offset is None:
        return {}
    stable, held = facts.last_stable_offset, facts.high_watermark - facts.last_stable_offset
    return {each.transaction: held if each.first_offset == stable else 0 for each in facts.open}


def look_up_offsets(
    connection: ClusterConnection,
    router: Router,
    requested: Sequence[AskedTopic],
    *,
    names: bool = False,
) -> ListedOffsets:
    """Look up offsets with the leaders of the partitions. Retry until the connection's timeout.

    Raises:
        UnknownPartition: A topic does not have a requested partition.
        LeaderUnavailable, BrokerUnavailable, RequestTimeout: A leader does not answer in time.
    """
    deadline = time.monotonic() + connection.timeout_s
    request = ListOffsets(topics=list(requested), names=names)
    pause = _PAUSE_FIRST_S
    for rounds in count():
        first = connection.call(request, seconds_left(deadline))
        lookup = _LookUp(connection, router, requested, first, deadline, rounds)
        lookup.ask_leaders()
        missing = lookup.missing()
        if not missing:
            return structs.replace(first, topics=lookup.found(), names=sorted(first.names or ()))
        if time.monotonic() + pause > deadline:
            raise lookup.failure(missing)
        time.sleep(pause)
        pause = min(_PAUSE_MAX_S, 2 * pause)
    raise AssertionError("unreachable: the rounds do not end")


class _TopicAnswers:
    """The answers for a topic in one round."""

    def __init__(self, router: Router, requested: AskedTopic, first: PartitionOffsets) -> None:
        self._router = router
        self.requested = requested
        self.topic_id = first.topic_id
        self.elsewhere = first.elsewhere
        self.missing = {each.partition for each in first.elsewhere}
        self._answers: dict[int, PartitionOffset] = {}
        self._schema_version = 0
        self.take(first)

    def take(self, answer: PartitionOffsets) -> None:
        """Record an answer, except for partitions whose leader was replaced."""
        epochs = {number: each.epoch for number, each in answer.partitions.items()}
        outdated = self._router.record_epochs(self.requested.topic, self.topic_id, epochs)
        taken = {at: each for at, each in answer.partitions.items() if at not in outdated}
        self._answers |= taken
        self._schema_version = max(self._schema_version, answer.schema_version)
        self.missing = self.missing - taken.keys() | outdated

    def found(self) -> PartitionOffsets:
        """Return all answers combined."""
        return PartitionOffsets(
            topic_id=self.topic_id,
            partitions=dict(sorted(self._answers.items())),
            schema_version=self._schema_version,
        )


class _LookUp:
    """One round: the first answer, and those of the leaders that it names."""

    def __init__(
        self,
        connection: ClusterConnection,
        router: Router,
        requested: Sequence[AskedTopic],
        first: ListedOffsets,
        deadline: float,
        rounds: int,
    ) -> None:
        self._connection = connection
        self._router = router
        self._deadline = deadline
        self._rounds = rounds  # how many rounds came before
        self._failure: IsologError | None = None
        self._topics = {
            each.topic: _TopicAnswers(router, each, first.topics[each.topic])
            for each in requested
            if each.topic in first.topics
        }

    def ask_leaders(self) -> None:
        """Call the leaders of missing partitions in parallel."""
        groups: dict[str, dict[str, list[int]]] = {}
        for name, topic in self._topics.items():
            for each in topic.elsewhere:
                if each.leader is not None and each.address and self._record_leader(topic, each):
                    groups.setdefault(each.address, defaultdict(list))[name].append(each.partition)
        answers = in_parallel(self._ask, groups.items(), _BROKERS_AT_ONCE)
        for wanted, answer in zip(groups.values(), answers, strict=True):
            self._take(wanted, answer)

    def _record_leader(self, topic: _TopicAnswers, leader: LeaderFacts) -> bool:
        return self._router.record_leader(topic.requested.topic, topic.topic_id, leader)

    def _ask(self, group: tuple[str, Mapping[str, list[int]]]) -> ListedOffsets | IsologError:
        """Call a leader. Return its answer, or a retriable error. Threads do this in parallel."""
        address, wanted = group
        request = ListOffsets(
            topics=[
                structs.replace(self._topics[name].requested, partitions=numbers)
                for name, numbers in wanted.items()
            ]
        )
        try:
            link = self._connection.at(address)
            turn = self._connection.turn(self._deadline, self._rounds)
            return link.call(request, turn)
        except IsologError as error:
            if not error.retriable:
                raise
            return error

    def _take(self, wanted: Iterable[str], answer: ListedOffsets | IsologError) -> None:
        """Record the answer about these topics."""
        if isinstance(answer, IsologError):
            self._failure = answer
            return
        for name in wanted:
            topic, found = self._topics[name], answer.topics.get(name)
            if found is None or found.topic_id != topic.topic_id:
                self._failure = LeaderUnavailable(f"topic {name!r} was created again", topic=name)
            else:
                topic.take(found)

    def missing(self) -> dict[str, set[int]]:
        """Return the partitions without an answer, by topic."""
        return {name: topic.missing for name, topic in self._topics.items() if topic.missing}

    def failure(self, missing: Mapping[str, set[int]]) -> IsologError:
        """Return the error for missing partitions."""
        if self._failure is not None:
            return self._failure
        name, lacking = next(iter(missing.items()))
        numbers = ", ".join(map(str, sorted(lacking)))
        return LeaderUnavailable(
            f"topic {name!r} has no leader for partition {numbers}", topic=name
        )

    def found(self) -> dict[str, PartitionOffsets]:
        """Return the answers of all leaders, by topic."""
        return {name: topic.found() for name, topic in self._topics.items()}
