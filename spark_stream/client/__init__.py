"""The Python client: producers, consumers, administration. Knows ``wire``, not the broker.

``writing/``       how records get to the leader
``reading/``       how records get from the leader to whoever asks
``connecting/``    how a broker is found, started and called
``log``            ``connect()`` and the handle it returns
``topics``         what the client remembers of topics
``consumers``      consumers' names: who reads where
``transactions``   the broker's actions on transactions and positions
``moments``        moments as whole microseconds since 1970
``closing``        what a ``with`` block closes
``values``         what calls return
"""
