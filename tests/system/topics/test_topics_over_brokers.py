"""Topics with replicas on several broker processes, created and deleted while brokers die."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import IsologError
from spark_stream.cluster.partitions import PARTITIONS
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.topics import REMOVED
from tests.brokers import brokers_on, make_topic
from tests.support import BrokerProcess, act, eventually, fetched, numbers

SECONDS = 4.0


def folders(broker: BrokerProcess) -> list[str]:
    """Return the names of the topics with files at the broker."""
    return sorted({each.parts[-2] for each in broker.directory.glob("topics/*/*")})


def removals(folder: Path) -> tuple[list[str], set[str]]:
    """Return the names of deleted topics that await removal, and the ids with partition records."""
    store = SqliteStore(folder / "metadata.sqlite")
    announced = [each.value["topic"]["name"] for each in store.list(REMOVED)]
    recorded = {each.key.split("/")[1] for each in store.list(PARTITIONS)}
    store.close()
    return announced, recorded


def put(broker: BrokerProcess, topic: str, count: int) -> None:
    with broker.connect() as log, log.producer(isolation="read_committed") as producer:
        producer.append(topic, numbers(0, count), partition=0).result(20)


def test_topic_deleted_while_a_broker_is_down_is_removed_after_its_start(
    tmp_path: Path,
):
    with brokers_on(tmp_path) as (a, b), a.channel() as asked:
        make_topic(asked, "t", [["a", "b"]])
        put(a, "t", 5)
        eventually(lambda: list(b.directory.glob("topics/t/*/0")))
        b.kill()
        act(asked, "delete-topic", topic="t")
        eventually(lambda: folders(a) == [])
        assert removals(tmp_path) != ([], set())
        make_topic(asked, "t", [["a"]])  # the name is already free
        b.start()
        eventually(lambda: folders(b) == [])
        eventually(lambda: removals(tmp_path)[0] == [])
        assert len(removals(tmp_path)[1]) == 1
        assert folders(a) == ["t"]
        assert act(asked, "list-topics") == {"topics": ["t"]}


@pytest.mark.full  # the test above, of a deletion, runs always
def test_broker_started_after_the_creation_of_topics_follows_them(tmp_path: Path):
    with brokers_on(tmp_path) as (a, b):
        with a.channel() as asked:
            make_topic(asked, "t", [["a", "b"]])
            b.kill()
            with pytest.raises(IsologError):  # b cannot create the folder
                make_topic(asked, "u", [["a", "b"]])
            # The replica is placed at the running broker.
            act(asked, "create-topic", topic="u", replication_factor=1)
            put(a, "t", 5)
            b.start()

            def in_sync() -> list[str]:
                return list(act(asked, "describe-topic", topic="t")["partitions"][0]["isr"])

            eventually(lambda: in_sync() == ["a", "b"])
            assert act(asked, "list-topics") == {"topics": ["t", "u"]}
            a.kill()
        with b.channel() as asked:
            eventually(
                lambda: not isinstance(result_or_error(lambda: fetched(asked, "t")), IsologError)
            )
            (batch, *_), _ = fetched(asked, "t")
            assert batch[0].num_rows == 5


def result_or_error(call: Any) -> Any:
    """Return the answer of the call, or its typed error."""
    try:
        return call()
    except IsologError as error:
        return error


@pytest.mark.full  # every interleaving: tests/scripts/test_topics.py
def test_topics_are_created_and_deleted_atomically_while_a_broker_dies(
    tmp_path: Path,
):
    """Two brokers get calls throughout. The third is killed and restarted three times."""
    with brokers_on(tmp_path, "abc") as found:
        brokers = dict(zip("abc", found, strict=True))
        stop = threading.Event()
        surprises: list[IsologError] = []
        made: list[str] = []

        def work(name: str) -> None:
            with brokers[name].channel() as asked:
                number = 0
                while not stop.is_set():
                    topic = f"{name}{number}"
                    number += 1
                    found = result_or_error(
                        lambda topic=topic: act(
                            asked,
                            "create-topic",
                            topic=topic,
                            partitions=3,
                            replication_factor=2,
                        )
                    )
                    if isinstance(found, IsologError):
                        if not found.retriable:
                            surprises.append(found)
                        continue
                    made.append(topic)
                    if number % 2:
                        gone = result_or_error(
                            lambda topic=topic: act(asked, "delete-topic", topic=topic)
                        )
                        assert not isinstance(gone, IsologError), gone
                        made.remove(topic)

        workers = [threading.Thread(target=work, args=(each,)) for each in "ab"]
        for each in workers:
            each.start()
        for _ in range(3):
            stop.wait(SECONDS / 6)
            brokers["c"].kill()
            stop.wait(SECONDS / 6)
            brokers["c"].start()
        stop.set()
        for each in workers:
            each.join(30)
            assert not each.is_alive()
        assert surprises == []
        assert len(made) >= 5
        for broker in brokers.values():
            with broker.channel() as asked:
                assert set(act(asked, "list-topics")["topics"]) >= set(made)
        with brokers["a"].channel() as asked:
            names = act(asked, "list-topics")["topics"]

            def led_and_in_sync() -> bool:
                described = [act(asked, "describe-topic", topic=each) for each in names]
                return all(
                    partition["isr"]
                    and partition.get("error") is None
                    and sorted(partition["isr"]) == sorted(partition["replicas"])
                    for topic in described
                    for partition in topic["partitions"]
                )

            eventually(led_and_in_sync, 30)
            for name in names:
                act(asked, "delete-topic", topic=name)
        eventually(lambda: removals(tmp_path) == ([], set()))
        assert {name: folders(each) for name, each in brokers.items()} == {
            name: [] for name in brokers
        }


def test_replica_moves_to_another_broker_under_writes(tmp_path: Path):
    with brokers_on(tmp_path) as (a, b):
        with a.channel() as asked:
            make_topic(asked, "t", [["a"]])
            put(a, "t", 1_000)
            act(asked, "move-replicas", topic="t", partitions={"0": ["b"]})
            put(a, "t", 500)

            def where() -> tuple[str, list[str]]:
                (found,) = act(asked, "describe-topic", topic="t")["partitions"]
                return found["leader"], found["replicas"]

            eventually(lambda: where() == ("b", ["b"]))
            put(a, "t", 7)
            eventually(lambda: not list(a.directory.glob("topics/t/*/0")))
        with a.connect() as log:
            assert log.read("t").num_rows == 1_507
        assert folders(b) == ["t"]
