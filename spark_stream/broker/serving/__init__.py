"""The streams that a broker serves.

``serving``       the methods of the protocol, for clients and for other brokers
``throttling``    delays of clients by their quotas
``pool``          the threads that serve, and the counts of their use
``append_stream`` a stream of appends, from a frame to its acknowledgement
``append_core``   the order and the answers of such a stream, without I/O
``append_batch``  one batch of such a stream
``fetching``      a fetch, which ``fetch_task`` runs and lets wait without a thread
``memory``        the memory limit for batches, and the return of free memory to the system
"""
