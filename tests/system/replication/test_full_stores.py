"""A full metadata store: every view reports it, and a dead broker beside it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isolog.errors import MetadataUnavailable
from isolog.testing import LocalCluster, LocalEtcd
from tests.cli.conftest import run
from tests.etcd import with_etcd
from tests.hosts.machines import SmallDisk
from tests.hosts.network import can_make_hosts
from tests.support import NUMBERS, eventually
from tests.views import ANYWHERE, views_of

pytestmark = [pytest.mark.slow, pytest.mark.full]

TEXT = "database space exceeded"


def views_agree(cluster: LocalCluster, alive: int, without_leader: int, *, store: bool) -> bool:
    """Return whether all views through brokers 1 and 2 show this state."""
    for number in (1, 2):
        views = views_of(cluster.broker(number))
        status = views.status
        shown = (status.alive, status.without_leader, status.store)
        if views.differences() or shown != (alive, without_leader, store):
            return False
    return True


@with_etcd
def test_full_etcd_and_a_killed_broker_are_in_every_view(tmp_path: Path):
    """An observer that cannot renew its lease never counts the lease of another as expired."""
    with (
        LocalEtcd(1, tmp_path, quota_bytes=16 << 20) as etcd,
        LocalCluster(
            3,
            conf={"metadata": etcd.url("full"), "metrics_listen": ANYWHERE},
            cuttable=False,
        ) as cluster,
        cluster.connect(timeout=20) as log,
    ):
        log.create_topic("t", 6, 3, schema=NUMBERS)

        eventually(lambda: views_agree(cluster, 3, 0, store=True), 30)
        etcd.fill()
        cluster.kill(3)
        # Each partition has a replica on broker 3, which sends no further promises.
        eventually(lambda: views_agree(cluster, 2, 6, store=False), 60)
        view = views_of(cluster.broker(1)).by_name["console"]
        assert any(TEXT in each for each in view.problems)
        assert view.controller != "3"
        shown = run("cluster", "status", "--bootstrap", cluster.broker(1).address)
        assert shown.code == 1
        assert TEXT in shown.out
        assert "etcdctl alarm disarm" in shown.out
        began = time.monotonic()
        with pytest.raises(MetadataUnavailable, match=TEXT) as refused:
            log.create_topic("u", 1, 2, schema=NUMBERS)
        assert "etcdctl alarm disarm" in refused.value.hint
        assert time.monotonic() - began < 10, "the call waited for its deadline of 20 s"
        assert TEXT in cluster.broker(1).log_text()

        etcd.free()
        eventually(lambda: views_agree(cluster, 2, 0, store=True), 60)
        cluster.restart(3)
        eventually(lambda: views_agree(cluster, 3, 0, store=True), 60)
        eventually(lambda: not log.cluster().problems, 60)


@with_etcd
def test_member_stays_in_its_group_while_a_full_store_refuses_heartbeats(tmp_path: Path):
    """The broker can read the sessions, but members cannot renew them."""
    session_s = 15.0
    with (
        LocalEtcd(1, tmp_path, quota_bytes=16 << 20) as etcd,
        LocalCluster(3, conf={"metadata": etcd.url("full")}, cuttable=False) as cluster,
        cluster.connect(timeout=20) as log,
    ):
        log.create_topic("t", 1, 3)
        revoked: list[object] = []
        with log.consumer(
            "t", group="g", session_timeout=session_s, on_revoked=revoked.append
        ) as consumer:

            def read_for(seconds: float) -> None:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    consumer.poll(timeout=0.5)

            read_for(2.0)
            etcd.fill()
            read_for(2 * session_s)
            assert TEXT in cluster.broker(1).log_text()
            etcd.free()
            read_for(10.0)
            assert revoked == []
        assert not any("is removed" in each.log_text() for each in cluster.brokers.values())


@pytest.mark.skipif(not can_make_hosts(), reason="mounting a disk needs root")
def test_full_disk_of_the_metadata_file_is_in_every_view_until_cleared(tmp_path: Path):
    disk = SmallDisk(tmp_path / "metadata", 16)
    try:
        with (
            LocalCluster(
                3, conf={"metrics_listen": ANYWHERE}, folder=tmp_path, cuttable=False
            ) as cluster,
            cluster.connect(timeout=20) as log,
        ):
            log.create_topic("t", 3, 3, schema=NUMBERS)
            eventually(lambda: views_agree(cluster, 3, 0, store=True), 30)
            disk.fill()
            began = time.monotonic()
            with pytest.raises(MetadataUnavailable, match="full") as refused:
                log.create_topic("large", 10_000, 3, schema=NUMBERS)
            assert "Make room" in refused.value.hint
            assert time.monotonic() - began < 10
            asked = next(
                each for each in cluster.brokers.values() if not views_of(each).status.store
            )
            views = views_of(asked)
            assert views.differences() == []
            assert any("full" in each for each in views.status.problems)
            disk.clear()
            # No caller changes the store: the broker itself retries a change.
            eventually(lambda: views_agree(cluster, 3, 0, store=True), 30)
            log.create_topic("large", 10, 3, schema=NUMBERS)
    finally:
        disk.close()
