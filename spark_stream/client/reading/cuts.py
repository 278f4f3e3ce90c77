"""Atomic cuts for read_atomic readers, through all their topics, in one call."""

from __future__ import annotations

from collections.abc import Mapping

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.reading.positions import Key
from spark_stream.wire.offset_messages import AtomicCut, CutTopic


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
