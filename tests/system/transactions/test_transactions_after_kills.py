"""Open, decided and partly marked transactions survive the kill of their broker.

The tests make plain calls, with ``kill -9`` between calls and at fault points (``tests.faults``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.transport.streams import ConnectionLost
from tests.broker.stamped import Appender, Owner, bounds, seen
from tests.faults import FaultyBroker
from tests.support import NUMBERS, BrokerProcess, act, eventually

COMMITTED = "read_committed"


def check_interrupted(call: Callable[[], Any]) -> None:
    """Make a call. Check that the broker dies before its answer."""
    with pytest.raises(ConnectionLost):
        call()


def test_open_transaction_survives_a_kill(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    with broker.channel() as channel:
        owner = Owner(channel).begin()
        owner.put("t", 1, 2)
    broker.kill()
    broker.restart()
    with broker.channel() as channel:
        owner.channel = channel
        assert bounds(channel, "t") == (0, 2, 2)
        owner.put("t", 3, 1)
        owner.commit()
        assert seen(channel, "t", COMMITTED) == [1, 2, 3]


@pytest.mark.quick("commit-decided", "commit-half marked", "abort-half marked")
@pytest.mark.rule(
    "the recovery of a transaction after its broker died",
    "scripts/transactions/finishing.py",
    "broker/scripting/coordinator.py",
)
@pytest.mark.parametrize(
    ("decision", "point"),
    [
        ("commit", "decided"),
        ("commit", "half marked"),
        ("commit", "marked"),
        ("commit", "positions stored"),
        ("commit", "finished"),
        ("abort", "decided"),
        ("abort", "half marked"),
        ("abort", "finished"),
    ],
)
def test_decided_transaction_is_finished_after_a_kill(tmp_path: Path, point: str, decision: str):
    with FaultyBroker(tmp_path / "log", point) as broker:
        with broker.connect() as log:
            log.create_topic("t", 3, schema=NUMBERS)
        with broker.channel() as channel:
            owner = Owner(channel).begin()
            for partition in range(3):
                owner.put("t", partition, 1, partition=partition)
            broker.arm()
            fate = "committed" if decision == "commit" else "aborted"
            moved = {
                "consumer": "c",
                "topic": "t",
                "topic_id": "i",
                "partition": 0,
                "offset": 7,
                "lineage": [[0, 7]],
            }

            def decide() -> dict[str, Any]:
                if decision == "commit":
                    return owner.commit(positions=[moved])
                return owner.abort()

            check_interrupted(decide)
            eventually(lambda: broker.died)
        broker.restart()
        with broker.channel() as channel:
            owner.channel = channel
            whole = [[0], [1], [2]] if decision == "commit" else [[], [], []]
            assert [seen(channel, "t", COMMITTED, partition) for partition in range(3)] == whole
            assert owner.described()["state"] == fate
            positions = act(channel, "consumer-position", consumer="c")["positions"]
            assert positions == ([moved] if decision == "commit" else [])
            assert decide()["state"] == fate
            owner.begin().put("t", 9, 1)
            owner.commit()
            assert seen(channel, "t", COMMITTED)[-1] == 9


@pytest.mark.quick("appended")
@pytest.mark.parametrize("point", ["joined", "appended"])
def test_batch_retried_after_a_kill_is_stored_once(tmp_path: Path, point: str):
    with FaultyBroker(tmp_path / "log", point) as broker:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS)
        with broker.channel() as channel:
            owner = Owner(channel).begin()
            broker.arm()
            check_interrupted(lambda: owner.put("t", 1, 2))
            eventually(lambda: broker.died)
        broker.restart()
        with broker.channel() as channel:
            owner.channel = channel
            ack = Appender(channel, "t", owner.name).put(
                1, 2, owner.producer, 0, epoch=owner.epoch, transaction=owner.number
            )
            assert (ack["offset"], ack["duplicate"]) == (0, point == "appended")
            owner.commit()
            assert seen(channel, "t", COMMITTED) == [1, 2]


@pytest.mark.quick("False-commit", "True-abort")
@pytest.mark.parametrize("decision", ["commit", "abort"])
@pytest.mark.parametrize("moved_on", [False, True])
def test_marker_lost_by_a_power_failure_is_written_again(
    broker: BrokerProcess, decision: str, moved_on: bool
):
    """The transaction's record is fsynced, but its marker in the log is not, and may be lost."""
    with broker.connect() as log:
        log.create_topic("t", 2, schema=NUMBERS)
    with broker.channel() as channel:
        owner = Owner(channel).begin()
        owner.put("t", 1, 2)
        for _ in range(2):  # the second call records it as finished
            owner.commit() if decision == "commit" else owner.abort()
        if moved_on:
            owner.begin().put("t", 9, 1, partition=1)
            owner.commit()
    broker.kill()
    (entries,) = (broker.directory / "topics").glob("t/*/0/*.entries")
    os.truncate(entries, entries.stat().st_size - ENTRY_SIZE)
    broker.restart()
    assert "lost marker in t/0, of transaction 0" in broker.log_text()
    with broker.channel() as channel:
        whole = decision == "commit" and not moved_on
        assert bounds(channel, "t") == (2, 2, 2)
        assert seen(channel, "t", COMMITTED) == ([1, 2] if whole else [])
        owner.channel = channel
        owner.begin().put("t", 3, 1)
        owner.commit()
        assert seen(channel, "t", COMMITTED)[-1] == 3


@pytest.mark.full  # other damage: tests/system/storage/test_damage.py
def test_damaged_partition_of_a_transaction_is_logged_once(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t", 2, schema=NUMBERS)
    with broker.channel() as channel:
        owner = Owner(channel, timeout_ms=3_000).begin()
        owner.put("t", 1, 1, partition=0)
        owner.put("t", 2, 1, partition=1)
    broker.kill()
    (entries,) = (broker.directory / "topics").glob("t/*/0/*.entries")
    entries.unlink()
    broker.restart()
    with broker.channel() as channel:
        owner.channel = channel
        eventually(lambda: bounds(channel, "t", 1) == (1, 1, 1))
        other = Owner(channel, timeout_ms=1_000).begin()
        eventually(lambda: other.described()["state"] == "aborted")  # after a further scan
        assert owner.described()["state"] == "aborting"
    lines = [line for line in broker.log_text().splitlines() if repr(owner.name) in line]
    assert len([line for line in lines if "DAMAGED_SEGMENT" in line]) == 1
    assert "Traceback" not in broker.log_text()
