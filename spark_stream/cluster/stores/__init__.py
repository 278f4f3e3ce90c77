"""The store of a cluster's metadata.

``store``        the Protocol: records with versions, changed by compare-and-set
``backends``     the stores and boards of a URL
``sqlite``       the store for brokers on one host
``store_files``  its files, and the queue of its writers
``etcd``         the store for brokers on many hosts, by an ``etcd_client``
``leases``       the leases of live brokers: in ``lease_files`` on one host, else in ``etcd_leases``
"""
