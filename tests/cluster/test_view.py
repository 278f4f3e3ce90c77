"""The cluster as a broker sees it equals the store after any events."""

from __future__ import annotations

import threading

import msgspec
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from isolog.errors import StorageFailure
from spark_stream.cluster import brokers, lakes, partitions, topics
from spark_stream.cluster.brokers import BROKERS, CONTROLLER, Brokers, Controller, RegisteredBroker
from spark_stream.cluster.lakes import LAKES
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, StoredPartition, put_of
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.cluster.topics import TOPICS, Topic
from spark_stream.cluster.view import ClusterView, News, Snapshot
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.lakes import LakeDescription, LakeTopic
from tests.examples import examples
from tests.simulation.store import MemoryRecords, MemoryStore

SCHEMA = pa.schema([pa.field("n", pa.int64())])
B1 = BrokerId("b1")


def topic(name: str = "flights", topic_id: str = "t1", partitions: int = 1) -> Topic:
    return Topic(name, topic_id, SCHEMA, partitions, {})


def led(epoch: int = 0) -> PartitionRecord:
    return PartitionRecord((B1,), B1, LeaderEpoch(epoch), (Member(B1, Generation("g")),))


def put(store: MetadataStore, key: str, value) -> int:
    """Writes the record at any version."""
    record = store.get(key)
    version = store.put(key, value, 0 if record is None else record.version)
    assert version is not None
    return version


def remove(store: MetadataStore, key: str) -> None:
    record = store.get(key)
    assert record is None or store.delete(key, record.version)


def content(store: MetadataStore) -> Snapshot:
    """The records of the store, read together and decoded one by one."""
    found = [topics.decode(each) for each in store.list(TOPICS)]
    numbered: dict[str, dict[int, StoredPartition]] = {}
    for record in store.list(PARTITIONS):
        seen = partitions.decode(record)
        numbered.setdefault(seen.id.topic_id, {})[seen.id.number] = seen
    held = store.get(CONTROLLER)
    known = [lakes.decode(each.value) for each in store.list(LAKES)]
    return Snapshot(
        revision=store.changes(0).revision,
        topics={each.name: each for each in found},
        names={each.id: each.name for each in found},
        partitions=numbered,
        brokers={BrokerId(each.id): each for each in Brokers(store).all()},
        controller=None if held is None else brokers.decode_controller(held.value),
        lakes={each.name: each for each in known},
    )


def test_a_view_has_the_records_of_the_store(store):
    view = ClusterView(store)
    assert view.now == Snapshot()
    put(store, TOPICS + "flights", topics.encode(topic()))
    version = put(store, f"{PARTITIONS}t1/0", partitions.encode(led(4)))
    put(store, BROKERS + "b1", brokers.encode(RegisteredBroker("b1", "here:1", "s", "1")))
    put(store, CONTROLLER, brokers.encode_controller(Controller(B1, "s", 3)))
    put(store, "transactions/x", {"not": "looked at"})
    news = view.refresh()
    assert news == News(
        frozenset({"flights"}),
        frozenset({PartitionId("t1", 0)}),
        frozenset({B1}),
        controller=True,
    )
    assert view.now == content(store)
    assert view.now.topic("t1") == topic()
    assert view.now.topic("t2") is None
    assert view.now.partition(PartitionId("t1", 0)) == StoredPartition(
        PartitionId("t1", 0), led(4), version
    )
    assert view.now.partition(PartitionId("t1", 1)) is None
    assert view.now.partition(PartitionId("t2", 0)) is None
    assert not view.refresh()


def test_a_topic_that_was_made_anew_has_another_id(store):
    view = ClusterView(store)
    put(store, TOPICS + "flights", topics.encode(topic(topic_id="t1")))
    view.refresh()
    remove(store, TOPICS + "flights")
    put(store, TOPICS + "flights", topics.encode(topic(topic_id="t2")))
    assert view.refresh().topics == {"flights"}
    assert view.now.topic("t1") is None
    assert view.now.topic("t2").name == "flights"


