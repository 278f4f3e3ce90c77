"""What may be left of topics that are not there: records that announce it.

::

    removed/<topic id>   a topic whose partition records and files may be there though it is not

Such a record is there from before the first record of a topic in the making until the topic is
there, and from before a topic is deleted until nothing is left of it; also while a topic gets more
partitions, because it may be deleted then. As long as the topic is there, the record does nothing.
``maker`` is the broker that makes the topic, or None if it was made. ``brokers`` are those that may
have files of it: each takes itself off once it has removed its own, and the last one removes the
record. None does while the maker may only stand still.
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

    ``cleared``: its maker was taken for dead, and what it made is being removed. So the topic is
    not to be, also if its maker had only stood still and makes its record after all. ``stalled`` is
    that maker, until it has started again or does not belong to the cluster any more: for so long
    it may go on, and make what was removed already.
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
