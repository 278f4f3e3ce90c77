"""The log on disk. One partition is one directory.

It does not import the cluster, the broker or the client.

``settings``  a topic's configuration of its files and replicas
``logs``      the logs of a broker: open, set aside, remove

Folders, each of which imports only those above it:

``format``    bytes: Arrow batches as IPC messages, the entries table, checksums
``disk``      the interface to the operating system
``segment``   one segment: a file of batches and a file of entries
``log``       the segments of a partition as one log
``offline``   inspection of logs without their broker
"""
