"""For tests, ours and those of users: clusters of real brokers, and links that can be cut.

:class:`~spark_stream.testing.local_cluster.LocalCluster` is also a fixture of pytest
(``pytest_isolog``).
"""

from spark_stream.testing.local_cluster import LocalBroker, LocalCluster

__all__ = ["LocalBroker", "LocalCluster"]
