"""Two brokers on one store, and a topic that goes from one of them to the other.

That is what an operator does by hand while no follower can take over: the folder of the topic moves
to the other broker's directory, its record names the new leader, and the new leader starts. Clients
see what they see at every failover: the leader is gone, then another broker leads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.cluster.topics import TOPICS, decode, encode
from tests.support import NUMBERS, BrokerProcess, act, eventually

STORE = "metadata.sqlite"


@contextmanager
def two_brokers(tmp_path: Path, *topics: str) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Brokers A and B. A leads the topics, of two partitions each; B leads the topic ``b``."""
    conf = f'metadata = "{tmp_path / STORE}"\n'
    with (
        BrokerProcess(tmp_path / "a", conf=conf) as first,
        BrokerProcess(tmp_path / "b", conf=conf) as second,
    ):
        with first.connect() as log:
            for topic in topics:
                log.create_topic(topic, 2, schema=NUMBERS)
        with second.connect() as log:
            log.create_topic("b", 2, schema=NUMBERS)
        yield first, second


def hand_over(
    topic: str, dead: BrokerProcess, heir: BrokerProcess, *, stopped: bool = False
) -> None:
    """The heir leads the topic of a broker that is dead, or ``stopped`` for good; and serves it."""
    assert stopped == dead.alive
    with heir.flight() as flight:
        leader = act(flight, "find-leaders", topic="b")["partitions"][0]["leader"]
    heir.terminate()
    shutil.move(dead.directory / "topics" / topic, heir.directory / "topics" / topic)
    store = SqliteStore(heir.directory.parent / STORE)
    try:
        record = store.get(TOPICS + topic)
        assert record is not None
        led = replace(decode(record), leader=leader)
        assert store.put(record.key, encode(led), record.version) is not None
    finally:
        store.close()
    heir.restart()
    with heir.flight() as flight:
        eventually(lambda: act(flight, "find-leaders", topic=topic)["partitions"][0]["leader"])
