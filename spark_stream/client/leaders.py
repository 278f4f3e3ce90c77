"""Partitions as their leaders describe them, from all brokers that answer soon.

The answers leave out the brokers that do not answer, so a dead broker delays no view for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.parallel import in_parallel
from spark_stream.errors import BrokerUnavailable, IsologError, RequestTimeout
from spark_stream.wire.cluster_messages import ListBrokers
from spark_stream.wire.messages import A, Call
from spark_stream.wire.topic_messages import (
    AskedTopic,
    ListOffsets,
    PartitionFacts,
    PartitionOffset,
)

_PATIENCE_S: Final = 2.0
_BROKERS_AT_ONCE: Final = 8

Note = Callable[[str, str, float | None], None]
"""A function of a broker, a call's name, and the seconds until the answer (None without one)."""


class PartitionSeen(Struct, frozen=True):
    """A partition as its leader described it at a moment. ``leader`` is the broker's id."""

    leader: str
    at_s: float
    topic_id: str
    found: PartitionOffset


Partitions = Mapping[str, Mapping[int, PartitionSeen]]
"""By topic and number, those whose leader has answered."""


def ask_each(
    connection: ClusterConnection,
    links: Mapping[str, str],
    call: Call[A],
    note: Note | None = None,
) -> dict[str, A]:
    """Call brokers (id → address) in parallel, and return the answers in time."""

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


def see_partitions(
    connection: ClusterConnection, topics: Sequence[str], note: Note | None = None
) -> dict[str, dict[int, PartitionSeen]]:
    """Return the partitions of these topics, with their facts, as their leaders see them."""
    if not topics:
        return {}
    request = ListOffsets(topics=[AskedTopic(topic=name, facts=True) for name in topics])
    brokers = connection.call(ListBrokers()).brokers
    links = {each.id: each.address for each in brokers}
    answers = ask_each(connection, links, request, note)
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
    all of them back, so a later one holds none.
    """
    if facts is None or facts.high_watermark is None or facts.last_stable_offset is None:
        return {}
    stable, held = facts.last_stable_offset, facts.high_watermark - facts.last_stable_offset
    return {each.transaction: held if each.first_offset == stable else 0 for each in facts.open}
