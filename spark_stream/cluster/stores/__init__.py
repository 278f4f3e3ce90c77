"""The store of a cluster's metadata.

``store``        the Protocol: records with versions, changed by compare-and-set
``backends``     the stores and boards of a URL
``sqlite``       the store for brokers on one host
``store_files``  its files, and the line of its writers
``etcd``         the store for brokers on many hosts, by an ``etcd_client``
``leases``       who is alive. On one host in ``lease_files``, else in ``etcd_leases``
"""
