"""The generation of a broker's logs: at its start, and after a failed fsync."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolog.errors import IsologError, StorageFailure
from spark_stream.broker.node.registration import Registration
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.environment import SystemIds
from spark_stream.storage.disk.directory import RunFile
from spark_stream.storage.disk.fsyncs import MARK_NAME
from spark_stream.storage.logs import FileLogs
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings
from tests.simulation.disk import SimulatedDisk
from tests.support import numbers

__all__ = ["around"]


@dataclass
class Boot:
    """A machine after so many starts."""

    times: int = 1

    def boot_id(self) -> str | None:
        return f"boot {self.times}"


def registration(broker: LocalBroker, boot: int = 1) -> Registration:
    """The broker's start, once its logs are open."""
    found = Registration(
        broker.store, broker.host, broker.members, SystemIds(), Boot(boot), RunFile(broker.path)
    )
    found.decide_generation()
    return found


def register(found: Registration, broker: LocalBroker) -> None:
    address = f"{broker.id}:1"
    found.register(RegisteredBroker(broker.id, address, broker.incarnation, "1"))


def test_a_broker_vouches_for_its_logs_after_a_crash_of_its_process(around):
    a = around.start("a")
    make(a, "t", "a")
    first = registration(a).me
    a.partition("t").append(numbers(0, 3))
    assert registration(a).me == first


def test_a_broker_vouches_for_its_logs_after_an_orderly_end_and_a_reboot(around):
    a = around.start("a")
    make(a, "t", "a")
    found = registration(a)
    first = found.me
    a.partition("t").append(numbers(0, 3))
    found.end()
    assert registration(a, boot=2).me == first


def test_a_broker_cannot_vouch_for_its_logs_after_a_crash_of_its_machine(around, caplog):
    a = around.start("a")
    first = registration(a).me
    with caplog.at_level(logging.ERROR):
        assert registration(a, boot=2).me != first
    assert "cannot vouch for its logs" in caplog.text


def test_the_first_start_of_a_broker_logs_no_error(around, caplog):
    with caplog.at_level(logging.ERROR):
        registration(around.start("a"))
    assert caplog.text == ""


def test_a_detected_loss_makes_a_new_generation(around, caplog):
    a = around.start("a")
    first = registration(a).me
    a.host.doubts.append("t/0 has lost entries")
    with caplog.at_level(logging.ERROR):
        assert registration(a).me != first
    assert "t/0 has lost entries" in caplog.text


def test_a_missing_folder_makes_a_new_generation_after_a_kill_too(around, caplog):
    """A partition has no files before its first entry, so only the folder shows a loss."""
    a = around.start("a")
    make(a, "t", "a", "a")
    a.partition("t").append(numbers(0, 3))
    first = registration(a).me
    a.die()
    a = around.start("a")
    assert registration(a).me == first  # the other partition has no folder, and never had one
    a.die()
    (folder,) = a.path.glob("topics/t/*/0")
    shutil.rmtree(folder)
    a = around.start("a")
    with caplog.at_level(logging.ERROR):
        assert registration(a).me != first
    assert "t/0" in caplog.text
    a.partition("t").append(numbers(0, 1))
    again = registration(a)
    a.die()
    assert registration(around.start("a")).me == again.me


class Dies(RunFile):
    """The process dies before the directory names the run."""

    def record_run(self, run: str) -> None:
        raise KeyboardInterrupt


def test_a_start_that_dies_before_its_directory_is_written_begins_a_new_generation(around):
    a = around.start("a")
    first = registration(a).me
    surroundings = (a.store, a.host, a.members, SystemIds(), Boot())
    with pytest.raises(KeyboardInterrupt):
        Registration(*surroundings, Dies(a.path)).decide_generation()
    assert registration(a).me != first


def test_a_broker_is_registered_with_its_generation(around):
    a = around.start("a")
    found = registration(a)
    register(found, a)
    registered = Brokers(a.store).get("a")
    assert (registered.address, registered.generation) == ("a:1", found.me.generation)


