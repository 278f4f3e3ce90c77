"""One partition of a broker: a log, the rules of a replica, a lock, and who waits.

``partition``     the partition, made of the parts below
``state``         what these parts share, under the partition's lock
``appends``       appends to the leader; ``inspection``: which records of a batch are bad
``transactions``  joins and ends of transactions
``outcomes``      answers to an append
``role``          how a replica takes its role from the partition's record
``following``     what a replica takes from its leader
``followers``     what a leader gives its followers; ``sessions``: the followers that are connected
``recent``        batches that followers do not have yet, in memory
``callers``       who waits: appends and reads
``lock``          the partition's lock, and work that is left to its holder
``fitness``       whether a leader's disk is slow or full, so that another one should lead
"""
