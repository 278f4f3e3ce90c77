"""Connections of a client: it finds a broker, or starts one, and calls it.

``access``      credentials and TLS: from options, environment or a profile
``link``        calls to one broker, over a connection that the process shares
``connection``  calls to a log, through any of its brokers, with retries and a deadline
``routes``      the leader of each partition, by the newest leader epoch seen
``router``      finds the leaders of partitions
``threads``     the few threads on which calls wait for brokers
``embedded``    the broker of a directory: find it, or start it
"""
