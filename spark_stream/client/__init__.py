"""The Python client: producers, consumers, administration. It imports ``wire``, not the broker.

``writing/``       producers: records to the leaders
``reading/``       consumers and reads: records from the leaders
``connecting/``    connections: a broker is found, started and called
``log``            ``connect()`` and the handle it returns
``topics``         topics, the client's cache of them, and offsets of places in them
``consumers``      named consumers and groups: lists, positions, resets
``groups``         a member of a consumer group, and its heartbeats
``administration`` the cluster, transactions, users and permissions, for operators
``leaders``        answers of partition leaders: offsets, facts, records held back
``trends``         whether a consumer is stalled, falls behind or catches up
``options``        checks of options
``values``         the values that calls return, and times
"""
