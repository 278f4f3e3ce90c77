"""The metadata of a cluster, on which all brokers must agree. Of the rules it uses ``consistency``.

``stores``        a room: the store of the records below, and leases

Records of the store:

``brokers``       the brokers and where each listens, the controller, the cluster's id and secret
``generations``   generations of brokers' logs, with the evidence that the logs are complete
``topics``        topics, and the possible left-overs of removed ones
``partitions``    the leader, the ISR and the replicas of each partition
``transactions``  transactions, and unique numbers
``consumers``     named consumers, groups, named queries, and their sessions
``lakes``         lakes: their topics, locations and recorded progress
``access``        users, tokens, rules and quotas

Beside the store:

``view``          the cluster as a broker sees it: topics, partitions and brokers in memory
``backup``        backups of the store, restores, and moves to another store
"""
