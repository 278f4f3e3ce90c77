"""The rules of the log, pure: no clock, no I/O, no thread, no randomness.

``ids``           distinct types for numbers and names
``isolation``     which offsets a consumer may see, its lag, and the state of a reader
``entries``       the entries table: its layout, validity and look-ups, and the states of records
``pruning``       batches without rows for a filter, by the min/max statistics of their columns

Folders, each of which imports only those above it:

``control``       the leader of a partition, its replicas and its ISR
``replication``   replication between a leader and its followers, leader epochs, lineages
``partition``     the core of a replica, with its high watermark, producers and transactions
``transactions``  a transaction's life, beyond one partition

``lakes``         definitions of lakes, and the offsets below which tables have all records
``groups``        consumer groups: the assignment of partitions to members, and positions
"""
