"""One partition of a broker: a log, the core of a replica, a lock, and waiters.

``partition``     the partition, made of the parts below
``state``         the state that these parts share under the partition's lock: its role, and the
                  results of the latest writes, by which a leader with a bad disk is replaced
``appends``       appends to the leader, after an inspection of each batch
``transactions``  joins and ends of transactions
``replication``   the followers of a leader, and the replica as a follower
``sessions``      the connected followers, and the recent batches in memory for them
``waiters``       pending appends and reads, and the work queued at the partition's lock
"""
