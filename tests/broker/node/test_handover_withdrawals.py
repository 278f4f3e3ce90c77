"""A replica whose log refuses writes hands over, and comes back once its log takes them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

import pytest

from isolog.errors import DiskFull, IsologError, LeaderUnavailable, NotLeader, StorageFailure
from spark_stream.broker.node.handover import Withdrawals, handing_over
from spark_stream.consistency.control.handover import FULL_US, RETRY_US
from spark_stream.scripts.steps import Script, Step
from spark_stream.storage.logs import FileLogs
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.simulation.disk import SimulatedDisk
from tests.support import numbers

__all__ = ["around"]


@dataclass
class Cluster:
    """Three brokers, each with a disk and a thread that checks for replicas in trouble."""

    around: Surroundings
    brokers: dict[str, LocalBroker]
    disks: dict[str, SimulatedDisk]
    withdrawals: dict[str, Withdrawals]

    def look(self, name: str) -> None:
        """One round of the broker's thread, after which all brokers see its changes."""
        self.brokers[name].driver.run(self.withdrawals[name].checking())
        see(self.around)

    def leader(self, topic: str = "t") -> str | None:
        return self.brokers["a"].record(topic).leader

    def isr(self, topic: str = "t") -> list[str]:
        return [each.broker for each in self.brokers["a"].record(topic).isr]

    def pass_us(self, microseconds: int) -> None:
        self.around.clock.pass_us(microseconds)
        for each in self.brokers.values():
            each.lease_keeper.renew()

    def append(self, name: str, first: int = 0, topic: str = "t") -> None:
        self.brokers[name].partition(topic).append(numbers(first, 1))


@pytest.fixture
def cluster(around: Surroundings) -> Cluster:
    disks = {each: SimulatedDisk() for each in "abc"}
    for name in disks:
        (around.path / name).mkdir()
    return led_by_a(
        around, disks, {each: around.start(each, logs=FileLogs(disks[each])) for each in disks}
    )


@pytest.fixture
def of_files(around: Surroundings) -> Cluster:
    """As ``cluster``, on the disk of this machine: a file without a name still takes writes."""
    return led_by_a(around, {}, {each: around.start(each) for each in "abc"})


def led_by_a(
    around: Surroundings, disks: dict[str, SimulatedDisk], brokers: dict[str, LocalBroker]
) -> Cluster:
    """A topic ``t`` with a record that all three have."""
    looks = {
        name: Withdrawals(each.host, each.members, around.clock) for name, each in brokers.items()
    }
    found = Cluster(around, brokers, disks, looks)
    make(brokers["a"], "t", "abc")
    found.append("a")
    for other in "bc":
        replicate(brokers["a"], brokers[other], "t")
    return found


def refused(cluster: Cluster, name: str, error: type[IsologError]) -> None:
    """The broker's disk refuses all further writes, and an append detects that."""
    cluster.disks[name].refusal = error
    with pytest.raises(error):
        cluster.append(name, 1)


def test_after_a_failed_write_another_in_sync_replica_leads(cluster, caplog):
    refused(cluster, "a", StorageFailure)
    with caplog.at_level(logging.ERROR):
        cluster.look("a")
    assert (cluster.leader(), cluster.isr()) == ("b", ["b", "c"])
    cluster.append("b", 1)
    with pytest.raises(NotLeader):
        cluster.append("a", 2)
    assert caplog.text.count("writes are refused in t/0") == 1
    assert "another in-sync replica leads now" in caplog.text


@pytest.mark.parametrize("error", [DiskFull, StorageFailure])
def test_a_refused_append_reports_other_replicas_in_sync(cluster, error):
    refused(cluster, "a", error)
    with pytest.raises(error) as caught:
        cluster.append("a", 2)
    assert caught.value.details["others_in_sync"] is True
    make(cluster.brokers["a"], "alone", "a")
    with pytest.raises(error) as caught:
        cluster.append("a", topic="alone")
    assert caught.value.details["others_in_sync"] is False


def script_rest(script: Script[None], answer: object) -> Iterator[Step]:
    """The steps that follow this answer."""
    with suppress(StopIteration):
        yield script.send(answer)


def test_missing_entries_are_replicated_before_the_hand_over(cluster):
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    cluster.append("a", 1)
    refused(cluster, "a", StorageFailure)
    script = cluster.withdrawals["a"].checking()
    next(script)  # the other replicas are probed
    script.send([None, None])  # it waits for its followers
    with pytest.raises(IsologError, match="hands the partition over") as error:
        cluster.append("a", 2)
    assert error.value.retriable
    replicate(a, b, "t")
    replicate(a, cluster.brokers["c"], "t")
    put = script.send(None)
    refresh = script.send(a.table.carry_out(put))
    assert next(script_rest(script, a.table.carry_out(refresh)), None) is None
    see(cluster.around)
    assert b.partition("t").bounds().log_end_offset == 2


