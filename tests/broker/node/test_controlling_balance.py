"""Preferred leaders lead again without a command once they have been alive for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isolog.errors import StorageFailure
from spark_stream.broker.node.handover import Balance
from spark_stream.storage.logs import FileLogs
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.simulation.disk import SimulatedDisk
from tests.support import numbers

__all__ = ["around"]

SETTLE_S = 30.0


@pytest.fixture
def disks() -> dict[str, SimulatedDisk]:
    return {each: SimulatedDisk() for each in "ab"}


@pytest.fixture
def b(around: Surroundings, disks: dict[str, SimulatedDisk]) -> LocalBroker:
    """Broker b, which leads ``t/0`` since a crashed. The preferred leader a is in sync again."""
    for each in "ab":
        (around.path / each).mkdir()
    a, b = (around.start(each, logs=FileLogs(disks[each])) for each in "ab")
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 3))
    replicate(a, b, "t")
    fail_over(around, disks)
    return b


def fail_over(around: Surroundings, disks: dict[str, SimulatedDisk]) -> None:
    """Broker a crashes and comes back in sync. By that time b leads."""
    b = around.up["b"]
    around.up["a"].die()
    for _ in range(2):
        b.host.refresh()
        b.control_once()
        b.put_proposals()
    see(around)
    assert leader(b) == "b"
    b.partition("t").append(numbers(3, 1))
    back = around.start("a", "a's other logs", logs=FileLogs(disks["a"]))
    see(around)
    b.control_once()
    replicate(b, back, "t")
    b.put_proposals()
    see(around)
    assert [each.broker for each in b.record("t").isr] == ["a", "b"]


def leader(asked: LocalBroker) -> str | None:
    return asked.record("t").leader


def looking(b: LocalBroker, settle_s: float = SETTLE_S) -> Callable[[float], None]:
    """Return a function that runs b's checks for partitions to hand over, for so many seconds."""
    balance = Balance(b.host, b.members, b.around.clock, settle_s)

    def look(seconds: float) -> None:
        for _ in range(int(seconds)):
            b.driver.run(balance.checking())
            b.around.clock.pass_us(1_000_000)
            for each in b.around.up.values():
                each.lease_keeper.renew()
            see(b.around)

    return look


@pytest.mark.rule(
    "the return of a preferred leader",
    "consistency/control/handover.py",
    "broker/node/handover.py",
)
def test_a_preferred_leader_leads_again_without_a_command(b):
    look = looking(b)
    look(SETTLE_S)
    assert leader(b) == "b"
    look(2)
    record = b.record("t")
    assert (record.leader, record.leader_epoch) == ("a", 2)
    assert [each.broker for each in record.isr] == ["a", "b"]
    assert b.around.up["a"].partition("t").append(numbers(4, 1)).offset == 4


def test_without_balancing_leadership_stays_after_a_failover(b):
    looking(b, settle_s=0)(SETTLE_S * 2)
    assert leader(b) == "b"


def test_a_flapping_preferred_leader_does_not_lead_again(b, disks):
    look = looking(b)
    for _ in range(3):
        look(SETTLE_S - 5)
        fail_over(b.around, disks)
    look(SETTLE_S - 5)
    assert leader(b) == "b"


def test_a_preferred_leader_whose_disk_refuses_writes_does_not_lead_again(b, disks):
    disks["a"].refusal = StorageFailure
    look = looking(b)
    look(SETTLE_S * 2)
    assert leader(b) == "b"
    disks["a"].refusal = None
    look(SETTLE_S + 2)
    assert leader(b) == "a"


@pytest.mark.rule(
    "the return of a preferred leader",
    "consistency/control/handover.py",
    "broker/node/handover.py",
)
def test_handing_leadership_back_loses_no_acknowledged_record(b):
    """A follower that does not catch up in time does not get the partition."""
    b.partition("t").append(numbers(4, 1))  # a lacks this one
    look = looking(b)
    look(SETTLE_S + 2)
    assert leader(b) == "b"
    assert b.partition("t").append(numbers(5, 1)).offset == 5
    replicate(b, b.around.up["a"], "t")
    look(SETTLE_S + 2)
    assert leader(b) == "a"
    assert b.around.up["a"].partition("t").bounds().log_end_offset == 6
