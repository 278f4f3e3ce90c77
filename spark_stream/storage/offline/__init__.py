"""Read-only inspection of logs, whether their broker runs or not.

``snapshot``   a disk that reads the real files, and keeps writes in memory
``files``      the logs below a directory, and their segments, damage included
``checks``     the damage of a log, and the effect of an open

Checks and reads are those of the broker. Recovery itself runs on a :class:`SnapshotDisk`, so its
report here equals its effect on the same files in a broker.
"""
