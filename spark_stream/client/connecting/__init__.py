"""How a client finds a broker, starts one and calls it.

``shared``      the connections of this process, one for each broker
``link``        calls to one broker
``connection``  calls to a log, through any of its brokers, with retries and a deadline
``routes``      the leader of each partition, by the newest leader epoch seen
``router``      finds the leaders of partitions
``calls``       the few threads on which calls wait for brokers
``embedded``    the broker of a directory: find it, or start it
"""
