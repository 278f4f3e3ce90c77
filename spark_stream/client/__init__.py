"""The Python client: producers, consumers, administration. Knows ``wire``, no broker's inside.

``log``            ``connect()`` and the handle it returns
``connection``     calls to a broker, with retries and a deadline
``embedded``       the broker of a directory: found, or started
``topics``         what the client remembers of topics
``positions``      "earliest", a timestamp, …: to an offset per partition
``columns``        the columns a user sees, made from those the leader sends
``partitioner``    which partition a key goes to, for whole batches
``cuts``           where a read_atomic reader may stand
``frames``         data frames of any library, as Arrow of the topic's types
``fetching``       bounded reads of one partition
``lanes``          a partition's unanswered batches: sequences, the window, what is sent again
``appending``      one stream of appends and its acknowledgements
``delivery``       one topic's batches on their way, over as many streams as it takes
``sender``         what a producer has taken: gathered, counted, sent, given up in time
``buffer``         how much is taken and not settled, who waits, what failed
``promises``       the futures of what was written
``sockets``        how to give up a write that nobody reads
``pending``        records given one by one, until they are a batch
``producer``       ``Producer``: the above put together
``transactions``   the broker's actions on transactions and positions
``transactional``  ``TransactionalProducer``: writes that become visible together or never
``feed``           the fetching threads behind a consumer
``consumer``       ``Consumer``: all partitions of topics, followed
``closing``        what a ``with`` block closes
``values``         what calls return
"""
