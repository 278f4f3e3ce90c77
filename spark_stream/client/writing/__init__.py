"""How records get to the leader: once, in order, acknowledged.

``producer``       ``Producer``: the public face of the other modules
``transactional``  ``TransactionalProducer``: writes that become visible together or never
``batches``        what callers pass to a producer, data frames too, converted to Arrow batches
``partitioner``    which partition a key goes to, for whole batches
``sender``         gathers what a producer has taken, and passes it to the core
``buffer``         room for unsettled records, and the records that gather to a batch
``loop``           the producer's loop: it carries out the core's instructions and reports events
``core``           a producer's decisions and instructions, without threads, sockets and clocks
``lanes``          a partition's unanswered batches: sequences, window, stream, retries
``promises``       the futures of what was written
"""
