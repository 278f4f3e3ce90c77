"""The Python client: producers, consumers, administration. Knows ``wire``, not the broker.

``writing/``       how records get to the leader
``reading/``       how records get from the leader to the reader
``connecting/``    how a broker is found, started and called
``log``            ``connect()`` and the handle it returns
``topics``         topics, the client's cache of them, and offsets of places in them
``consumers``      consumers' names, and where each reads
``groups``         a member of a consumer group, and its heartbeats
``administration`` the cluster, transactions, users and permissions, for operators
``leaders``        answers of partition leaders: offsets, facts, and what is held back
``trends``         whether a consumer is stalled, falls behind or catches up
``options``        checks of options
``values``         the values that calls return, and times
"""
