"""The rules of the log, pure: no clock, no I/O, no thread, no randomness. Imports nothing of ours.

``ids``                 distinct types for numbers that must not be mixed up
``isolation``           which offsets a consumer may see, from the bounds of a partition
``entries``             what the entries table means: layout, validity, look-ups
``replica``             the core of a replica: events in, effects out
``effects``             what the core asks of those who keep it
``leader``              what an append and a replicated entry do to LEO, HW and LSO
``progress``            what a leader knows of its followers: in-sync replicas, high watermark
``follower``            what a follower does with its leader's answer, which frames it takes
``epochs``              where leader epochs begin and end, and what two logs share
``waiting``             who waits for a bound to pass an offset
``admission``           which records of a message are kept when one of them is bad
``producers``           duplicates, order and fencing of a partition's producers
``partition_record``    who leads a partition, in which epoch, and who is in sync
``election``            every change of a partition's record
``assignment``          which brokers get the replicas of a partition
``joins``               a leader's promises that a transaction may write to its partition
``undecided``           which transactions hold a partition's last stable offset back
``transactions``        a transaction's life as a table of states and events, and its record
``transaction_events``  what each event makes of the record
``announcements``       which consumers' positions a commit is going to move
``sinks``               what only sinks ask of a transaction
``extents``             which offsets each transaction of a partition spans
``atomic``              cuts that no transaction lies on both sides of
"""
