"""The Python client: producers, consumers, administration. Knows ``wire``, no broker's inside.

``log``          ``connect()`` and the handle it returns
``connection``   calls to a broker, with retries and a deadline
``embedded``     the broker of a directory: found, or started
``topics``       what the client remembers of topics
``positions``    "earliest", a timestamp, …: to an offset per partition
``columns``      the columns a user sees, made from those the leader sends
``partitioner``  which partition a key goes to, for whole batches
``fetching``     bounded reads of one partition
``appending``    one stream of appends, its acknowledgements, its futures
``promises``     the futures of what was written
``sockets``      how to give up a write that nobody reads
``pending``      records given one by one, until they are a batch
``producer``     ``Producer``: the above put together
``consumer``     ``Consumer``: all partitions of topics, followed
``closing``      what a ``with`` block closes
``values``       what calls return
"""
