"""Kafka's protocol in front of a cluster: a gateway, which is a client of the brokers.

``records``         record batches to Arrow and back, without I/O
``messages``        requests and answers as bytes, by Kafka's schemas
``connection``      the bytes of a connection as requests, and answers as bytes
``gateway``         the process: connections and their threads
``handlers``        the handler of each request: ``metadata``, ``reading``, ``writing``, ``groups``,
                    ``transactions``, ``administration``
``calls``           a request with everything that its handler needs
``logins``          the users of connections, and ``producers`` with their writers
``memory``          the members and transactions that use this gateway
``peers``           the other gateways
``typed``           topics with other columns than Kafka's
``refusals``        Kafka's error codes
``counts``          metrics
"""
