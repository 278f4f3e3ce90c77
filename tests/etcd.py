"""Real etcd members for tests; those that need them are skipped where there is no etcd."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import pytest

from spark_stream.testing.local_etcd import VARIABLE, etcd_binary

T = TypeVar("T")

_CACHED = Path(__file__).resolve().parents[1] / ".cache/etcd/usr/bin/etcd"


def use_cached_etcd() -> None:
    """Use what ``scripts/ensure-etcd`` has fetched, if there is no other etcd."""
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
