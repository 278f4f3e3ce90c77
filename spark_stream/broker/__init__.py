"""One broker process. It ties the log, the metadata and the wire together.

The process:

``process``        start, serve, stop
``config``         what an operator may set
``lock``           one broker a directory, and how clients find it
``stores``         opens the directory with the metadata store that belongs to it
``activity``       whether anybody uses the broker
``memory``         how much memory batches may take; ``spare_memory`` gives free memory back

What it leads:

``host``           the topics that this broker leads, with their partitions
``partition``      one partition: the shell around its core, with the lock and the log
``callers``        who waits for a partition: appends and reads
``inspection``     which records of a batch are bad, for whole batches
``outcomes``       what a partition answers to an append
``refusals``       what the rules refuse of a batch, as the errors that users get
``housekeeping``   which partitions are looked after in a round

What other brokers have copies of:

``replication``    the streams on which entries go from leaders to followers

What takes several steps:

``driver``         drives scripts; ``step_table`` says what each step does, ``peers`` takes steps to
                   other brokers, ``steps`` are the steps as they travel
``topics``         topics made, altered and deleted
``transactions``   transactions as the broker looks after them by itself

Calls:

``service``        the Flight service: from calls to the functions that serve them
``appending``      a DoPut; ``append_queues``: its batches whose partitions are held; ``append``:
                   one batch up to its acknowledgement, ``joining``: one of a transaction
``fetching``       a DoGet; ``waiting``: the fetches that wait for records
``actions``        a DoAction; ``topic_actions`` and ``transaction_actions`` carry it out
``here``           what actions act on
``keepalive``      ends the connections of clients that have stopped
"""