def test_the_end_of_a_hand_over_does_not_undo_the_shutdowns(cluster):
    """The thread that checks for trouble may end its hand-over during a shutdown."""
    a = cluster.brokers["a"]
    cluster.append("a", 1)  # the followers lack it, so both wait for them
    refused(cluster, "a", StorageFailure)
    cluster.disks["a"].refusal = None  # only the handover refuses further appends
    checking = cluster.withdrawals["a"].checking()
    next(checking)
    checking.send([None, None])
    shutdown = handing_over(a.host, a.members)
    next(shutdown)
    shutdown.send([None, None])
    checking.close()
    with pytest.raises(LeaderUnavailable, match="hands the partition over"):
        cluster.append("a", 2)


def test_a_shutdown_does_not_hand_over_to_a_replica_that_refuses_writes(cluster):
    a = cluster.brokers["a"]
    cluster.disks["b"].refusal = StorageFailure
    assert a.driver.run(handing_over(a.host, a.members)) == 1
    assert cluster.leader() == "c"


def test_a_leader_on_a_full_disk_hands_over_after_a_delay(cluster):
    refused(cluster, "a", DiskFull)
    cluster.pass_us(FULL_US - 1)
    cluster.look("a")
    assert cluster.leader() == "a"
    cluster.pass_us(1)
    cluster.look("a")
    assert cluster.leader() == "b"


def test_a_leader_whose_disk_has_room_again_in_time_stays(cluster, caplog):
    refused(cluster, "a", DiskFull)
    cluster.disks["a"].refusal = None
    cluster.pass_us(FULL_US)
    with caplog.at_level(logging.WARNING):
        cluster.look("a")
    assert cluster.leader() == "a"
    assert "the log of t/0 takes writes again" in caplog.text
    cluster.append("a", 1)
    assert cluster.brokers["a"].host.troubled() == []


def test_two_concurrent_checks_for_trouble_both_find_it(cluster, monkeypatch):
    refused(cluster, "a", DiskFull)
    host, found = cluster.brokers["a"].host, []
    second = Thread(target=lambda: found.append(host.troubled()))
    look = host.open_replicas

    def looked():
        if second.ident is None:
            second.start()
            second.join(0.1)  # unless something delays it, it has ended
        return look()

    monkeypatch.setattr(host, "open_replicas", looked)
    found.append(host.troubled())
    second.join()
    assert [[each.name for each in one] for one in found] == [["t/0"]] * 2


@pytest.mark.rule(
    "the hand-over by a replica that cannot write, and its return",
    "consistency/control/handover.py",
    "broker/node/handover.py",
)
def test_leadership_goes_to_a_replica_that_takes_a_write(cluster):
    cluster.disks["b"].refusal = DiskFull
    refused(cluster, "a", StorageFailure)
    cluster.look("a")
    assert (cluster.leader(), cluster.isr()) == ("c", ["b", "c"])


def test_a_leader_stays_if_no_other_replica_takes_writes(cluster, caplog):
    """No restart is needed, and each refused append has the reason."""
    cluster.disks["b"].refusal = cluster.disks["c"].refusal = DiskFull
    refused(cluster, "a", DiskFull)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            cluster.pass_us(max(FULL_US, RETRY_US))
            cluster.look("a")
            with pytest.raises(DiskFull):
                cluster.append("a", 1)
    assert (cluster.leader(), cluster.isr()) == ("a", ["a", "b", "c"])
    assert caplog.text.count("writes are refused") == 1
    assert "no other in-sync replica can take them" in caplog.text
    cluster.disks["a"].refusal = None
    cluster.append("a", 1)


def test_a_lone_replica_takes_writes_again_once_its_disk_does(cluster):
    make(cluster.brokers["a"], "lone", "a")
    cluster.append("a", 0, "lone")
    cluster.disks["a"].refusal = StorageFailure
    with pytest.raises(StorageFailure):
        cluster.append("a", 1, "lone")
    cluster.look("a")
    assert cluster.leader("lone") == "a"
    cluster.disks["a"].refusal = None
    cluster.append("a", 1, "lone")
    cluster.pass_us(RETRY_US)
    cluster.look("a")
    assert cluster.brokers["a"].host.troubled() == []


@pytest.mark.rule(
    "the hand-over by a replica that cannot write, and its return",
    "consistency/control/handover.py",
    "broker/node/handover.py",
)
def test_a_broker_that_handed_over_follows_only_after_a_successful_write(cluster):
    """It is in no ISR before, so it is not elected."""
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    refused(cluster, "a", StorageFailure)
    cluster.look("a")
    replicate(b, cluster.brokers["c"], "t")
    for _ in range(2):
        cluster.pass_us(RETRY_US)
        cluster.look("a")
        with pytest.raises(StorageFailure):
            replicate(b, a, "t")
    b.put_proposals()
    assert cluster.isr() == ["b", "c"]
    cluster.disks["a"].refusal = None
    cluster.pass_us(RETRY_US)
    cluster.look("a")
    replicate(b, a, "t")
    b.put_proposals()
    assert cluster.isr() == ["a", "b", "c"]


