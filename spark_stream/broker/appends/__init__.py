"""Appends, from a frame of a client's stream to its acknowledgement.

``stream`` takes the frames and does the work, by the rules of ``core``; ``batch`` is the script of
one batch, and ``joining`` its way into a transaction. What a partition does with a batch is in
``broker.partition_appends``.
"""
