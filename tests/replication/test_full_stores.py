"""A metadata store that takes no changes: every view names it, and the dead broker beside it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_stream.errors import MetadataUnavailable
from spark_stream.testing import LocalCluster, LocalEtcd
from tests.cli.conftest import run
from tests.etcd import needs_etcd
from tests.support import NUMBERS, eventually
from tests.views import ANYWHERE, views_of

pytestmark = [pytest.mark.slow, pytest.mark.full, *needs_etcd]

TEXT = "database space exceeded"


def test_a_full_etcd_and_a_killed_broker_are_in_every_view(tmp_path: Path):
    """A dead broker's lease never expires for an observer that cannot renew its own."""
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

        def seen(alive: int, without_leader: int, *, store: bool) -> bool:
            for number in (1, 2):
                views = views_of(cluster.broker(number))
                if views.differences():
                    return False
                status = views.status
                if (status.alive, status.without_leader) != (alive, without_leader):
                    return False
                if status.store != store:
                    return False
            return True

        eventually(lambda: seen(3, 0, store=True), 30)
        etcd.fill()
        cluster.kill(3)
        # Each partition has a replica on broker 3, which gives no promises any more.
        eventually(lambda: seen(2, 6, store=False), 60)
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
        assert time.monotonic() - began < 10, "it did not wait until its deadline of 20 s"
        assert TEXT in cluster.broker(1).log_text()

        etcd.free()
        eventually(lambda: seen(2, 0, store=True), 60)
        cluster.restart(3)
        eventually(lambda: seen(3, 0, store=True), 60)
        eventually(lambda: not log.cluster().problems, 60)
