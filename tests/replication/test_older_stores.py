"""The metadata store is an older copy than the logs: epochs still never fall along a log."""

from __future__ import annotations

import shutil

import pytest

from spark_stream.testing import LocalCluster
from tests.replication.clusters import CONF, copies_are_equal, in_sync, partition, read, written
from tests.support import NUMBERS, eventually

pytestmark = pytest.mark.chaos


def test_a_leader_by_an_older_record_leads_after_all_epochs_of_its_log(tmp_path, topic):
    """By the copy a broker is elected in an epoch that the logs have left behind."""
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2", "3"]])
        written(log, topic, 0, 5)
        in_sync(log, topic)
        shutil.copytree(cluster.folder / "metadata", tmp_path / "copy")
        for first in (5, 10):
            cluster.kill(1)
            written(log, topic, first, 5)
            cluster.restart(1)
            in_sync(log, topic)
            log.elect_preferred_leaders(topic)
            eventually(lambda: partition(log, topic).leader == "1")
        written(log, topic, 15, 5)
        epoch = partition(log, topic).leader_epoch
        for number in cluster.brokers:
            cluster.kill(number)
        shutil.rmtree(cluster.folder / "metadata")
        shutil.copytree(tmp_path / "copy", cluster.folder / "metadata")
        for number in cluster.brokers:
            cluster.restart(number)
        eventually(lambda: partition(log, topic).leader_epoch > epoch)
        written(log, topic, 20, 5)
        in_sync(log, topic)
        copies_are_equal(cluster, topic)
        assert read(log, topic) == list(range(25))
