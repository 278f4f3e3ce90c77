"""The stream of replication between two brokers: entries go out, acknowledgements come back.

A follower opens one stream to each broker that leads partitions of which it has copies;
``wire.replication_messages`` has the messages.

``partitions``     what the stream needs of a partition, at its leader and at its follower
``settings``       how much may be under way, and when a silent peer counts as dead
``send_queue``     whose entries the leader sends next
``leader_core``    the rules of the leader's end of a stream
``leader_stream``  its shell, and all of them in a broker
``follower_core``  the rules by which a broker follows one leader
``fetchers``       their shells, one for each leader
``lines``          a follower's connection to its leader
``background``     where the shells do what takes time: they have no threads
"""
