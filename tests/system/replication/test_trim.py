"""A trimmed log start holds at every replica, also after crashes around the trim."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolog.errors import OffsetEvicted, OffsetOutOfRange
from tests.support import NUMBERS, eventually, numbers
from tests.system.replication.clusters import (
    WAIT_S,
    await_in_sync,
    folders,
    partition,
    read,
    with_retries,
)

pytestmark = pytest.mark.chaos

CONFIG = {"segment.entries": 16}
FIRST = 13  # in the batch of offsets 10 to 14


def test_trim_survives_elections_restarts_and_a_stopped_follower(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=CONFIG)
    with log.producer() as producer:
        for first in range(0, 60, 5):
            producer.append(topic, numbers(first, 5), 0).result()
    await_in_sync(log, topic, 3)
    leader = cluster.leader(topic)
    absent, heir = [each for each in cluster.brokers if each != leader]
    cluster.kill(absent)
    assert with_retries(lambda: log.trim(topic, {0: FIRST})) == {0: FIRST}
    cluster.kill(leader)

    def starts_at_the_trim() -> None:
        with pytest.raises(OffsetEvicted) as caught:
            with_retries(lambda: log.read(topic, start={0: FIRST - 1}))
        assert caught.value.details["log_start_offset"] == FIRST
        assert read(log, topic) == list(range(FIRST, 60))
        assert partition(log, topic).log_start_offset == FIRST

    eventually(lambda: cluster.leader(topic) == heir, WAIT_S)
    starts_at_the_trim()
    cluster.restart(absent)
    cluster.restart(leader)
    await_in_sync(log, topic, 3)
    log.move_replicas(topic, {0: [absent]})  # so that it is the leader
    eventually(lambda: partition(log, topic).replicas == (str(absent),), WAIT_S)
    starts_at_the_trim()
    cluster.restart(absent)
    starts_at_the_trim()


def test_all_replicas_remove_the_segments_below_a_trim(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=CONFIG)
    with log.producer() as producer:
        for first in range(0, 60, 5):
            producer.append(topic, numbers(first, 5), 0).result()
    await_in_sync(log, topic, 3)
    with pytest.raises(OffsetOutOfRange, match="last stable offset 60"):
        log.trim(topic, 61)
    assert with_retries(lambda: log.trim(topic, "latest")) == {0: 60}

    def segments(folder: Path) -> list[str]:
        return sorted(file.stem.lstrip("0") for file in folder.glob("*.entries"))

    places = folders(cluster, topic).values()
    eventually(lambda: all(segments(each) in ([], ["60"]) for each in places), WAIT_S)
    with log.producer(isolation="read_committed") as producer:
        producer.append(topic, numbers(60, 5), 0).result()
    assert read(log, topic) == list(range(60, 65))
