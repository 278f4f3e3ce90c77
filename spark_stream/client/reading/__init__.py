"""How records get from the leader to the reader, up to the bound of an isolation level.

``consumer``   ``Consumer``: follows all partitions of topics
``subscription``  what a consumer reads: topics, a pattern of them, chosen partitions
``named_positions``  the positions that a consumer stores under its name
``group_reader``  the partitions that a member of a group reads, and the positions that it stores
``polling``    what is kept from one poll to the next
``feed``       the fetching threads behind a consumer
``fetching``   bounded reads of one partition
``columns``    the columns a user sees, made from those the leader sends
``records``    batches of a default-schema topic as record objects
``positions``  "earliest", a timestamp, …: resolved to an offset per partition
``cuts``       atomic cuts, for read_atomic
"""
