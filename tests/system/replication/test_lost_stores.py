"""The metadata store of three brokers is deleted, or replaced by an older backup."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import isolog
from isolog.errors import InvalidRequest, MetadataLost
from isolog.testing import LocalCluster
from spark_stream.client.administration import restore_metadata
from spark_stream.cluster.backup import back_up, put_back
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


def test_deleted_store_is_detected_and_restored_from_a_broker(topic):
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, 3, 3, schema=NUMBERS)
        append_replicated(log, topic, 0, 5)
        await_in_sync(log, topic)
        store = cluster.folder / "metadata" / "metadata.sqlite"
        for each in store.parent.glob("metadata.sqlite*"):
            each.unlink()
        for broker in cluster.brokers.values():
            eventually(lambda b=broker: "METADATA_LOST" in b.log_text())
        with pytest.raises(MetadataLost, match="was deleted"):
            log.create_topic(f"{topic}-more", schema=NUMBERS)
        append_replicated(log, topic, 5, 5)
        assert read(log, topic) == list(range(10))
        assert log.cluster().problems[0].kind == "metadata_lost"
        cluster.stop(1)
        with pytest.raises(MetadataLost, match="brokers run that have it open: 2, 3"):
            cluster.restart(1)
        with cluster.connect() as another:
            restore_metadata(another._connection)
        cluster.restart(1)
        eventually(lambda: not log.cluster().problems)
        log.create_topic(f"{topic}-more", schema=NUMBERS)
        for number in cluster.brokers:
            cluster.stop(number)
            cluster.restart(number)
        eventually(lambda: not log.cluster().problems)
        append_replicated(log, topic, 10, 5)
        assert read(log, topic) == list(range(15))


def test_broker_does_not_start_on_a_replaced_store_file(tmp_path, topic):
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, 3, 3, schema=NUMBERS)
        await_in_sync(log, topic)
        store, backup = cluster.folder / "metadata" / "metadata.sqlite", tmp_path / "backup"
        back_up(store, backup)
        log.create_topic(f"{topic}-later", schema=NUMBERS)
        store.rename(tmp_path / "away")
        shutil.copyfile(backup, store)
        cluster.kill(1)
        with pytest.raises(MetadataLost, match="is not the file that running brokers have open"):
            cluster.restart(1)
        for each in store.parent.glob("metadata.sqlite*"):
            each.unlink()
        with cluster.connect() as another:
            restore_metadata(another._connection)
        for number in (2, 3):
            assert "is at its path again" in cluster.broker(number).log_text()
        cluster.restart(1)
        eventually(lambda: not log.cluster().problems)
        assert f"{topic}-later" in log.topics()


@contextmanager
def with_older_backup(
    folder: Path, topic: str
) -> Iterator[tuple[LocalCluster, isolog.Log, Path, Path]]:
    """Yield a cluster, a client, the store, and a backup with broker 1 as leader and all in sync.

    Broker 1 is stopped, and lacks the records acknowledged after the backup.
    """
    with LocalCluster(3, conf=CONF, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2", "3"]])
        append_replicated(log, topic, 0, 5)
        await_in_sync(log, topic)
        store, backup = cluster.folder / "metadata" / "metadata.sqlite", folder / "backup"
        back_up(store, backup)
        cluster.stop(1)
        eventually(lambda: "1" not in partition(log, topic).isr)
        append_replicated(log, topic, 5, 5)
        yield cluster, log, store, backup


@pytest.mark.quick("copied while stopped")
@pytest.mark.parametrize("how", ["overwritten", "copied while stopped"])
def test_copied_backup_loses_no_acknowledged_record(tmp_path, topic, how):
    with with_older_backup(tmp_path, topic) as (cluster, log, store, backup):
        if how == "overwritten":
            shutil.copyfile(backup, store)
            for number in (2, 3):
                eventually(lambda n=number: "was overwritten" in cluster.broker(n).log_text())
            with pytest.raises(MetadataLost, match="was overwritten"):
                log.create_topic(f"{topic}-more", 1, 2, schema=NUMBERS)
            with pytest.raises(MetadataLost, match="was overwritten"):
                cluster.restart(1)
        for number in (2, 3):
            cluster.stop(number)
        if how == "overwritten":
            with pytest.raises(MetadataLost, match="is of another file"):
                cluster.restart(1)
        for suffix in ("-wal", "-shm"):
            store.with_name(store.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(backup, store)
        for number in cluster.brokers:
            cluster.restart(number)
        eventually(lambda: partition(log, topic).leader in ("2", "3"))
        await_in_sync(log, topic)
        assert read(log, topic) == list(range(10))
        await_equal_copies(cluster, topic)


def test_broker_that_lacks_records_is_not_elected_from_an_older_backup(tmp_path, topic):
    with with_older_backup(tmp_path, topic) as (cluster, log, store, backup):
        epoch = partition(log, topic).leader_epoch
        with pytest.raises(InvalidRequest, match=r"brokers run on .*: 2, 3"):
            put_back(backup, store, force=True)
        for number in (2, 3):
            cluster.stop(number)
        put_back(backup, store, force=True)
        cluster.restart(1)
        assert partition(log, topic).leader is None
        for number in (2, 3):
            cluster.restart(number)
        eventually(lambda: partition(log, topic).leader in ("2", "3"))
        await_in_sync(log, topic)
        assert partition(log, topic).leader_epoch > epoch
        append_replicated(log, topic, 10, 5)
        assert read(log, topic) == list(range(15))
        await_equal_copies(cluster, topic)
