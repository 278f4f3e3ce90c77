"""Messages and limits that client and broker share. Control messages are JSON, data is Arrow.

``messages``       the base of all messages, and of the calls
``topic_messages``, ``cluster_messages``, ``access_messages``  calls
``transaction_messages``, ``consumer_messages``  calls
``calls``          the table of all calls, made from their classes
``stream_messages``, ``replication_messages``  the streams of appends, fetches and replication
``limits``         the limits that several modules share, each with its reason
``addresses``      the addresses of brokers
``allocator``      the memory of a process
"""
