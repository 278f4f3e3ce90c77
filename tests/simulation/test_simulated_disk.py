"""The simulated disk: its losses are those of a real one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from isolog.errors import DiskFull, StorageFailure
from tests.simulation.disk import SECTOR, SimulatedDisk, SimulatedFile

HERE = Path("/log")
FILE = HERE / "file"


def disk_with_a_file(content: bytes = b"") -> tuple[SimulatedDisk, SimulatedFile]:
    """A disk with one file. Its content and its name are synced."""
    disk = SimulatedDisk()
    disk.make_directory(HERE)
    file = disk.create(FILE)
    file.write(0, content)
    file.flush()
    disk.sync_directory(HERE)
    return disk, file


def outcomes(prepare, crashes: int = 300) -> set[bytes | None]:
    """The possible contents of the file after a crash of a disk that ``prepare`` makes."""
    found = set()
    for seed in range(crashes):
        disk = prepare()
        disk.crash(random.Random(seed))
        found.add(disk.files().get(FILE))
    return found


def test_synced_writes_survive_every_crash():
    def prepare():
        disk, file = disk_with_a_file(b"kept")
        file.write(4, b"lost?")
        file.flush()
        return disk

    assert outcomes(prepare) == {b"keptlost?"}


def test_any_prefix_of_an_unsynced_write_may_survive():
    def prepare():
        disk, file = disk_with_a_file(b"kept")
        file.write(4, b"xyz")
        return disk

    assert outcomes(prepare) == {b"kept" + b"xyz"[:length] for length in range(4)}


def test_unsynced_writes_are_not_on_the_disk():
    disk, file = disk_with_a_file(b"kept")
    file.write(4, b"lost?")
    assert disk.forced(FILE) == b"kept"
    file.flush()
    assert disk.forced(FILE) == b"keptlost?"
    unnamed = disk.create(HERE / "other")
    unnamed.write(0, b"x")
    unnamed.flush()
    assert disk.forced(HERE / "other") == b""


def test_unsynced_writes_may_survive_out_of_order():
    def prepare():
        disk, file = disk_with_a_file()
        file.write(0, b"a" * SECTOR)
        file.write(SECTOR, b"b" * SECTOR)
        return disk

    found = outcomes(prepare)
    assert {b"", b"a" * SECTOR, b"\0" * SECTOR + b"b" * SECTOR} <= found


def test_an_unsynced_name_may_be_lost_and_a_replaced_file_may_return():
    def made():
        disk = SimulatedDisk()
        disk.make_directory(HERE)
        disk.create(FILE).flush()
        return disk

    def replaced():
        disk, _ = disk_with_a_file(b"old")
        disk.write_whole(FILE, [b"new"])
        return disk

    def removed():
        disk, _ = disk_with_a_file(b"old")
        disk.remove(FILE)
        return disk

    assert outcomes(made) == {None, b""}
    assert outcomes(replaced) == {b"old", b"new"}
    assert outcomes(removed) == {None, b"old"}


def test_a_renamed_file_has_one_name_after_a_crash():
    for seed in range(50):
        disk, _ = disk_with_a_file(b"x")
        disk.make_directory(HERE / "aside")
        disk.rename(FILE, HERE / "aside" / "file")
        disk.crash(random.Random(seed))
        assert list(disk.files().values()) == [b"x"]


def test_after_a_failed_fsync_a_second_one_does_not_write_what_readers_see():
    def prepare():
        disk, file = disk_with_a_file(b"kept")
        file.write(4, b"ghost")
        disk.fail_next_force()
        with pytest.raises(StorageFailure):
            file.flush()
        file.flush()
        assert file.read(0, 99) == b"keptghost"
        return disk

    assert outcomes(prepare) == {b"kept"}


def test_a_directory_whose_removal_was_not_synced_can_be_made_again():
    disk, _ = disk_with_a_file(b"gone")
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        disk.remove_tree(HERE)
    disk.make_directory(HERE)
    assert HERE.name in disk.names(HERE.parent)
    assert disk.names(HERE) == []
    disk.create(FILE)


def test_a_full_disk_takes_what_fits_and_fails():
    disk, file = disk_with_a_file(b"kept")
    disk.room = 2
    with pytest.raises(DiskFull):
        file.write(4, b"xyz")
    assert disk.files()[FILE] == b"keptxy"


def test_a_mapping_shows_what_is_written_later_and_outlives_the_file():
    disk, file = disk_with_a_file(b"a" * 100)
    mapped = disk.map(FILE)
    file.write(10, b"b" * 1000)
    assert mapped.to_pybytes() == b"a" * 10 + b"b" * 90
    disk.remove(FILE)
    assert mapped.size == 100


def test_a_file_of_a_dead_process_takes_no_writes():
    disk, file = disk_with_a_file(b"x")
    disk.kill()
    with pytest.raises(ValueError, match="closed"):
        file.write(0, b"y")
    assert disk.files()[FILE] == b"x"


def test_a_rotten_bit_stays():
    disk, _ = disk_with_a_file(b"\0\0")
    disk.flip(FILE, 1, 7)
    disk.crash(random.Random(0))
    assert disk.files()[FILE] == b"\0\x80"


def test_one_seed_is_one_run():
    def left(seed: int) -> dict[Path, bytes]:
        disk, file = disk_with_a_file(b"x")
        for number in range(20):
            file.write(number * 100, bytes([number]) * 100)
        disk.create(HERE / "other")
        disk.crash(random.Random(seed))
        return disk.files()

    assert all(left(seed) == left(seed) for seed in range(20))
