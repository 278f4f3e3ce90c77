"""Tools for tests of isolog and of its users: clusters of brokers and of etcd, links to cut.

:class:`~spark_stream.testing.local_cluster.LocalCluster` is also available as a fixture of pytest
(``pytest_isolog``).
"""

from spark_stream.testing.local_cluster import LocalBroker, LocalCluster
from spark_stream.testing.local_etcd import EtcdMember, LocalEtcd

__all__ = ["EtcdMember", "LocalBroker", "LocalCluster", "LocalEtcd"]
