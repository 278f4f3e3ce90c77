"""The store of a cluster's metadata.

``store``        the Protocol: records with versions, changed by compare-and-set
``sqlite``       the store for brokers on one host; its writers wait in a ``writer_queue``
``store_files``  its files
``etcd``         the store for brokers on many hosts, by an ``etcd_client``
``leases``       who is alive; on one host in ``lease_files``, else in ``etcd_leases``
"""
