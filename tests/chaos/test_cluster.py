"""The cluster keeps its guarantees under faults of its brokers: a short run of ``cluster``.

A failure prints its seed. ``make chaos SEED=…`` runs it again, ``MINUTES=…`` for longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.cluster import LEVELS, OF_MEMBERS, Outcome, run
from tests.etcd import needs_etcd
from tests.hosts.network import can_make_hosts

pytestmark = [pytest.mark.full, pytest.mark.chaos, pytest.mark.timeout(900)]


MISHAPS = {"kill", "kill all", "doubt", "stop", "pause", "cut", "cut off", "flood"}
OF_THE_FILE = {"store: fill"} if can_make_hosts() else set()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"spark": True}, id="with a streaming query", marks=pytest.mark.spark),
        pytest.param({"kafka": True}, id="with Kafka's clients"),
    ],
)
def test_committed_records_survive_faults_of_brokers(options: dict[str, bool]) -> None:
    seed = int(os.environ.get("ISOLOG_CHAOS_SEED", random.randrange(1 << 32)))
    found = run(10.0, seed, **options)
    print(found)
    assert found.problems == [], f"seed {seed}"
    strikes = {each for each in found.strikes if not each.startswith("gateway")}
    assert strikes == MISHAPS | OF_THE_FILE
    holds(found)


ON_HOSTS = {"part", "part one way", "isolate", "delay", "lose", "freeze", "fill"}
needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="cannot make network namespaces")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(False, marks=needs_etcd, id="etcd"),
        pytest.param(True, marks=[*needs_etcd, needs_hosts], id="hosts"),
    ],
)
def test_committed_records_survive_faults_of_etcd_and_network(tmp_path: Path, hosts: bool) -> None:
    seed = int(os.environ.get("ISOLOG_CHAOS_SEED", random.randrange(1 << 32)))
    found = run(20.0, seed, etcd_folder=tmp_path, hosts=hosts)
    print(found)
    assert found.problems == [], f"seed {seed}"
    mishaps = (MISHAPS - {"cut", "cut off"}) | ON_HOSTS if hosts else MISHAPS
    assert set(found.strikes) == mishaps | {f"etcd: {what}" for what in OF_MEMBERS}
    holds(found)


def holds(found: Outcome) -> None:
    """The run has done enough to be meaningful."""
    assert found.notes.enough
    assert set(found.reads["level"]) == set(LEVELS)
    assert {"acknowledged", "committed", "aborted"} <= set(found.writes["outcome"])
