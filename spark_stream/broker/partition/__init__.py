"""One partition of a broker: a log, the rules of a replica, a lock, and who waits.

``partition``     the partition, made of the parts below
``state``         what these parts share, under the partition's lock: its role, and whether its
                  disk is slow or full, so that another broker should lead
``appends``       appends to the leader, after an inspection of each batch
``transactions``  joins and ends of transactions
``replication``   what a leader gives its followers, and what a replica takes from its leader
``sessions``      the followers that are connected, and batches that they do not have yet, in memory
``waiters``       who waits: appends, reads, and work for the holder of the partition's lock
"""