def test_a_record_that_is_written_again_unchanged_alters_no_topic(store):
    """The claim before partitions are added writes it. Streams compare topics by identity."""
    view = ClusterView(store)
    put(store, TOPICS + "flights", topics.encode(topic()))
    view.refresh()
    known = view.now.topics["flights"]
    put(store, TOPICS + "flights", topics.encode(topic()))
    view.refresh()
    assert view.now.topics["flights"] is known
    described = SCHEMA.with_metadata({"owner": "b"})
    put(store, TOPICS + "flights", topics.encode(msgspec.structs.replace(known, schema=described)))
    view.refresh()
    assert view.now.topics["flights"].schema.metadata == {b"owner": b"b"}


def test_a_snapshot_never_changes(store):
    view = ClusterView(store)
    put(store, f"{PARTITIONS}t1/0", partitions.encode(led(1)))
    view.refresh()
    before = view.now
    put(store, f"{PARTITIONS}t1/0", partitions.encode(led(2)))
    put(store, f"{PARTITIONS}t1/1", partitions.encode(led(2)))
    view.refresh()
    remove(store, f"{PARTITIONS}t1/0")
    view.refresh()
    assert before.partition(PartitionId("t1", 0)).record == led(1)
    assert before.partition(PartitionId("t1", 1)) is None
    assert view.now.partition(PartitionId("t1", 0)) is None


def test_listeners_get_each_refresh_in_order_and_a_failing_one_stops_no_other(store, caplog):
    view = ClusterView(store)
    heard: list[tuple[News, int]] = []

    def fail(news: News, now: Snapshot) -> None:
        raise RuntimeError("it has a bug")

    view.subscribe(fail)
    view.subscribe(lambda news, now: heard.append((news, now.revision)))
    for epoch in range(3):
        put(store, f"{PARTITIONS}t1/0", partitions.encode(led(epoch)))
        view.refresh()
        view.refresh()
    assert [news.partitions for news, _ in heard] == [{PartitionId("t1", 0)}] * 3
    assert [revision for _, revision in heard] == sorted({revision for _, revision in heard})
    assert "it has a bug" in caplog.text


def test_an_unreadable_record_hides_no_other(store, caplog):
    view = ClusterView(store)
    put(store, f"{PARTITIONS}t1/0", partitions.encode(led(1)))
    view.refresh()
    put(store, f"{PARTITIONS}t1/0", {"of": "a later release"})
    put(store, f"{PARTITIONS}t1/x", partitions.encode(led(1)))
    put(store, TOPICS + "flights", {"schema": "%%%"})
    put(store, BROKERS + "b2", {"address": 1})
    put(store, f"{PARTITIONS}t1/1", partitions.encode(led(5)))
    view.refresh()
    assert view.now.partition(PartitionId("t1", 1)).record == led(5)
    assert view.now.partition(PartitionId("t1", 0)).record == led(1), "as it was known last"
    assert view.now.topics == {}
    assert view.now.brokers == {}
    assert caplog.text.count("cannot be read") == 4


def test_a_failing_store_leaves_the_view_unchanged(store):
    view = ClusterView(store)
    put(store, f"{PARTITIONS}t1/0", partitions.encode(led(1)))
    view.refresh()
    before = view.now
    store.close()
    with pytest.raises(StorageFailure):
        view.refresh()
    assert view.now is before


# -- any order of changes --------------------------------------------------------------------------

NUMBERS = st.integers(0, 3)
TOPIC_IDS = st.sampled_from(["t1", "t2", "t3"])
NAMES = st.sampled_from(["a", "b"])


