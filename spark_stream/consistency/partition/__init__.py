"""The core of a replica: events in, effects out.

``replica``            the core; ``effects``: what its caller has to do after an event, and waiters
``progress``           a leader's followers: in-sync replicas, high watermark
``admission``          which records of a message are kept when one of them is bad
``producers``          duplicates, order and fencing of a partition's producers
``open_transactions``  the joins of transactions, and the last stable offset
``atomic_cuts``        cuts that have no transaction on both sides, and the extents of transactions
"""
