"""Changed bytes on a broker's disk are detected, and repaired from another copy."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import isolog
from isolog.errors import DamagedSegment
from isolog.testing import LocalCluster
from tests.support import NUMBERS, eventually, native, numbers
from tests.system.replication.clusters import (
    CONF,
    WAIT_S,
    await_equal_copies,
    await_in_sync,
    entries,
    folders,
    partition,
    read,
    with_retries,
)

pytestmark = pytest.mark.chaos

BATCHES, ROWS = 40, 5
SMALL = {"segment.entries": 16}
NO_SCRUB = {"scrub_bytes_per_second": 0}
ALL = list(range(BATCHES * ROWS))


def fill(log, topic: str, copies: int, config: dict[str, Any] = SMALL) -> None:
    """Create a topic with several segments, and wait until its copies are in sync."""
    log.create_topic(topic, 1, copies, schema=NUMBERS, config=config)
    with log.producer() as producer:
        for first in range(0, len(ALL), ROWS):
            producer.append(topic, numbers(first, ROWS), 0).result()  # a separate entry
    await_in_sync(log, topic, copies)


def flip_first(folder: Path) -> Path:
    """Change one byte of a batch in the first segment. Return its file."""
    file = min(folder.glob("*.arrow"))
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 0x10]))
    return file


def damage_while_down(cluster: LocalCluster, topic: str, number: int) -> None:
    """Shut the broker down cleanly, change a byte, and start it."""
    cluster.stop(number)
    flip_first(folders(cluster, topic)[number])
    cluster.restart(number)


def await_healed(cluster: LocalCluster, log, topic: str, number: int) -> None:
    """Wait until the broker has cut its log at the damage, and all copies are equal again."""
    said = cluster.broker(number).log_text
    eventually(lambda: f"{topic}/0: truncated entries" in said(), WAIT_S)
    assert f"damaged entries in {topic}/0 from" in said()
    assert "are lost" not in said()
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert read(log, topic) == ALL


def test_follower_with_a_flipped_byte_leaves_the_isr_and_heals(cluster, log, topic):
    fill(log, topic, 3)
    leader = cluster.leader(topic)
    follower = next(each for each in cluster.brokers if each != leader)
    damage_while_down(cluster, topic, follower)
    await_healed(cluster, log, topic, follower)
    assert partition(log, topic).leader == str(leader)


def test_leader_with_a_flipped_byte_resigns_and_heals_as_a_follower(topic):
    conf = CONF | {"scrub_seconds": 0.5}
    with LocalCluster(3, conf=conf) as cluster, cluster.connect() as log:
        fill(log, topic, 3)
        leader = cluster.leader(topic)
        flip_first(folders(cluster, topic)[leader])  # of a batch from the running broker
        await_healed(cluster, log, topic, leader)
        assert cluster.leader(topic) != leader


def test_damaged_only_copy_is_kept_and_logged(cluster, log, topic):
    fill(log, topic, 1)
    leader = cluster.leader(topic)
    cluster.stop(leader)
    file = flip_first(folders(cluster, topic)[leader])
    kept = file.read_bytes()
    cluster.restart(leader)
    said = cluster.broker(leader).log_text
    eventually(lambda: "no other in-sync replica" in said(), WAIT_S)
    with pytest.raises(DamagedSegment):
        with_retries(lambda: log.read(topic))
    found = partition(log, topic)
    assert found.log_end_offset == len(ALL)
    assert found.leader == str(leader)
    assert found.leader_epoch == 0
    assert file.read_bytes() == kept
    later = with_retries(lambda: log.read(topic, start={0: 100}))
    assert later.column("n").to_pylist() == ALL[100:]


def test_damage_detected_by_a_read_is_healed_without_scrubbing(topic):
    conf = CONF | {"scrub_bytes_per_second": 0}
    with LocalCluster(3, conf=conf) as cluster, cluster.connect() as log:
        fill(log, topic, 3)
        leader = cluster.leader(topic)
        damage_while_down(cluster, topic, leader)
        await_in_sync(log, topic)
        with_retries(log.elect_preferred_leaders)
        eventually(lambda: cluster.leader(topic) == leader)
        assert read(log, topic) == ALL  # the leader changes before the reader gets an answer
        await_healed(cluster, log, topic, leader)
        assert cluster.leader(topic) != leader


@pytest.mark.quick("a refilled follower")
@pytest.mark.rule(
    "the reaction of a leader to entries received damaged",
    "broker/partition/replication.py",
    "broker/replication/leader_core.py",
)
@pytest.mark.parametrize("meets", ["a reader", "a refilled follower", "the slow look"])
def test_damage_in_the_active_segment_of_a_leader_is_healed(topic, meets):
    conf = CONF | ({"scrub_seconds": 0.5} if meets == "the slow look" else NO_SCRUB)
    with LocalCluster(3, conf=conf) as cluster, cluster.connect() as log:
        fill(log, topic, 3, {})  # in one segment, which stays active
        assert read(log, topic) == ALL
        leader = cluster.leader(topic)
        follower = next(each for each in cluster.brokers if each != leader)
        if meets == "a refilled follower":
            cluster.stop(follower)
            flip_first(folders(cluster, topic)[leader])
            shutil.rmtree(folders(cluster, topic)[follower].parent.parent)
            cluster.restart(follower)
        else:
            flip_first(folders(cluster, topic)[leader])
        if meets == "a reader":
            assert read(log, topic) == ALL  # the leader changes before a wrong value is sent
        await_healed(cluster, log, topic, leader)
        assert cluster.leader(topic) != leader


def flip_entry(folder: Path, index: int) -> None:
    """Change one byte of this entry's batch, in a log of one segment."""
    (file,) = folder.glob("*.arrow")
    row = entries(folder)[index]
    with file.open("r+b") as opened:
        opened.seek(int(row["position"] + row["length"]) - 1)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 0x10]))


