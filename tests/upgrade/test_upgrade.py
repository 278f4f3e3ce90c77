"""A rolling upgrade under load, with brokers and clients of two releases. No record is lost or
duplicated, and transactions are whole.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import psutil
import pytest

from spark_stream.protocol import OLDEST, VERSION
from spark_stream.testing import LocalCluster
from tests.chaos.cluster import run
from tests.chaos.test_cluster import holds
from tests.conftest import ROOT
from tests.etcd import needs_etcd
from tests.support import eventually
from tests.system.replication.clusters import with_retries
from tests.upgrade import client
from tests.upgrade.releases import later_release, place_of, previous_release

pytestmark = [pytest.mark.full, pytest.mark.chaos, pytest.mark.timeout(600)]


class Upgrade:
    """The steps of the upgrade: all brokers get the later release, one by one.

    One of them is downgraded and upgraded once more. In between, a client of each release writes,
    and reads the records of all others.
    """

    def __init__(self, earlier: Path, later: Path) -> None:
        self.earlier = earlier
        self.later = later
        self._numbers = count()
        self._written: set[str] = set()

    def __call__(self, cluster: LocalCluster) -> None:
        with cluster.connect(timeout=60) as log:
            log.create_topic(client.TOPIC, 2, 3, config={"min.insync.replicas": 2})
        self._call_both(cluster)
        for number in cluster.brokers:
            self._restart(cluster, number, self.later)
            self._call_both(cluster)
        for release in (self.earlier, self.later):
            self._restart(cluster, 1, release)
            self._call_both(cluster)
        for broker in cluster.brokers.values():
            assert "cannot be read" not in broker.log_text()
            assert "Traceback" not in broker.log_text()

    def _restart(self, cluster: LocalCluster, number: int, release: Path) -> None:
        cluster.stop(number)
        cluster.broker(number).place = place_of(release)
        cluster.restart(number)
        assert psutil.Process(cluster.broker(number).pid).cwd() == str(release)
        with cluster.connect(timeout=60) as log:
            eventually(lambda: not with_retries(log.cluster).problems)

    def _call_both(self, cluster: LocalCluster) -> None:
        for release in (self.earlier, self.later):
            name = f"client {next(self._numbers)}"
            self._written |= client.values_of(name)
            ran = call(release, cluster, name)
            assert ran.returncode == 0, ran.stderr
            isolog, consumed, read = json.loads(ran.stdout)
            assert Path(isolog).is_relative_to(release)
            assert sorted(consumed) == sorted(read) == sorted(self._written)


def call(release: Path, cluster: LocalCluster, name: str) -> subprocess.CompletedProcess[str]:
    """Run the client of a release."""
    return subprocess.run(
        [*place_of(release).prefix, sys.executable, client.__file__, cluster.bootstrap, name],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"ISOLOG_RACK": "here"},
        check=False,
    )


def upgraded_under_load(upgrade: Upgrade, etcd_folder: Path | None) -> None:
    seed = random.randrange(1 << 32)
    places = [place_of(upgrade.earlier)] * 3
    found = run(0, seed, etcd_folder=etcd_folder, places=places, course=upgrade)
    print(found)
    assert found.problems == [], f"seed {seed}"
    holds(found)


@pytest.mark.parametrize("in_etcd", [False, pytest.param(True, marks=needs_etcd)])
def test_rolling_upgrade_from_the_previous_release(in_etcd: bool, tmp_path: Path) -> None:
    upgrade = Upgrade(previous_release(tmp_path / "previous"), ROOT)
    (tmp_path / "etcd").mkdir()
    upgraded_under_load(upgrade, tmp_path / "etcd" if in_etcd else None)


def test_a_rolling_upgrade_to_the_next_protocol_loses_no_record(tmp_path: Path) -> None:
    upgraded_under_load(Upgrade(ROOT, later_release(tmp_path / "later", 1)), None)


def test_release_two_versions_away_is_refused_with_reasons_on_both_sides(
    tmp_path: Path,
) -> None:
    later = later_release(tmp_path / "later", 2)
    mine = str(VERSION) if VERSION == OLDEST else f"{OLDEST} to {VERSION}"
    its = f"{VERSION + 1} to {VERSION + 2}"
    with LocalCluster(3, places=[place_of(ROOT)] * 3, cuttable=False) as cluster:
        with cluster.connect() as log:
            log.create_topic("t", 3, 3)
        older, newest = cluster.broker(1), cluster.broker(3)
        cluster.stop(3)
        newest.place = place_of(later)
        cluster.restart(3)
        reason = f"the client speaks {its}, the broker {mine}"
        refused = "no version of the protocol in common: " + reason
        followed = f"following broker 1 failed: [UNSUPPORTED_VERSION] {older.peer_address}"
        eventually(lambda: refused in older.log_text())
        eventually(lambda: followed in newest.log_text() and reason in newest.log_text())
        ran = call(later, cluster, "too new")
        assert ran.returncode == 1
        assert f"[UNSUPPORTED_VERSION] {older.address}" in ran.stderr
        assert reason in ran.stderr
