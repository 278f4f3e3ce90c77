"""The replication stream between two brokers: entries one way, acknowledgements the other.

A follower opens one stream to each broker that leads partitions of which it has replicas.
``wire.replication_messages`` defines the messages.

``interfaces``     the requirements of the streams: partitions at both ends, and other threads
``settings``       limits of bytes in flight, heartbeats and timeouts
``leader_core``    the rules of the leader's end of a stream, and the queue of partitions to send
``leader_stream``  the shell of the leader's end, and all such streams of a broker
``follower_core``  the rules by which a broker follows one leader
``fetchers``       the shells of the follower's end, one for each leader
``lines``          a follower's connection to its leader
``promises``       the promises of a broker not to lead
"""
