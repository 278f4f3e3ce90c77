"""Partitions as records of the store."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.partitions import (
    PartitionId,
    Partitions,
    StoredPartition,
    decode,
    encode,
    id_of,
    key_of,
    put_of,
)
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset

B1, B2, B3 = (BrokerId(each) for each in ("b1", "b2", "b3"))
RECORD = PartitionRecord(
    replicas=(B1, B2, B3),
    leader=B2,
    leader_epoch=LeaderEpoch(7),
    isr=(Member(B2, Generation("g1")), Member(B1, Generation("g9"))),
    adding=(B3,),
    removing=(B1,),
)

broker_ids = st.text(max_size=5).map(BrokerId)
members = st.builds(Member, broker_ids, st.text(max_size=5).map(Generation))
several = st.lists(broker_ids, max_size=4).map(tuple)
records = st.builds(
    PartitionRecord,
    replicas=several,
    leader=st.none() | broker_ids,
    leader_epoch=st.integers(0, 2**40).map(LeaderEpoch),
    isr=st.lists(members, max_size=4).map(tuple),
    adding=several,
    removing=several,
    trimmed=st.integers(0, 2**63 - 1).map(Offset),
)


@given(records, st.text(min_size=1), st.integers(0, 9_999))
def test_the_codec_keeps_a_partition(record, topic_id, number):
    partition = PartitionId(topic_id, number)
    stored = StoreRecord(key_of(partition), json.loads(json.dumps(encode(record))), 3)
    assert decode(stored) == StoredPartition(partition, record, 3)
    assert id_of(stored.key) == partition


def test_partitions_are_found_by_topic_and_number(store):
    partitions = Partitions(store)
    ids = [PartitionId("t", number) for number in range(12)] + [PartitionId("t2", 0)]
    versions = store.put_many([put_of(each, RECORD, 0) for each in ids])
    found = partitions.of_topic("t")
    assert [each.id.number for each in found] == list(range(12))
    assert partitions.get(ids[7]) == StoredPartition(ids[7], RECORD, versions[7])
    assert partitions.get(PartitionId("t", 12)) is None
    assert partitions.of_topic("t1") == []


def test_a_change_of_a_partition_expects_the_version_that_was_seen(store):
    partition = PartitionId("t", 0)
    (version,) = store.put_many([put_of(partition, RECORD, 0)])
    assert store.put_many([put_of(partition, RECORD, 0)]) == [None]
    assert store.put_many([put_of(partition, RECORD, version)]) != [None]
