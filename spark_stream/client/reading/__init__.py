"""Reading: records from the leader to a reader, up to the bound of an isolation level.

``loop``        the reader's loop: it sends the core's fetches, receives, decodes
``core``        the decisions of the loop, without I/O: within one range, and among many
``dispatch``    finds the brokers for fetches, and connects to them, on threads that may wait
``fetching``    sources, the decoding of answers, and reads from mapped files on the same machine
``columns``     the columns that a user sees
``ranges``      bounded reads: of one range, of many small ones together, of a topic as a table
``consumer``    ``Consumer``: it follows all partitions of its topics
``subscription``  topics of a consumer: a list, a pattern, chosen partitions
``named_reader``  the positions that a consumer stores under its name, and its heartbeats
``group_reader``  the partitions of a member of a group, and the positions that it stores
``records``     batches of a default-schema topic as record objects, and polls
"""
