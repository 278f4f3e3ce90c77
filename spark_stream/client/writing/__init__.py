"""How records get to the leader: once, in order, acknowledged.

``producer``       ``Producer``: the public face of the other modules
``transactional``  ``TransactionalProducer``: writes that become visible together or never
``frames``         data frames of any library, as Arrow of the topic's types
``batches``        what callers pass to a producer, converted to what can be sent
``pending``        records given one by one, until they are a batch
``partitioner``    which partition a key goes to, for whole batches
``loop``           the producer's loop: it carries out the core's instructions and reports events
``sender``         gathers what a producer has taken, and passes it to the core
``buffer``         how much is taken and not settled, and callers that wait for room
``core``           a producer's decisions, without threads, sockets and clocks
``instructions``   the core's instructions to the loop
``lanes``          a partition's unanswered batches: sequences, window, stream, what is sent again
``promises``       the futures of what was written
``outcomes``       the futures of records that were sent one by one and batched
"""
