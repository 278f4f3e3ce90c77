"""Writing: records reach the leader once, in order, and acknowledged.

``producer``       ``Producer``: the public face of the other modules
``transactional``  ``TransactionalProducer``: writes that become visible together or never
``batches``        conversion of records, tables and data frames to Arrow batches
``partitioner``    the partition of each key, for whole batches
``sender``         gathers records to batches, and passes them to the core
``buffer``         room for unsettled records, and the records that gather to a batch
``loop``           the producer's loop: it carries out the core's instructions and reports events
``core``           a producer's decisions and instructions, without threads, sockets and clocks
``lanes``          a partition's unanswered batches: sequences, window, stream, retries
``promises``       the futures of writes
"""
