"""Looking at logs without changing anything, whether their broker runs or not.

``snapshot``   a disk that reads the real files, and keeps in memory what is written to it
``files``      the logs below a directory, and their segments as the files have them
``checking``   what is damaged in a log, and what opening it would do

Checks and reads are those of the broker. Recovery itself runs on a :class:`SnapshotDisk`, so what
it reports here is what it does to the same files in a broker.
"""
