"""Real etcd members for tests, which are skipped without etcd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TypeVar

import pytest

from spark_stream.testing.local_etcd import VARIABLE, LocalEtcd, etcd_binary

T = TypeVar("T")

_CACHED = Path(__file__).resolve().parents[1] / ".cache/etcd/usr/bin/etcd"


def use_cached_etcd() -> None:
    """Use the etcd of ``scripts/ensure-etcd``, if there is no other."""
    if etcd_binary() is None and _CACHED.exists():
        os.environ[VARIABLE] = str(_CACHED)


use_cached_etcd()
needs_etcd = [
    pytest.mark.etcd,
    pytest.mark.skipif(etcd_binary() is None, reason="no etcd: run scripts/ensure-etcd"),
]


def with_etcd(test: T) -> T:
    """Mark one test of a module that needs etcd."""
    for mark in needs_etcd:
        test = mark(test)
    return test


def copy_data(etcd: LocalEtcd, folder: Path) -> None:
    """Copy the data of all members to a new folder, while the members are paused."""
    for each in etcd.members:
        each.pause()
    try:
        for each in etcd.members:
            shutil.copytree(each.data, folder / each.name)
    finally:
        for each in etcd.members:
            each.resume()


def put_back_data(etcd: LocalEtcd, folder: Path) -> None:
    """Restore the members at their addresses from an earlier copy, which is kept."""
    for each in etcd.members:
        each.kill()
    for each in etcd.members:
        shutil.rmtree(each.data)
        shutil.copytree(folder / each.name, each.data)
    etcd.restore()


def exchange_data(etcd: LocalEtcd, folder: Path, present: Path) -> None:
    """Restore the members from an earlier copy. Their present data moves to a new folder."""
    for each in etcd.members:
        each.kill()
    shutil.rmtree(present, ignore_errors=True)
    present.mkdir()
    for each in etcd.members:
        shutil.move(each.data, present / each.name)
        shutil.copytree(folder / each.name, each.data)
    etcd.restore()
