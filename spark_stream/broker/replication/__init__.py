"""The stream of replication between two brokers: entries go out, acknowledgements come back.

A follower opens one stream to each broker that leads partitions of which it has copies. What
travels on it: ``wire.replication_messages``.

``partitions``     what the stream needs of a partition, at its leader and at its follower
``settings``       how much may be under way, and when a silent peer counts as dead
``turns``          whose entries the leader sends next
``leader_stream``  the leader's end of a stream; ``leading``: all of them in a broker
``following``      one partition at its follower: sessions, and appends that take long
``fetcher``        the follower's end of a stream; ``fetchers``: all of them in a broker
"""
