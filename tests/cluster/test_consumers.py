"""Where named consumers go on, as records: on every store."""

from __future__ import annotations

from spark_stream.cluster.consumers import ConsumerRecords
from spark_stream.consistency.transactions import PositionOf


def position(offset: int, partition: int = 0, consumer: str = "c") -> PositionOf:
    return PositionOf(consumer, "t", "id", partition, offset)


def test_positions_are_merged_by_partition(store):
    consumers = ConsumerRecords(store)
    assert consumers.get("c") == []
    consumers.store([position(5), position(6, 1), position(9, consumer="d")])
    consumers.store([position(7, 1)])
    assert consumers.get("c") == [position(5), position(7, 1)]
    assert consumers.get("d") == [position(9, consumer="d")]


def test_whoever_is_late_stores_nothing(store):
    """Between the late one's read and its write a later transaction has moved the position on."""
    consumers = ConsumerRecords(store)
    asked = []

    def still() -> bool:
        asked.append(True)
        if len(asked) == 1:
            consumers.store([position(20)])
            return True
        return False

    consumers.store([position(10)], still)
    assert consumers.get("c") == [position(20)]
    assert len(asked) == 2
