"""The Python client: producers, consumers, administration. Knows ``wire``, not the broker.

``writing/``       how records get to the leader
``reading/``       how records get from the leader to the reader
``connecting/``    how a broker is found, started and called
``log``            ``connect()`` and the handle it returns
``topics``         topics, and what the client caches of them
``consumers``      consumers' names, and where each reads
``sessions``       heartbeats of named consumers and queries
``groups``         a member of a consumer group, and its heartbeats
``transactions``   the broker's actions for transactions and positions
``leaders``        partitions as their leaders describe them, and what is held back there
``trends``         whether a consumer is stalled, falls behind or catches up
``moments``        moments as whole microseconds since 1970
``closing``        the base of what a ``with`` block closes
``values``         the values that calls return
"""
