"""Followers that restart with a longer log, without a log, with damage, or behind the log start."""

from __future__ import annotations

import shutil

import pytest

from isolog.errors import IsologError
from tests.support import NUMBERS, eventually, numbers
from tests.system.replication.clusters import (
    WAIT_S,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    entries,
    folders,
    partition,
    read,
    with_retries,
)

pytestmark = pytest.mark.chaos


def others(cluster, *numbers_: int) -> list[int]:
    return [each for each in cluster.brokers if each not in numbers_]


def test_ex_leader_truncates_its_longer_tail(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    old = cluster.leader(topic)
    cluster.cut_off(old)
    with log.producer() as producer:
        for first in (100, 200, 300):
            producer.append(topic, numbers(first, 3), 0).result(WAIT_S)
    assert len(read(log, topic, "read_uncommitted")) == 14
    cluster.kill(old)  # the other brokers elect a leader without those records
    eventually(lambda: partition(log, topic).leader not in (None, str(old)))
    append_replicated(log, topic, 5, 4)
    cluster.heal()
    cluster.restart(old)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    for level in ("read_uncommitted", "read_committed"):
        assert read(log, topic, level) == list(range(9))


@pytest.mark.parametrize("lost", ["topics", "everything"])
def test_wiped_follower_is_replicated_again(cluster, log, topic, lost):
    log.create_topic(topic, 2, 3, schema=NUMBERS)
    for number in range(2):
        append_replicated(log, topic, 0, 50, number)
    await_in_sync(log, topic)
    wiped = others(cluster, cluster.leader(topic))[0]
    broker = cluster.broker(wiped)
    cluster.kill(wiped)
    shutil.rmtree(broker.directory / "topics" if lost == "topics" else broker.directory)
    append_replicated(log, topic, 50, 10)
    cluster.restart(wiped)
    await_in_sync(log, topic)
    for number in range(2):
        await_equal_copies(cluster, topic, number)
    assert read(log, topic) == [*range(60), *range(50)]


def test_follower_behind_the_log_start_begins_at_the_log_start(cluster, log, topic):
    config = {"segment.bytes": 65_536, "retention.bytes": 65_536, "replica.lag.time.max.ms": 500}
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=config)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    behind = others(cluster, cluster.leader(topic))[0]
    cluster.kill(behind)
    eventually(lambda: len(partition(log, topic).isr) == 2)
    for first in range(5, 60_005, 6000):
        append_replicated(log, topic, first, 6000)
    eventually(lambda: partition(log, topic).log_start_offset > 5)
    cluster.restart(behind)
    await_in_sync(log, topic)
    start = partition(log, topic).log_start_offset
    copy = entries(folders(cluster, topic)[behind])
    assert 5 < int(copy[0]["base_offset"]) <= start
    assert read(log, topic) == list(range(start, 60_005))
    cluster.kill(int(partition(log, topic).leader))
    eventually(lambda: with_retries(lambda: read(log, topic))[-1] == 60_004)


def test_follower_damaged_during_a_stop_heals(cluster, log, topic):
    """It cannot vouch for its logs, so it leaves the ISR, and rejoins after its repair."""
    log.create_topic(topic, 1, 3, schema=NUMBERS, config={"segment.entries": 16})
    for first in range(0, 400, 10):
        append_replicated(log, topic, first, 10)
    await_in_sync(log, topic)
    hurt = others(cluster, cluster.leader(topic))[0]
    cluster.stop(hurt)
    file = sorted(folders(cluster, topic)[hurt].glob("*.entries"))[1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    cluster.restart(hurt)
    append_replicated(log, topic, 400, 10)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    for each in others(cluster, hurt):
        cluster.kill(each)
    assert with_retries(lambda: read(log, topic)) == list(range(410))
    assert cluster.leader(topic) == hurt


@pytest.mark.parametrize("suffix", [".entries", ".arrow"])
def test_replica_with_an_unreadable_log_is_replicated_again(cluster, log, topic, suffix):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config={"segment.entries": 16})
    for first in range(0, 400, 10):
        append_replicated(log, topic, first, 10)
    await_in_sync(log, topic)
    hurt = others(cluster, cluster.leader(topic))[0]
    cluster.kill(hurt)
    folder = folders(cluster, topic)[hurt]
    lost = sorted(folder.glob(f"*{suffix}"))[1]
    lost.unlink()
    cluster.restart(hurt)
    append_replicated(log, topic, 400, 10)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert str(folder / "cut") in cluster.broker(hurt).log_text()
    assert (folder / "cut" / "1" / sorted(folder.glob("*.arrow"))[0].name).exists()


def test_topic_deleted_while_a_broker_was_down_is_removed_there(cluster, log, topic):
    log.create_topic(topic, 2, 3, schema=NUMBERS)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    away = others(cluster, cluster.leader(topic))[0]
    cluster.kill(away)
    log.delete_topic(topic)
    eventually(lambda: set(folders(cluster, topic)) <= {away})
    cluster.restart(away)
    eventually(lambda: not folders(cluster, topic))
    assert not list(cluster.broker(away).directory.glob(f"topics/{topic}/*"))


def test_topic_recreated_while_a_broker_was_down_has_no_old_records(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    away = others(cluster, cluster.leader(topic))[0]
    cluster.kill(away)
    log.delete_topic(topic)
    with pytest.raises(IsologError):
        log.describe(topic)
    alive = [str(each) for each in others(cluster, away)]
    log.create_topic(topic, schema=NUMBERS, assignment=[alive])
    append_replicated(log, topic, 100, 5)
    cluster.restart(away)
    eventually(lambda: set(folders(cluster, topic)) == set(others(cluster, away)))
    log.move_replicas(topic, {0: [*alive, str(away)]})
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert read(log, topic) == list(range(100, 105))


def test_broker_vouches_after_a_clean_shutdown_with_moves_and_deletions(cluster, log, topic):
    """Only damage of its logs counts. It stays in the ISR, and logs no warning."""
    log.create_topic(topic, schema=NUMBERS, assignment=[["1"]])
    for name in ("gone", "moved"):
        log.create_topic(f"{topic}-{name}", schema=NUMBERS, assignment=[["1", "2"]])
        append_replicated(log, f"{topic}-{name}", 0, 5)
    append_replicated(log, topic, 0, 5)
    before = len(cluster.broker(1).log_text())
    cluster.stop(1)
    log.delete_topic(f"{topic}-gone")
    log.move_replicas(f"{topic}-moved", {0: ["2", "3"]})
    eventually(lambda: partition(log, f"{topic}-moved").replicas == ("2", "3"))
    cluster.restart(1)
    assert read(log, topic) == list(range(5))
    assert "cannot vouch" not in cluster.broker(1).log_text()[before:]
