"""Streaming offsets: what Spark logs in its checkpoint, and the ranges between two of them.

As JSON: ``{"<topic>": {"id": "<topic id>", "partitions": {"0": {"offset": 42, "epoch": 3}}}}``. The
id tells a topic that was deleted and made anew from the one that was read before. Beside it is
``cluster``, the id of the log that the topic is of; checkpoints of earlier releases lack it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_stream.client.values import PartitionOffsets
from spark_stream.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The offsets of one topic: partition → offset, and the leader epoch they were seen under."""

    id: str
    offsets: Mapping[int, int]
    epochs: Mapping[int, int]

    def moved(self, offsets: Mapping[int, int]) -> TopicOffsets:
        """The same topic at other offsets."""
        return TopicOffsets(self.id, offsets, self.epochs)


Offsets = Mapping[str, TopicOffsets]


@dataclass(frozen=True, slots=True)
class Found:
    """The log as it is now: topic → its offsets under the isolation level, and its bounds."""

    latest: Mapping[str, PartitionOffsets]
    missing: frozenset[str]

    def offsets(self) -> dict[str, TopicOffsets]:
        """The bounds as streaming offsets, wherever a query is."""
        return {
            name: TopicOffsets(topic.topic_id, topic.offsets, topic.epochs)
            for name, topic in self.latest.items()
        }


@dataclass(frozen=True, slots=True)
class Range:
    """The records ``[start, end)`` of one partition; under which leader epoch the end was seen."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    epoch: int | None = None


def to_json(offsets: Offsets, cluster_id: str | None = None) -> dict[str, Any]:
    """As Spark logs it."""
    log = {} if cluster_id is None else {"cluster": cluster_id}
    return {
        name: {
            "id": topic.id,
            **log,
            "partitions": {
                str(number): {"offset": offset, "epoch": topic.epochs.get(number, 0)}
                for number, offset in sorted(topic.offsets.items())
            },
        }
        for name, topic in sorted(offsets.items())
    }


def from_json(value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    """The offsets that Spark gives back, or InvalidRequest: a checkpoint of something else."""
    try:
        return {
            str(name): TopicOffsets(
                str(topic["id"]),
                {int(number): int(at["offset"]) for number, at in topic["partitions"].items()},
                {int(number): int(at["epoch"]) for number, at in topic["partitions"].items()},
            )
            for name, topic in value.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"the checkpoint's offset is not isolog's: {value!r}",
            hint="Use the checkpoint of this very query, or a new one.",
        ) from error


def clusters(value: Mapping[str, Any]) -> dict[str, str]:
    """The log of each topic of a logged offset, if the offset names it."""
    return {
        name: str(topic["cluster"])
        for name, topic in value.items()
        if isinstance(topic, Mapping) and topic.get("cluster") is not None
    }


def known_offsets(offsets: Offsets, name: str, topic_id: str) -> Mapping[int, int]:
    """Where the topic of this id stands; nowhere, if the offsets know none, or another one."""
    topic = offsets.get(name)
    return topic.offsets if topic is not None and topic.id == topic_id else {}


def ranges(start: Offsets, end: Offsets) -> Iterator[Range]:
    """What lies between two offsets, partition by partition.

    A partition that the start does not know begins at 0, and so does one of a topic that was made
    anew. Where the end is below the start there is nothing: the records up to the end were given
    before (Spark asks so when a query with a moving start begins again).
    """
    for name, topic in sorted(end.items()):
        known = known_offsets(start, name, topic.id)
        for number, last in sorted(topic.offsets.items()):
            first = known.get(number, 0)
            if first < last:
                yield Range(name, topic.id, number, first, last, topic.epochs.get(number))
