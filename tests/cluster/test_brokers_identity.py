"""Which cluster a store belongs to, and which directories it refuses."""

from __future__ import annotations

import threading

import pytest

from isolog.errors import WrongCluster
from spark_stream.cluster.brokers import CLUSTER, ClusterSecret, cluster_identity
from spark_stream.environment import SystemIds

IDS = SystemIds()


def cluster_id(store, ids, known):
    return cluster_identity(store, ids, known)[0]


def test_a_new_store_gets_an_id_and_keeps_it(store):
    made = cluster_id(store, IDS, None)
    assert len(made) == 32
    assert cluster_id(store, IDS, None) == made
    assert cluster_id(store, IDS, made) == made


def test_a_store_without_an_id_takes_that_of_an_existing_directory(store):
    """As after a first start that ended before its store was there: its clients know that id."""
    assert cluster_id(store, IDS, "known") == "known"
    assert cluster_id(store, IDS, None) == "known"


@pytest.mark.rule("to which cluster a directory belongs", "cluster/brokers.py")
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


def test_a_cluster_has_one_secret_of_32_bytes_which_is_not_shown(store, another):
    _, secret = cluster_identity(store, IDS, None)
    key = store.get(CLUSTER).value["secret"]
    assert len(bytes.fromhex(key)) == 32
    assert cluster_identity(another(), IDS, None)[1] == secret
    assert secret == ClusterSecret(bytes.fromhex(key))
    assert key not in f"{secret!r} {secret}"


def test_a_proof_is_of_one_key_and_of_its_facts():
    secret = ClusterSecret(b"k" * 32)
    proof = secret.prove("call", "1", "2")
    assert secret.has_proven(proof, "call", "1", "2")
    for facts in (("call", "2", "1"), ("call", "1"), ("call", "12"), ('call", "1', "2")):
        assert not secret.has_proven(proof, *facts)
    for wrong in ("", proof[:-1], proof.upper(), "\N{SNOWMAN}"):
        assert not secret.has_proven(wrong, "call", "1", "2")
    assert not ClusterSecret(b"l" * 32).has_proven(proof, "call", "1", "2")
