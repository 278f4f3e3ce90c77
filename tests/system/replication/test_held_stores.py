"""A metadata store locked by another process: no leader is elected until it is unlocked."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from isolog.testing import LocalCluster
from tests.support import NUMBERS, eventually
from tests.system.replication.clusters import (
    CONF,
    append_replicated,
    await_in_sync,
    partition,
    read,
)

# The simulator has outages of the store in each run.
pytestmark = [pytest.mark.chaos, pytest.mark.full]


def test_locked_store_is_logged_and_delays_the_election(topic):
    with LocalCluster(2, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2"]])
        append_replicated(log, topic, 0, 5)
        await_in_sync(log, topic, 2)
        store = cluster.folder / "metadata" / "metadata.sqlite"
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as holder:
            holder.execute("begin immediate")
            cluster.kill(1)
            survivor = cluster.broker(2)
            eventually(
                lambda: "task 'controller' failed: [STORAGE_FAILURE]" in survivor.log_text(), 40
            )
            assert partition(log, topic).leader is None, "the leader on record is dead"
            holder.execute("rollback")
        eventually(lambda: partition(log, topic).leader == "2", 40)
        assert "Traceback" not in survivor.log_text()
        assert read(log, topic) == list(range(5))
