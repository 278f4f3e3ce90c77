"""The metadata of a cluster: what all brokers must agree on. Knows ``consistency`` only.

``stores``        a room: the store that the records below are kept in, and leases

Records of the store:

``brokers``       the brokers and where each listens, the controller, the cluster's id and secret
``generations``   whether a broker may vouch for its logs when it starts
``topics``        topics, and what may be left of removed ones
``partitions``    who leads each partition, and where its replicas are
``transactions``  transactions, and numbers that nobody else gets
``consumers``     named consumers, groups and queries that have a name, and their sessions
``access``        users, tokens, rules and quotas

Beside the store:

``view``          the cluster as a broker sees it: topics, partitions and brokers in memory
``backup``        copies of the store, how one is put back, and moves to another store
"""
