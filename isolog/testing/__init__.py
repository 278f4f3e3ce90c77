"""Clusters of real brokers and of etcd for tests. ``local_cluster`` is a fixture of pytest too.

``store_tests``  the tests of a metadata store (need pytest and hypothesis)
"""

from __future__ import annotations

from spark_stream.testing import EtcdMember, LocalBroker, LocalCluster, LocalEtcd

__all__ = ["EtcdMember", "LocalBroker", "LocalCluster", "LocalEtcd"]
