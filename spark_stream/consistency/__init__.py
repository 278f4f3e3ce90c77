"""The rules of the log, pure: no clock, no I/O, no thread, no randomness. Imports nothing of ours.

``ids``           distinct types for numbers that must not be mixed up
``isolation``     which offsets a consumer may see, from the bounds of a partition
``entries``       what the entries table means: layout, validity, look-ups
``measures``      what a range of a log holds, from its entries table
``pruning``       which batches cannot have a row for a filter, from their least and greatest values

Rooms, each of which imports only those above it:

``control``       who leads a partition, who has its replicas, who is in sync
``replication``   what leader and follower do to their logs; epochs and lineages
``partition``     the core of a replica, with its high watermark, producers and transactions
``transactions``  a transaction's life, beyond one partition
"""
