"""Records that announce what may be left of topics that do not exist.

::

    removed/<topic id>   a topic that may have partition records and files without existing itself

Such a record exists while a topic is being made, from before its first record; while a topic gets
more partitions, because it may be deleted meanwhile; and from before a topic is deleted until
nothing is left of it. As long as the topic exists, the record has no effect unless it is
``cleared``. ``maker`` is the broker that makes the topic, or None if none does. ``brokers`` are
those that may have files of it: each takes itself off once it has removed its own, and the last one
removes the record. No broker does so while there is a ``stalled`` maker.
"""

from __future__ import annotations

from typing import Any, Final

from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import Topic, from_store, stored
from spark_stream.consistency.ids import BrokerId
from spark_stream.structs import Positional, learn_types

REMOVED: Final = "removed/"


class LeftOver(Positional, frozen=True):
    """What may be left of a topic, and where.

    ``cleared``: the making was given up, for example because the maker was taken for dead. What was
    made is removed, even if the maker had only paused and makes the topic's record after all.
    ``stalled``: the maker that was taken for dead, until it has restarted or left the cluster: till
    then it may go on, and make again what was removed.
    """

    topic: Topic
    brokers: tuple[BrokerId, ...]
    maker: BrokerId | None = None
    cleared: bool = False
    stalled: BrokerId | None = None


def encode_left_over(left: LeftOver) -> dict[str, Any]:
    """Return what the store holds of it."""
    return stored(left)


def decode_left_over(record: StoreRecord) -> LeftOver:
    """Return what a record holds."""
    return from_store(record, LeftOver)


learn_types(LeftOver)
