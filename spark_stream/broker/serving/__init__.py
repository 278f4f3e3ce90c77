"""The streams that a broker serves.

``serving``       the methods of the protocol, for clients and for other brokers
``throttling``    how quotas delay clients
``pool``          the threads that serve, and who uses them
``append_stream`` a stream of appends, from a frame to its acknowledgement; ``append_core``: its
                  order and its answers, without I/O; ``append_batch``: one batch of it
``fetching``      a fetch; ``fetch_task`` drives one, and lets it wait without a thread
``memory``        how much memory batches may take; it gives free memory back
"""
