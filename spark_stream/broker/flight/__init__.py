"""Arrow Flight for clients in other languages. A broker loads it only if ``flight_listen`` is set.

``facade``  the Flight server: DoPut appends, DoGet fetches, DoAction runs a call

No other folder imports this one, except ``broker.process``, which starts the server. Elsewhere are
only the setting ``flight_listen`` (``broker.config``, ``broker.__main__``,
``cli.commands.broker``), the server's address ``flight`` (``broker.actions.context``,
``broker.actions.cluster``, ``cluster.brokers``, ``wire.cluster_messages``), and ``ERROR_BYTES_MAX``
in ``wire.limits``.
"""
