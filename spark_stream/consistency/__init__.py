"""The rules of the log, pure: no clock, no I/O, no thread, no randomness. Imports nothing of ours.

``ids``           distinct types for numbers that must not be mixed up
``isolation``     which offsets a consumer may see, its lag, and the state of a reader
``entries``       the entries table: its layout, validity and look-ups, and the states of records
``pruning``       which batches cannot have a row for a filter, from their least and greatest values

Folders, each of which imports only those above it:

``control``       which broker leads a partition, which have its replicas, which are in sync
``replication``   what leader and follower do to their logs; epochs and lineages
``partition``     the core of a replica, with its high watermark, producers and transactions
``transactions``  a transaction's life, beyond one partition

``groups``        which member of a consumer group reads which partition, and stores its position
"""