@pytest.mark.full  # simulated: tests/simulation/test_named_faults.py
@pytest.mark.rule(
    "the segments kept from a cut at damage, and their return", "storage/log/damage.py"
)
def test_no_record_is_lost_if_each_copy_has_other_damage(topic):
    """Each broker cuts sound copies of the records damaged at another one, and keeps them aside."""
    with LocalCluster(3, conf=CONF | NO_SCRUB) as cluster, cluster.connect() as log:
        fill(log, topic, 3, {})
        found = folders(cluster, topic)
        # The replicas will become leaders in this order.
        for turn, broker in enumerate(partition(log, topic).replicas, 1):
            flip_entry(found[int(broker)], 10 * turn)

        def is_read() -> bool:
            with suppress(DamagedSegment):  # while the last broker is the only one in sync
                return with_retries(lambda: read(log, topic)) == ALL
            return False

        eventually(is_read, WAIT_S)
        await_in_sync(log, topic)
        kept = [folder / "cut" for folder in found.values()]
        eventually(lambda: not any(each.exists() for each in kept), WAIT_S)
        said = [broker.log_text() for broker in cluster.brokers.values()]
        assert any("which were kept when this log was truncated" in text for text in said)
        assert not any("are lost" in text for text in said)


@native  # it maps files
def test_mapped_reader_reports_damage_of_a_follower_and_reads_the_leader(topic):
    """The files of the leader may not be mapped here, so those of a follower are."""
    with LocalCluster(3, conf=CONF | NO_SCRUB) as cluster, cluster.connect() as log:
        log.create_topic(topic, 1, 3, schema=NUMBERS)
        eventually(lambda: partition(log, topic).leader is not None, WAIT_S)
        leader = cluster.leader(topic)
        cluster.restart(leader, conf={"mapped_reads": False})
        await_in_sync(log, topic)
        with_retries(log.elect_preferred_leaders)
        eventually(lambda: cluster.leader(topic) == leader, WAIT_S)
        with log.producer() as producer:
            for first in range(0, 100_000, 10_000):
                producer.append(topic, numbers(first, 10_000), 0).result()
        await_in_sync(log, topic)
        for number, folder in folders(cluster, topic).items():
            if number != leader:
                flip_first(folder)
        assert read(log, topic) == list(range(100_000))
        said = [each.log_text for number, each in cluster.brokers.items() if number != leader]
        eventually(
            lambda: any(f"damaged entries in {topic}/0 from" in text() for text in said), WAIT_S
        )
        await_in_sync(log, topic)
        assert read(log, topic) == list(range(100_000))


def test_broker_status_has_the_last_check_and_the_damage(cluster, log, topic):
    fill(log, topic, 1)
    leader = cluster.broker(cluster.leader(topic))
    damage_while_down(cluster, topic, leader.number)
    with isolog.connect(leader.address) as direct:
        eventually(lambda: direct.status().checked_ms is not None, WAIT_S)
        found = direct.status()
    (place,) = folders(cluster, topic).values()
    rows = entries(place)
    damaged = found.damaged[f"{topic}/0"]
    assert damaged in rows["base_offset"].tolist()
    assert damaged < 16 * ROWS