@pytest.fixture
def failing(around: Surroundings) -> tuple[LocalBroker, Registration]:
    """``a`` leads ``t/0``, which ``b`` follows, on a disk whose next fsync fails."""
    disk = SimulatedDisk()
    folder = around.path / "a"
    folder.mkdir()
    a, b = around.start("a", logs=FileLogs(disk)), around.start("b")
    assert isinstance(b.path, Path)
    found = registration(a)
    register(found, a)
    make(a, "t", "ab", flush="batch")
    a.partition("t").append(numbers(0, 1))
    disk.fail_next_force()
    return a, found


def test_a_failed_fsync_makes_one_new_generation(failing, caplog):
    a, found = failing
    before = found.me
    a.driver.run(found.checking())
    assert found.me == before
    with pytest.raises(IsologError):
        a.partition("t").append(numbers(1, 1))
    with caplog.at_level(logging.ERROR):
        a.driver.run(found.checking())
        after = found.me
        a.driver.run(found.checking())
    assert after == found.me != before
    assert caplog.text.count("an fsync failed (t/0)") == 1
    assert Brokers(a.store).get("a").generation == found.me.generation


def test_after_a_failed_fsync_another_broker_leads(failing):
    a, found = failing
    with pytest.raises(IsologError):
        a.partition("t").append(numbers(1, 1))
    a.driver.run(found.checking())
    see(a.around)
    with pytest.raises(IsologError):
        a.partition("t")
    for each in a.around.up.values():
        each.control_once()
    assert a.record("t").leader == "b"
    failed = found.me
    assert registration(a).me != failed


LOSSES = {
    "a damaged entry": lambda folder: damage(folder / "00000000000000000000.entries"),
    "a missing file": lambda folder: (folder / "00000000000000000000.entries").unlink(),
    "a missing folder": lambda folder: shutil.rmtree(folder.parent),
}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_remembered_if_the_start_that_detected_it_died(around, loss):
    """What an open truncates or replaces looks sound to the next open."""
    a = around.start("a")
    around.start("b")
    make(a, "t", "ab")
    first = registration(a).me
    for number in range(3):
        a.partition("t").append(numbers(number, 1))
    folder = a.host.topic("t").replicas[0].log.directory
    a.end()
    LOSSES[loss](folder)
    dies = around.start("a")
    assert dies.host.doubts
    dies.end()
    again = around.start("a")
    assert not again.host.doubts
    assert registration(again).me != first


def test_a_lone_isr_member_leads_in_a_new_epoch_after_a_failed_fsync(failing):
    a, found = failing
    with pytest.raises(IsologError):
        a.partition("t").append(numbers(1, 1))
    make(a, "u", "a")
    before = a.record("u").leader_epoch
    a.driver.run(found.checking())
    assert a.record("u").leader_epoch > before
    a.partition("u").append(numbers(0, 1))


def test_a_failed_fsync_at_an_open_makes_a_new_generation(around):
    """Entries of the last process may be lost with the next power cut."""
    disk = SimulatedDisk()
    folder = around.path / "a"
    folder.mkdir()
    a, _ = around.start("a", logs=FileLogs(disk)), around.start("b")
    make(a, "t", "ab", flush="batch")
    first = registration(a).me
    a.partition("t").append(numbers(0, 1))
    a.partition("t").log.roll()
    a.die()
    disk.fail_next_force()
    again = around.start("a", logs=FileLogs(disk))
    assert registration(again).me != first


def test_a_log_that_cannot_open_after_a_failed_fsync_makes_a_new_generation(around):
    """It would stay in sync, as a replica that cannot be read."""
    disk = SimulatedDisk()
    (around.path / "a").mkdir()
    a, _ = around.start("a", logs=FileLogs(disk)), around.start("b")
    make(a, "t", "ab", flush="batch")
    first = registration(a).me
    a.partition("t").append(numbers(0, 1))
    folder = a.host.topic("t").replicas[0].log.directory
    a.die()
    disk.remove(folder / MARK_NAME)  # which is to be made again, and forced, at the next open
    disk.fail_next_force()
    again = around.start("a", logs=FileLogs(disk))
    assert isinstance(again.host.topic("t").replicas[0], StorageFailure)
    assert registration(again).me != first
