"""Arrow Flight for clients in other languages. A broker loads it only if ``flight_listen`` is set.

``facade``  the Flight server: DoPut appends, DoGet fetches, DoAction runs a call

No other folder imports this one, except ``broker.process``, which starts the server. Elsewhere are:

* the setting ``flight_listen`` (``broker.config``, ``broker.__main__``, ``cli.commands.broker``)
* the server's address ``flight`` (``broker.actions.context``, ``broker.actions.cluster``,
  ``cluster.brokers``, ``wire.cluster_messages``)
* parts that only the facade uses: ``ERROR_BYTES_MAX`` (``wire.limits``), ``ReadTopic``
  (``wire.stream_messages``), and in ``broker.serving`` the arguments ``partition`` and ``start`` of
  ``AppendStream``, ``blocking_answers``, and streams of fetches without ``encoded``
"""
