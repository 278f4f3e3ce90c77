"""For tests, ours and those of users: clusters of real brokers, and a simulator of whole clusters.

:class:`~spark_stream.testing.local_cluster.LocalCluster` is also a fixture of pytest
(``pytest_isolog``); the simulator is ``python -m spark_stream.testing.simulation``.
"""

from spark_stream.testing.local_cluster import LocalBroker, LocalCluster

__all__ = ["LocalBroker", "LocalCluster"]
