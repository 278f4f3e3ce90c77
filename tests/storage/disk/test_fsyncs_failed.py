"""A failed fsync is the last one: the log refuses writes, with the reason, until the next open."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from isolog.errors import DiskFull, StorageFailure, TooManyOpenFiles
from spark_stream.consistency.entries import Kind
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush
from tests.simulation.disk import SimulatedDisk
from tests.storage.disks import Died, FailingDisk, FaultyDisk, dying_in
from tests.storage.logs import EPOCH, NOW, append_next, format_of, ids, read

HERE = Path("/topics/t/0")


def log_of(flush: Flush = Flush.NONE) -> tuple[SimulatedDisk, PartitionLog]:
    """A log of ten records on a separate disk."""
    disk = SimulatedDisk()
    log = PartitionLog.open(HERE, format_of(flush=flush), disk)
    append_next(log)
    return disk, log


FORCING: dict[str, tuple[Flush, Callable[[PartitionLog], object]]] = {
    "an append with flush=batch": (Flush.BATCH, append_next),
    "a marker with flush=batch": (
        Flush.BATCH,
        lambda log: log.mark(Kind.COMMIT, 1, 1, 1, EPOCH, NOW),
    ),
    "a flush": (Flush.INTERVAL, PartitionLog.flush),
    "a roll": (Flush.NONE, PartitionLog.roll),
    "a close": (Flush.NONE, PartitionLog.close),
}


@pytest.mark.parametrize("name", FORCING)
def test_failure_callback_is_called_once(name):
    flush, act = FORCING[name]
    disk, log = log_of(flush)
    told: list[str] = []
    log.when_failed(lambda: told.append("early"))
    assert not told
    disk.fail_next_force()
    for _ in range(2):
        with pytest.raises(StorageFailure):
            act(log)
    assert told == ["early"]
    log.when_failed(lambda: told.append("late"))
    assert told == ["early", "late"]


@pytest.mark.parametrize("name", FORCING)
def test_failed_log_refuses_everything_but_reads(name):
    flush, act = FORCING[name]
    disk, log = log_of(flush)
    assert log.failed is None
    disk.fail_next_force()
    with pytest.raises(StorageFailure, match="the partition accepts no writes") as caught:
        act(log)
    assert caught.value.details["path"] == str(HERE)
    assert log.failed is not None
    tried = disk.forces
    for refused in (
        append_next,
        PartitionLog.flush,
        PartitionLog.roll,
        PartitionLog.close,
        lambda log: log.mark(Kind.ABORT, 1, 1, 1, EPOCH, NOW),
    ):
        with pytest.raises(StorageFailure, match="Input/output error"):
            refused(log)
    assert log.housekeep(NOW + 10**15, log.end.offset) == 0
    assert disk.forces == tried, "no force is tried after one that failed"
    assert log.end.offset == 10
    assert ids(read(log, 0)) == list(range(10))


def test_log_fails_if_the_fsync_of_its_directory_fails():
    disk, log = log_of()
    log.flush()
    refuse_from = disk.forces + 1  # the next segment's file is forced, but not its name

    def may_fail(path: Path) -> None:
        disk.forces += 1
        if disk.forces > refuse_from:
            raise StorageFailure(f"{path}: Input/output error")

    disk.may_fail = may_fail  # type: ignore[method-assign]
    with pytest.raises(StorageFailure):
        log.roll()
    assert log.failed is not None


@pytest.mark.parametrize("ends", ["orderly", "killed", "killed before it could note the failure"])
@pytest.mark.parametrize("flush", Flush)
def test_next_open_rewrites_bytes_of_a_failed_fsync(flush, ends):
    """Linux marks the pages of a failed fsync as clean, so a later fsync would skip them."""
    disk, log = log_of(Flush.NONE)
    disk.fail_next_force()
    if ends not in ("orderly", "killed"):
        disk.before_change = dying_in(2)  # the state "under way", then the fsync
    with pytest.raises((StorageFailure, Died)):
        log.flush()
    disk.before_change = lambda: None
    if ends == "orderly":
        with pytest.raises(StorageFailure):
            log.close()
    disk.kill()
    log = PartitionLog.open(HERE, format_of(flush=flush), disk)
    assert log.failed is None
    assert ids(read(log, 0)) == list(range(10))
    append_next(log)
    log.flush()
    for seed in range(20):
        disk.crash(random.Random(seed))
        log = PartitionLog.open(HERE, log.format, disk)
        assert log.cuts == ()
        assert ids(read(log, 0)) == list(range(20)), "forced, and there after every power cut"


def test_no_fsync_starts_without_its_recorded_state():
    """If the disk accepts no writes, it would not accept the state "failed" either."""
    disk, log = log_of(Flush.NONE)
    tried, disk.refusal = disk.forces, DiskFull
    with pytest.raises(DiskFull):
        log.flush()
    assert (disk.forces, log.failed) == (tried, None)
    disk.refusal = None
    log.flush()
    disk.crash(random.Random(0))
    assert PartitionLog.open(HERE, log.format, disk).end.offset == 10


def test_failed_fsync_is_reported_even_if_the_open_fails():
    """Until the log opens, the broker must not vouch for it."""
    disk, log = log_of(Flush.NONE)
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        log.flush()
    disk.kill()
    entries = log.segments[-1].name.entries
    disk.open(entries).write(disk.size(entries), b"torn")
    disk.room = 0  # so that the torn end cannot be cut off
    told: list[str] = []
    with pytest.raises(DiskFull):
        PartitionLog.open(HERE, log.format, disk, lambda: told.append("losing"))
    assert told


def test_batch_of_a_failed_fsync_is_not_in_the_reopened_log():
    """The append raised an error, so its bytes are undone, if the disk allows it."""
    disk, log = log_of(Flush.BATCH)
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        append_next(log)
    disk.kill()
    log = PartitionLog.open(HERE, log.format, disk)
    assert log.end.offset == 10


@pytest.mark.parametrize("seed", range(20))
def test_open_with_flush_batch_forces_entries_of_a_dead_process(seed: int):
    """It died between a write and its fsync. A retry is acknowledged as a duplicate."""
    disk, _ = log_of(Flush.NONE)
    disk.kill()
    log = PartitionLog.open(HERE, format_of(flush=Flush.BATCH), disk)
    end = log.end
    assert end.offset > 0
    disk.crash(random.Random(seed))
    assert PartitionLog.open(HERE, format_of(flush=Flush.BATCH), disk).end == end


def test_repeated_removal_repeats_the_fsync(tmp_path: Path):
    """The first attempt removed it. The second one only has to repeat the fsync."""
    disk, folder = FailingDisk(), tmp_path / "t" / "0"
    folder.mkdir(parents=True)
    disk.refused = "sync_directory"
    for _ in range(2):
        with pytest.raises(StorageFailure):
            disk.remove_tree(folder)
        assert not folder.exists()
    folder.parent.rmdir()
    with pytest.raises(StorageFailure):
        disk.remove_tree(folder)
    disk.refused = None
    disk.remove_tree(folder)
    disk.remove_tree(tmp_path / "never" / "there")


@pytest.mark.parametrize("parent_is_gone", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_folder_removed_twice_does_not_reappear(seed: int, parent_is_gone: bool):
    disk, folder = SimulatedDisk(), Path("/topics/t/id")
    disk.make_directory(folder)
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        disk.remove_tree(folder)
    if parent_is_gone:
        disk.remove_empty_directory(folder.parent)
    disk.remove_tree(folder)
    disk.crash(random.Random(seed))
    assert folder.name not in disk.names(folder.parent)


class ShortDisk(FaultyDisk):
    """A disk whose process has no free descriptor at the operation of number ``fails_at``."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_at, self.count = -1, 0

    def before(self, operation: str, path: Path) -> None:
        if operation in {"create", "flush", "sync_directory"}:
            self.count += 1
            if self.count == self.fails_at:
                raise TooManyOpenFiles(f"{path} cannot be opened", limit=96)


@pytest.mark.rule("an fsync that was not tried, for lack of descriptors", "storage/disk/fsyncs.py")
@pytest.mark.parametrize("flush", [Flush.NONE, Flush.BATCH])
@pytest.mark.parametrize("fails_at", range(1, 12))
def test_an_append_without_a_free_descriptor_can_be_repeated(tmp_path, flush, fails_at):
    disk = ShortDisk()
    log = PartitionLog.open(tmp_path, format_of(flush=flush, segment_entries=2), disk)
    disk.fails_at = fails_at
    failures = 0
    for _ in range(5):
        try:
            append_next(log, 2)
        except TooManyOpenFiles:
            failures += 1
            append_next(log, 2)
    assert log.failed is None
    assert failures <= 1
    log.flush()
    assert ids(read(log, 0)) == list(range(10))
    log.close()
    again = PartitionLog.open(tmp_path, format_of(flush=flush, segment_entries=2), disk)
    assert ids(read(again, 0)) == list(range(10))
    assert again.intact
