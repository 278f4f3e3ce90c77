"""The way of records from the leader to a reader, up to the bound of an isolation level.

``loop``       the reader's loop: it sends the core's fetches, receives, decodes
``fetch_core``  the decisions of the loop, without I/O; ``range_core``: those of one range
``ways``       the calls of the loop that may wait for a broker
``ranges``     bounded reads of one range, or of many small ones together
``fetching``   what is read and how: the request of a fetch, the decoding of its answer
``mapping``    reads from the mapped files of a leader on the same machine
``consumer``   ``Consumer``: it follows all partitions of its topics
``subscription``  topics of a consumer: a list, a pattern, chosen partitions
``named_positions``  the positions that a consumer stores under its name
``group_reader``  the partitions of a member of a group, and the positions that it stores
``polling``    the rest of a batch from one poll to the next
``columns``    the columns that a user sees
``records``    batches of a default-schema topic as record objects
``positions``  offsets of places such as "earliest" or a timestamp, and of atomic cuts
"""
