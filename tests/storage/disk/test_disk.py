"""Reads of the operating system's files, with the calls of Linux and without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_stream import operating_system
from spark_stream.storage.disk import disk
from spark_stream.storage.disk.disk import OsDisk


@pytest.mark.parametrize("direct", [getattr(os, "O_DIRECT", 0), 0], ids=["direct", "cached"])
@pytest.mark.parametrize(
    "read", [operating_system.read_into, operating_system._read_copied], ids=["native", "portable"]
)
def test_stored_bytes_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: int, read: object
) -> None:
    monkeypatch.setattr(disk, "DIRECT", direct)
    monkeypatch.setattr(disk, "read_into", read)
    content = os.urandom(3 * 4096 + 17)
    (tmp_path / "f").write_bytes(content)
    for position, length in [(0, 4096), (4096, 8192), (100, 5000), (8192, 10_000), (20_000, 10)]:
        found = OsDisk().read_stored(tmp_path / "f", position, length)
        assert found.to_pybytes() == content[position : position + length]


@pytest.mark.parametrize("seek", [os.SEEK_DATA, None], ids=["native", "portable"])
def test_stored_size_leaves_out_a_large_hole_that_the_system_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seek: int | None
) -> None:
    monkeypatch.setattr(operating_system, "_SEEK_DATA", seek)
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)) * 16)
    os.truncate(path, 256 << 20)
    assert OsDisk().stored_size(path) == (256 << 20 if seek is None else 4096)
    assert OsDisk().size(path) == 256 << 20
