"""The metadata of a cluster: what all brokers must agree on. Knows ``consistency`` only.

``stores``        a room: the store that the records below are kept in, and leases

Records of the store:

``identity``      the cluster's id
``brokers``       who belongs to the cluster, and where each listens
``generations``   whether a broker may vouch for its logs when it starts
``topics``        topics, those that were removed included; ``left_overs``: files of such topics
``partitions``    who leads each partition, and where its replicas are
``controller``    which broker elects leaders
``transactions``  transactions
``consumers``     named consumers, groups and queries that have a name, and their sessions
``numbers``       numbers that nobody else gets

Beside the store:

``view``          the cluster as a broker sees it: topics, partitions and brokers in memory
``followed``      the records with a prefix, in memory
``migration``     how the records of a stopped cluster get into another store
``backup``        copies of the store, and how one is put back
"""
