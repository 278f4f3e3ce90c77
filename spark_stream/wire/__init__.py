"""Messages and limits that client and broker share. Control messages are JSON, data is Arrow.

``messages``       the base of all messages, and of the calls
``topic_messages``, ``offset_messages``, ``cluster_messages``, ``access_messages``  calls
``transaction_messages``, ``consumer_messages``  calls
``calls``          the table of all calls, made from their classes
``append_messages``, ``fetch_messages``, ``replication_messages``  streams
``limits``         every limit in one place, with its reason
``allocator``      how a process gets and keeps its memory
"""
