"""A metadata store older than the logs: epochs never decrease along a log."""

from __future__ import annotations

import shutil

import pytest

from isolog.testing import LocalCluster
from tests.support import NUMBERS, eventually
from tests.system.replication.clusters import (
    CONF,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    partition,
    read,
)

pytestmark = pytest.mark.chaos


def test_leader_of_an_older_record_gets_an_epoch_above_its_log(tmp_path, topic):
    """The copy has a leader epoch below the last epochs of the logs."""
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2", "3"]])
        append_replicated(log, topic, 0, 5)
        await_in_sync(log, topic)
        shutil.copytree(cluster.folder / "metadata", tmp_path / "copy")
        for first in (5, 10):
            cluster.kill(1)
            append_replicated(log, topic, first, 5)
            cluster.restart(1)
            await_in_sync(log, topic)
            log.elect_preferred_leaders(topic)
            eventually(lambda: partition(log, topic).leader == "1")
        append_replicated(log, topic, 15, 5)
        epoch = partition(log, topic).leader_epoch
        for number in cluster.brokers:
            cluster.kill(number)
        shutil.rmtree(cluster.folder / "metadata")
        shutil.copytree(tmp_path / "copy", cluster.folder / "metadata")
        for number in cluster.brokers:
            cluster.restart(number)
        eventually(lambda: partition(log, topic).leader_epoch > epoch)
        append_replicated(log, topic, 20, 5)
        await_in_sync(log, topic)
        await_equal_copies(cluster, topic)
        assert read(log, topic) == list(range(25))


def test_copied_cluster_elects_leaders_in_new_epochs(tmp_path, topic):
    """Each broker detects the copy and does not vouch, so the longest logs are elected."""
    backup = tmp_path / "backup"
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, 3, 3, schema=NUMBERS)
        for number in range(3):
            append_replicated(log, topic, 100 * number, 5, number)
        await_in_sync(log, topic)
        epochs = [partition(log, topic, number).leader_epoch for number in range(3)]
        for number in cluster.brokers:
            cluster.stop(number)
        shutil.copytree(cluster.folder, backup, ignore=shutil.ignore_patterns("*.sock", "leases"))
    with (
        LocalCluster(3, conf=CONF, cuttable=False, folder=backup) as cluster,
        cluster.connect() as log,
    ):
        for number in range(3):
            eventually(lambda n=number: partition(log, topic, n).leader_epoch > epochs[n])
            append_replicated(log, topic, 100 * number + 5, 5, number)
        await_in_sync(log, topic)
        for number in range(3):
            await_equal_copies(cluster, topic, number)
        assert read(log, topic) == [n + 100 * part for part in range(3) for n in range(10)]
        assert all("or a copy" in each.log_text() for each in cluster.brokers.values())
