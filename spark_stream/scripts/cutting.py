"""Where a read_atomic query may stop: one cut through all partitions of all its topics.

The bounds of all partitions are read first, and only then where transactions lie: a transaction
with a record below some bound was decided before that, so all its records are in the logs by then.
That is true of the logs of present leaders. So once the bounds are known, the leaders then on
record are asked where transactions lie. A replaced leader that does not know it yet may lack a part
of a transaction; its bounds are only too low, which does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from spark_stream.cluster.topics import Topic
from spark_stream.consistency.partition.atomic_cuts import greatest_cut, next_cut
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import IsologError, UnknownPartition
from spark_stream.scripts.steps import FindTopic, Script, read_bounds, read_extents
from spark_stream.wire.topic_messages import CutTopic

T = TypeVar("T")


def find_cut(topics: Sequence[CutTopic]) -> Script[dict[str, dict[int, int]]]:
    """Find the cut, by topic and partition; see ``consistency.partition.atomic_cuts``.

    Raises:
        UnknownTopic, UnknownPartition: there is none; the error names it.
        LeaderUnavailable: a partition's leader was not reached.
    """
    places: list[tuple[CutTopic, Joined]] = []
    for each in topics:
        topic = yield from FindTopic(each.topic, each.topic_id)
        _check_named(topic, each)
        places += [(each, Joined(topic.name, topic.id, n)) for n in range(topic.partitions)]
    where = [at for _, at in places]
    seen = [_answer(each) for each in (yield from read_bounds(where))]
    spans = [_answer(each) for each in (yield from read_extents(where))]
    bounds = [int(each.last_stable_offset) for each in seen]
    upper = [
        each.upper.get(at.partition, bound)
        for (each, at), bound in zip(places, bounds, strict=True)
    ]
    if any(each.lower for each in topics):
        lower = [
            each.lower.get(at.partition, int(bound.log_start_offset))
            for (each, at), bound in zip(places, seen, strict=True)
        ]
        found = next_cut(lower, upper, bounds, spans)
    else:
        found = greatest_cut([min(pair) for pair in zip(upper, bounds, strict=True)], spans)
    offsets: dict[str, dict[int, int]] = {each.topic: {} for each in topics}
    for at, offset in zip(where, found, strict=True):
        offsets[at.topic][at.partition] = int(offset)
    return offsets


def _check_named(topic: Topic, asked: CutTopic) -> None:
    for number in (*asked.lower, *asked.upper):
        if not 0 <= number < topic.partitions:
            raise UnknownPartition(
                f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number}",
                topic=topic.name,
                partition=number,
            )


def _answer(answer: T | IsologError) -> T:
    if isinstance(answer, IsologError):
        raise answer
    return answer
