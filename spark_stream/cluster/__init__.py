"""The metadata of a cluster: what all brokers must agree on. Knows ``consistency`` only.

``store``         the Protocol: records with versions, changed by compare-and-set
``sqlite``        the store for brokers on one host; its writers take ``turns``
``keys``          ranges of keys

Records of the store:

``identity``      the cluster's id
``brokers``       who belongs to the cluster, and where each listens
``leadership``    the leader epoch of each broker
``topics``        topics, those that were removed included
``transactions``  transactions
``consumers``     named consumers' positions
``numbers``       numbers that nobody else gets

Beside the store:

``leases``        who is alive; on one host in ``lease_files``
"""
