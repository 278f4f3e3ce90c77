"""The rules of the log, pure: no clock, no I/O, no thread, no randomness. Imports nothing of ours.

``isolation``  which offsets a consumer may see, from the bounds of a partition
``entries``    what the entries table means: layout, validity, look-ups
``leader``     what an append and a replicated entry do to LEO, HW and LSO
``admission``  which records of a message are kept when one of them is bad
``producers``  duplicates, order and fencing of a partition's producers
``undecided``  which transactions hold a partition's last stable offset back
``transactions``  a transaction's life, as a table of states and events
``atomic``     cuts that no transaction lies on both sides of
"""
