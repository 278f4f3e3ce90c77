"""Which cluster a store belongs to, and which directories it refuses."""

from __future__ import annotations

import threading

import pytest

from spark_stream.cluster.identity import cluster_id
from spark_stream.environment import SystemIds
from spark_stream.errors import WrongCluster

IDS = SystemIds()


def test_a_new_store_gets_an_id_and_keeps_it(store):
    made = cluster_id(store, IDS, None)
    assert len(made) == 32
    assert cluster_id(store, IDS, None) == made
    assert cluster_id(store, IDS, made) == made


def test_a_store_without_an_id_takes_that_of_an_existing_directory(store):
    """A directory of an earlier release: its clients know that id."""
    assert cluster_id(store, IDS, "known") == "known"
    assert cluster_id(store, IDS, None) == "known"


def test_a_directory_of_another_cluster_is_refused_by_name(store):
    cluster_id(store, IDS, "ours")
    with pytest.raises(WrongCluster, match="cluster theirs, the metadata store to cluster ours"):
        cluster_id(store, IDS, "theirs")
    assert cluster_id(store, IDS, None) == "ours"


def test_brokers_that_start_at_once_get_one_id(another):
    stores = [another() for _ in range(4)]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(cluster_id(each, IDS, None)))
        for each in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
