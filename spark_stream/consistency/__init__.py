"""The rules of the log, pure: no clock, no I/O, no thread, no randomness. Imports nothing of ours.

``isolation``  which offsets a consumer may see, from the bounds of a partition
``entries``    what the entries table means: layout, validity, look-ups
``leader``     what an append and a replicated entry do to LEO, HW and LSO
``admission``  which records of a message are kept when one of them is bad
"""
