"""The core of a replica. It takes events and returns effects.

``replica``            the core
``effects``            the effects that its caller carries out, and the waiting reads and appends
``progress``           a leader's followers: in-sync replicas, high watermark
``admission``          the records of a message that are kept if one of them is invalid
``producers``          duplicates, order and fencing of a partition's producers
``open_transactions``  the joins of transactions, and the last stable offset
``atomic_cuts``        cuts that no transaction straddles, and the extents of transactions
"""
