"""Offsets for each partition: of a place where a user starts or ends, and of an atomic cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from numbers import Integral
from typing import Final

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.moments import to_microseconds
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.errors import InvalidOption
from spark_stream.structs import INT64_MAX
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import AtomicCut, CutTopic

Place = str | int | Mapping[int, int] | datetime
"""``"earliest"``, ``"latest"``, an offset for all partitions, ``{partition: offset}``, a moment.

A moment is a datetime, which is in UTC if it has no zone; a number is always an offset.
The number -2 means earliest and -1 latest. Partitions that a mapping leaves out get the default.
"""

Key = tuple[str, int]
"""Topic and partition."""

Target = str | datetime | Mapping[Key, int] | Mapping[Key, datetime] | Mapping[Key, int | datetime]
"""The argument of a seek: a name, a moment, or an offset or a moment for each partition."""

_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_TAKEN: Final = "earliest | latest, an offset, {partition: offset} or a datetime"


def resolve_with_lineages(
    topics: TopicsClient, topic: str, place: Place, isolation: Isolation
) -> tuple[dict[int, int], dict[int, Lineage]]:
    """Return the offset of ``place`` in each partition, and their lineages.

    The lineage of an offset that a user names is unknown.
    """
    if isinstance(place, str) and place in _NAMED:
        found = topics.offsets(topic, at=_NAMED[place], isolation=isolation)
        return found.offsets, found.lineages
    return resolve(topics, topic, place, isolation, "earliest"), {}


def resolve(
    topics: TopicsClient, topic: str, place: Place, isolation: Isolation, default: str
) -> dict[int, int]:
    """Return the offset of ``place`` in each partition of the topic.

    A moment means the first record at or after it; if there is none, the isolation's bound.
    """
    if isinstance(place, datetime):
        moment = to_microseconds(place)
        return topics.offsets(topic, timestamp_us=moment, isolation=isolation).offsets
    if isinstance(place, str):
        if place not in _NAMED:
            raise InvalidOption(f"a place is {_TAKEN}, not {place!r}")
        return topics.offsets(topic, at=_NAMED[place], isolation=isolation).offsets
    count = len(topics.describe(topic).partitions)
    if isinstance(place, Mapping):
        asked = {number: place.get(number, _NAMED[default]) for number in range(count)}
        for number in place:
            if number not in asked:
                raise InvalidOption(
                    f"topic {topic!r} has partitions 0 to {count - 1}, not {number!r}"
                )
    else:
        asked = dict.fromkeys(range(count), place)
    for offset in asked.values():
        if isinstance(offset, Integral) and offset > INT64_MAX:
            raise InvalidOption(f"an offset is {INT64_MAX} at most, not {offset}")
        if not isinstance(offset, Integral) or isinstance(offset, bool):
            raise InvalidOption(f"a place is {_TAKEN}, not {offset!r}")
    return named_resolved(topics, topic, asked, isolation)


def named_resolved(
    topics: TopicsClient, topic: str, asked: Mapping[int, int], isolation: Isolation
) -> dict[int, int]:
    """Return the mapping with -2 (earliest) and -1 (latest) replaced by offsets."""
    found = {int(number): int(offset) for number, offset in asked.items()}
    for name in (EARLIEST, LATEST):
        numbers = [number for number, offset in found.items() if offset == name]
        if numbers:
            at = topics.offsets(topic, at=name, isolation=isolation, partitions=numbers)
            found.update(at.offsets)
    if any(offset < 0 for offset in found.values()):
        raise InvalidOption(f"an offset is at least 0 (or -2 earliest, -1 latest): {dict(asked)}")
    return found


def offsets_of(
    topics: TopicsClient, places: Mapping[Key, int | datetime], isolation: Isolation
) -> dict[Key, int]:
    """Look up the moments among the places. Return the offset of each partition."""
    moments: dict[tuple[str, int], list[int]] = defaultdict(list)
    found = {}
    for (topic, number), place in places.items():
        if isinstance(place, datetime):
            moments[topic, to_microseconds(place)].append(number)
        else:
            found[topic, number] = int(place)
    for (topic, moment), numbers in moments.items():
        at = topics.offsets(topic, timestamp_us=moment, isolation=isolation, partitions=numbers)
        found.update({(topic, number): at.offsets[number] for number in numbers})
    return found


def cut_of(
    connection: ClusterConnection,
    ids: Mapping[str, str],
    lower: Mapping[Key, int] | None = None,
    upper: Mapping[Key, int] | None = None,
) -> dict[Key, int]:
    """Return a cut through all partitions of the topics (name → id), between these offsets."""
    topics = [
        CutTopic(topic=name, topic_id=topic_id, lower=_of(name, lower), upper=_of(name, upper))
        for name, topic_id in ids.items()
    ]
    found = connection.call(AtomicCut(topics=topics)).offsets
    return {(name, number): offset for name in ids for number, offset in found[name].items()}


def _of(name: str, offsets: Mapping[Key, int] | None) -> dict[int, int]:
    return {number: offset for (topic, number), offset in (offsets or {}).items() if topic == name}
