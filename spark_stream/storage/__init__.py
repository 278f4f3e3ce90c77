"""The log on disk. Knows ``consistency`` and nothing above it; one partition is one directory.

``settings``  what a topic may configure about its files and its replicas
``logs``      how the logs of a broker are opened and removed

Folders, each of which imports only those above it:

``format``    bytes: Arrow batches as IPC messages, the entries table, checksums
``disk``      the seam to the operating system
``segment``   one segment: a file of batches and a file of entries
``log``       the segments of a partition as one log
"""