class ViewMachine(RuleBasedStateMachine):
    """Changes of all kinds of records, against what the store holds when somebody looks."""

    @initialize()
    def open(self):
        self.records = MemoryRecords()
        self.store = MemoryStore(self.records)
        self.views = [ClusterView(self.store), ClusterView(self.store)]

    @rule(topic_id=TOPIC_IDS, number=NUMBERS, epoch=st.integers(0, 9))
    def put_partition(self, topic_id, number, epoch):
        put(self.store, f"{PARTITIONS}{topic_id}/{number}", partitions.encode(led(epoch)))

    @rule(topic_id=TOPIC_IDS, number=NUMBERS)
    def delete_partition(self, topic_id, number):
        remove(self.store, f"{PARTITIONS}{topic_id}/{number}")

    @rule(name=NAMES, topic_id=TOPIC_IDS, count=st.integers(1, 3))
    def put_topic(self, name, topic_id, count):
        """A topic's id is not another's."""
        value = topics.encode(topic(name, f"{topic_id}-{name}", count))
        put(self.store, TOPICS + name, value)

    @rule(name=NAMES)
    def delete_topic(self, name):
        remove(self.store, TOPICS + name)

    @rule(name=NAMES, address=st.sampled_from("xy"))
    def put_broker(self, name, address):
        put(self.store, BROKERS + name, brokers.encode(RegisteredBroker(name, address, "s", "1")))

    @rule(name=NAMES)
    def delete_broker(self, name):
        remove(self.store, BROKERS + name)

    @rule(term=st.integers(0, 3))
    def put_controller(self, term):
        put(self.store, CONTROLLER, brokers.encode_controller(Controller(B1, "s", term)))

    @rule()
    def delete_controller(self):
        remove(self.store, CONTROLLER)

    @rule(name=NAMES, offset=st.integers(0, 3))
    def put_lake(self, name, offset):
        made = LakeDescription(name, "l1", "/lake", (LakeTopic("a", "t1", {0: offset}),))
        put(self.store, LAKES + name, lakes.encode(made))

    @rule(name=NAMES)
    def delete_lake(self, name):
        remove(self.store, LAKES + name)

    @rule()
    def forget_deleted(self):
        self.records.forget_deleted()

    @rule(which=st.integers(0, 1))
    def look(self, which):
        view = self.views[which]
        before = view.now
        news = view.refresh()
        assert view.now == content(self.store) or not news
        assert _without_revision(view.now) == _without_revision(content(self.store))
        assert news.topics >= _differing(before.topics, view.now.topics)
        assert news.brokers >= _differing(before.brokers, view.now.brokers)
        assert news.lakes >= _differing(before.lakes, view.now.lakes)
        assert news.partitions >= _differing(_flat(before), _flat(view.now))
        assert news.controller or before.controller == view.now.controller


def _without_revision(seen: Snapshot) -> tuple:
    return seen.topics, seen.names, seen.partitions, seen.brokers, seen.controller, seen.lakes


def _flat(seen: Snapshot) -> dict[PartitionId, StoredPartition]:
    return {each.id: each for numbered in seen.partitions.values() for each in numbered.values()}


def _differing(before, after) -> set:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.rule("a broker's view of the cluster", "cluster/view.py")
def test_after_any_changes_the_view_equals_the_store():
    run_state_machine_as_test(
        ViewMachine, settings=settings(max_examples=examples(60), stateful_step_count=30)
    )


# -- threads and numbers ---------------------------------------------------------------------------


@pytest.fixture
def many(store) -> MetadataStore:
    """A store with ten thousand partitions of one topic."""
    put(store, TOPICS + "flights", topics.encode(topic(partitions=10_000)))
    store.put_many([put_of(PartitionId("t1", number), led(), 0) for number in range(10_000)])
    return store


@pytest.mark.quick("sqlite", "memory")
def test_with_ten_thousand_partitions_a_refresh_copies_only_the_changes(many):
    """Counted in records that are decoded, not in time."""
    view = ClusterView(many)
    assert len(view.refresh().partitions) == 10_000
    before = view.now
    record = before.partition(PartitionId("t1", 77))
    many.put_many([put_of(record.id, led(1), record.version)])
    assert view.refresh().partitions == {record.id}
    kept = [
        view.now.partitions["t1"][number] is before.partitions["t1"][number]
        for number in range(10_000)
    ]
    assert kept.count(False) == 1
    assert view.now.topics is before.topics


@pytest.mark.quick("sqlite", "memory")
@pytest.mark.slow
def test_readers_see_one_revision_at_a_time_while_others_refresh(store):
    """Two partitions that are always changed together are never seen apart."""
    view = ClusterView(store)
    ids = [PartitionId("t1", 0), PartitionId("t2", 0)]
    stop = threading.Event()
    apart: list[Snapshot] = []

    def read() -> None:
        while not stop.is_set():
            now = view.now
            epochs = {
                None if seen is None else seen.record.leader_epoch
                for seen in map(now.partition, ids)
            }
            if len(epochs) != 1:
                apart.append(now)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for epoch in range(100):
        seen = [view.now.partition(each) for each in ids]
        versions = [0 if each is None else each.version for each in seen]
        assert None not in store.put_many(
            [put_of(each, led(epoch), version) for each, version in zip(ids, versions, strict=True)]
        )
        view.refresh()
    stop.set()
    for each in readers:
        each.join()
    assert apart == []
