"""The stream of replication between two brokers: entries go out, acknowledgements come back.

A follower opens one stream to each broker that leads partitions of which it has copies;
``wire.replication_messages`` has the messages.

``interfaces``     what the stream needs: partitions, at both ends, and threads for slow work
``settings``       how much may be under way, and when a silent peer counts as dead
``leader_core``    the rules of the leader's end of a stream, and whose entries it sends next
``leader_stream``  its shell, and all of them in a broker
``follower_core``  the rules by which a broker follows one leader
``fetchers``       their shells, one for each leader
``lines``          a follower's connection to its leader
``promises``       the promises of a broker not to lead
"""
