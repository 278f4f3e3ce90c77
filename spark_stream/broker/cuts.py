"""Where a read_atomic query may stand: one cut through all its partitions, of all its topics.

Bounds are taken of all partitions first, and only then what transactions lie where: a transaction
with a record below some bound was decided before, so by then all its records are in the logs.
"""

from __future__ import annotations

from spark_stream.broker.host import Host
from spark_stream.consistency.atomic import greatest_cut, next_cut
from spark_stream.errors import InvalidRequest
from spark_stream.wire.messages import AtomicCut, Cut


def atomic_cut(host: Host, asked: AtomicCut) -> Cut:
    """The cut that ``asked`` allows; see ``consistency.atomic``.

    Raises:
        UnknownTopic, UnknownPartition: naming it.
    """
    if len({each.topic for each in asked.topics}) != len(asked.topics):
        raise InvalidRequest("a topic is named twice")
    hosted = {each.topic: host.topic(each.topic, each.topic_id) for each in asked.topics}
    for each in asked.topics:
        for number in (*each.lower, *each.upper):
            hosted[each.topic].partition(number)
    places = [
        (each, number, hosted[each.topic].partition(number))
        for each in asked.topics
        for number in range(len(hosted[each.topic].partitions))
    ]
    seen = [partition.bounds() for _, _, partition in places]
    bounds = [int(each.last_stable_offset) for each in seen]
    spans = [partition.spans() for _, _, partition in places]
    upper = [each.upper.get(n, bound) for (each, n, _), bound in zip(places, bounds, strict=True)]
    if any(each.lower for each in asked.topics):
        lower = [
            each.lower.get(number, int(bound.log_start_offset))
            for (each, number, _), bound in zip(places, seen, strict=True)
        ]
        found = next_cut(lower, upper, bounds, spans)
    else:
        found = greatest_cut([min(pair) for pair in zip(upper, bounds, strict=True)], spans)
    offsets: dict[str, dict[int, int]] = {each.topic: {} for each in asked.topics}
    for (each, number, _), offset in zip(places, found, strict=True):
        offsets[each.topic][number] = int(offset)
    return Cut(offsets=offsets)
