"""Streaming offsets, in the form of Spark's checkpoints, and the ranges between two of them.

As JSON: ``{"<topic>": {"id": "<topic id>", "cluster": "<cluster id>", "partitions": {"0":
{"offset": 42, "epoch": 3}}}}``. By the topic's id, a topic that was deleted and created again
differs from the one that was read before. By the cluster's id, another log differs from the one
that was read. A checkpoint always has it. An option with offsets that were written by hand may lack
it.

``epoch`` is the leader epoch in which the record before the offset was written. It is left out if
it is unknown. That is a lineage of one claim (:mod:`spark_stream.consistency.replication.epochs`).
Any other lineage is beside it as ``lineage``, ``[[epoch, end], …]``: when the query is below, or
above, the offset that the log reported, or when records of several epochs are not replicated.
``held_back`` is the number of records after the offset that an open transaction holds back. It is
left out if there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.errors import InvalidRequest
from spark_stream.structs import INT64_MAX
from spark_stream.wire.topic_messages import PartitionOffset, PartitionOffsets


class TopicOffsets(Struct, frozen=True):
    """The offsets of one topic: partition → offset, and their lineages, if known.

    ``held_back``: the records after an offset that an open transaction holds back, if there are
    any. Only the offsets of :meth:`LogState.offsets` have it.
    """

    id: str
    offsets: Mapping[int, int]
    lineages: Mapping[int, Lineage]
    held_back: Mapping[int, int] = {}

    def moved(self, offsets: Mapping[int, int]) -> TopicOffsets:
        """Return the same topic at other offsets."""
        return TopicOffsets(self.id, offsets, self.lineages)


Offsets = Mapping[str, TopicOffsets]


class LogState(Struct, frozen=True):
    """The present state of the log: topic → its offsets under the isolation level, and bounds."""

    latest: Mapping[str, PartitionOffsets]
    missing: frozenset[str]

    def offsets(self) -> dict[str, TopicOffsets]:
        """Return the bounds as streaming offsets."""
        return {
            name: TopicOffsets(
                topic.topic_id, topic.offsets, topic.lineages, _held_back(topic.partitions)
            )
            for name, topic in self.latest.items()
        }


class Range(Struct, frozen=True):
    """The records ``[start, end)`` of one partition. ``lineage``: that of the end."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    lineage: Lineage = NO_LINEAGE


def to_json(offsets: Offsets, cluster_id: str) -> dict[str, Any]:
    """Return the offsets in the log of this cluster as Spark logs them."""
    return {
        name: {
            "id": topic.id,
            "cluster": cluster_id,
            "partitions": {
                str(number): _place(offset, topic.lineages.get(number, NO_LINEAGE))
                | ({"held_back": held} if (held := topic.held_back.get(number)) else {})
                for number, offset in sorted(topic.offsets.items())
            },
        }
        for name, topic in sorted(offsets.items())
    }


def from_json(value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    """Return offsets from their JSON.

    Raises:
        InvalidRequest: They are no offsets of this source.
    """
    try:
        return {str(name): _topic(topic) for name, topic in value.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_ours(value) from error


def from_checkpoint(value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    """Return the offsets of Spark's checkpoint.

    Raises:
        InvalidRequest: They are no offsets of this source, or do not name their log.
    """
    found = from_json(value)
    if clusters(value).keys() != found.keys():
        raise _not_ours(value)
    return found


def _not_ours(value: Mapping[str, Any]) -> InvalidRequest:
    return InvalidRequest(
        f"the checkpoint's offset is not isolog's: {value!r}",
        hint="Use the checkpoint of this very query, or a new one.",
    )


def _topic(logged: Mapping[str, Any]) -> TopicOffsets:
    """Parse the logged offsets of a topic."""
    places = {_number(int(number)): place for number, place in logged["partitions"].items()}
    return TopicOffsets(
        str(logged["id"]),
        {number: _number(place["offset"]) for number, place in places.items()},
        {number: _lineage(place) for number, place in places.items()},
        {
            number: _number(place["held_back"])
            for number, place in places.items()
            if "held_back" in place
        },
    )


def _held_back(partitions: Mapping[int, PartitionOffset]) -> dict[int, int]:
    return {
        number: held
        for number, each in partitions.items()
        if each.facts is not None and (held := (each.facts.high_watermark or 0) - each.offset) > 0
    }


def _place(offset: int, lineage: Lineage) -> dict[str, Any]:
    """Return an offset and its lineage as Spark logs them."""
    if not lineage:
        return {"offset": offset}
    place = {"offset": offset, "epoch": lineage[-1][0]}
    if lineage == ((lineage[-1][0], offset),):
        return place
    return place | {"lineage": [list(claim) for claim in lineage]}


def _lineage(place: Mapping[str, Any]) -> Lineage:
    """Parse the lineage of a logged offset. ValueError if it is none."""
    if "epoch" not in place and "lineage" not in place:
        return NO_LINEAGE
    last = _number(place["epoch"])
    if "lineage" not in place:
        return ((last, _number(place["offset"])),)
    lineage = tuple((_number(epoch), _number(end)) for epoch, end in place["lineage"])
    rising = all(list(each) == sorted(each) for each in zip(*lineage, strict=True))
    if not lineage or lineage[-1][0] != last or not rising:
        raise ValueError(f"no lineage: {place!r}")
    return lineage


def _number(value: object) -> int:
    """Check an offset or an epoch. ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"no offset, and no epoch: {value!r}")
    return value


def clusters(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the id of the log of each topic, for topics with one in a logged offset."""
    return {
        name: topic["cluster"]
        for name, topic in value.items()
        if isinstance(topic.get("cluster"), str) and topic["cluster"]
    }


def known_offsets(offsets: Offsets, name: str, topic_id: str) -> Mapping[int, int]:
    """Return the offsets of the topic with this id, or none if they are of another topic."""
    topic = offsets.get(name)
    return topic.offsets if topic is not None and topic.id == topic_id else {}


def ranges(start: Offsets, end: Offsets) -> Iterator[Range]:
    """Yield the ranges between two offsets, by partition.

    A partition that the start lacks begins at 0, and so does one of a topic that was created again.
    If the end is below the start, there is no range: the records up to the end were returned before
    (Spark repeats such a batch when a query with a moving start restarts).
    """
    for name, topic in sorted(end.items()):
        known = known_offsets(start, name, topic.id)
        for number, last in sorted(topic.offsets.items()):
            first = known.get(number, 0)
            if first < last:
                lineage = topic.lineages.get(number, NO_LINEAGE)
                yield Range(name, topic.id, number, first, last, lineage)