def test_a_follower_that_refuses_writes_is_not_reported_as_leader(cluster, caplog):
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    cluster.disks["b"].refusal = StorageFailure
    cluster.append("a", 1)
    with pytest.raises(StorageFailure):
        replicate(a, b, "t")
    with caplog.at_level(logging.ERROR):
        cluster.look("b")
    assert "writes are refused in t/0" in caplog.text
    assert "it does not lead here" in caplog.text


def test_a_replica_in_trouble_is_reported_again_when_its_role_changes(cluster, caplog):
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    cluster.disks["b"].refusal = cluster.disks["c"].refusal = StorageFailure
    cluster.append("a", 1)
    with pytest.raises(StorageFailure):
        replicate(a, b, "t")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            cluster.look("b")
            cluster.pass_us(RETRY_US)
        assert caplog.text.count("writes are refused in t/0") == 1
        a.die()
        b.control_once()
        see(cluster.around)
        for _ in range(2):
            cluster.look("b")
            cluster.pass_us(RETRY_US)
    assert caplog.text.count("writes are refused in t/0") == 2
    assert "no other in-sync replica can take them" in caplog.text


@pytest.mark.rule(
    "the hand-over by a replica that cannot write, and its return",
    "consistency/control/handover.py",
    "broker/node/handover.py",
)
@pytest.mark.parametrize("error", [StorageFailure, DiskFull])
def test_a_follower_that_refuses_a_write_leaves_the_isr(cluster, error):
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    cluster.disks["b"].refusal = error
    cluster.append("a", 1)
    replicate(a, cluster.brokers["c"], "t")
    for _ in range(2):
        with pytest.raises(error):
            replicate(a, b, "t")
        a.put_proposals()
        assert cluster.isr() == ["a", "c"]
    assert a.partition("t").bounds().high_watermark == 2
    cluster.disks["b"].refusal = None
    cluster.pass_us(FULL_US + RETRY_US)
    cluster.look("b")
    replicate(a, b, "t")
    a.put_proposals()
    assert cluster.isr() == ["a", "b", "c"]


def test_an_elected_follower_that_refused_a_write_hands_over(cluster):
    """It can be elected while it is in the ISR: it has all committed entries."""
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    cluster.disks["b"].refusal = StorageFailure
    cluster.append("a", 1)
    with pytest.raises(StorageFailure):
        replicate(a, b, "t")
    a.die()
    b.control_once()
    see(cluster.around)
    assert b.record("t").leader == "b"
    cluster.look("b")
    assert b.record("t").leader == "c"


def test_a_replica_whose_fsync_failed_hands_over_to_one_that_joins_later(cluster):
    """Its log takes no entries until it is opened again, though it was the only one in sync."""
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    make(a, "u", "ab", flush="batch")
    cluster.disks["a"].fail_next_force()
    with pytest.raises(StorageFailure):
        cluster.append("a", 0, "u")
    cluster.disks["a"].stop_failing()
    cluster.pass_us(RETRY_US)
    replicate(a, b, "u")
    a.put_proposals()
    cluster.look("a")
    assert cluster.leader("u") == "b"


LOSSES = {
    "its data file is removed": lambda path: path.unlink(),
    "its entries are removed": lambda path: path.with_suffix(".entries").unlink(),
    "its data file is replaced": lambda path: shutil.copy(path, path.with_suffix(".x")).rename(
        path
    ),
    "the topic's folder is removed": lambda path: shutil.rmtree(path.parent.parent),
}


@pytest.mark.quick("its data file is replaced", "the topic's folder is removed")
@pytest.mark.rule("the detection of a removed file of a log", "storage/segment/active_segment.py")
@pytest.mark.parametrize("loss", LOSSES)
def test_housekeeping_detects_a_removed_file_of_the_log(of_files, loss, caplog):
    """An append succeeds before that, and would be lost when the broker ends."""
    a = of_files.brokers["a"]
    LOSSES[loss](a.partition("t").log.segments[-1].name.arrow)
    of_files.append("a", 1)
    a.host.upkeep.housekeep()
    assert "housekeeping of t/0 failed: [STORAGE_FAILURE]" in caplog.text
    assert "Traceback" not in caplog.text
    with pytest.raises(StorageFailure, match="would be lost"):
        of_files.append("a", 2)
    of_files.look("a")
    assert of_files.leader() == "b"
