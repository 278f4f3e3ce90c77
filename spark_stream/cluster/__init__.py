"""The metadata of a cluster: what all brokers must agree on. Knows ``consistency`` only.

``store``         the Protocol: records with versions, changed by compare-and-set
``sqlite``        the store for brokers on one host; its writers take ``turns``
``backup``        copies of that store, and how one is put back; ``store_files``: its files
``keys``          ranges of keys

Records of the store:

``identity``      the cluster's id
``brokers``       who belongs to the cluster, and where each listens
``vouching``      whether a broker may vouch for its logs when it starts
``topics``        topics, those that were removed included
``partitions``    who leads each partition, and where its replicas are
``controller``    which broker elects leaders
``transactions``  transactions
``consumers``     named consumers' positions
``queries``       queries that have a consumer's name
``numbers``       numbers that nobody else gets

Beside the store:

``view``          the cluster as a broker sees it: topics, partitions and brokers in memory
``leases``        who is alive; on one host in ``lease_files``
"""
