"""The store of a cluster's metadata.

``store``        the Protocol: records with versions, changed by compare-and-set
``sqlite``       the store for brokers on one host; its writers wait in a ``writer_queue``
``store_files``  its files
``leases``       who is alive; on one host in ``lease_files``
"""
