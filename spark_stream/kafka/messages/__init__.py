"""The requests and responses of Kafka's protocol, as plain values. No I/O.

``schemas`` reads Kafka's own schemas, ``reading`` and ``writing`` follow them, ``requests`` has the
requests that the gateway answers.
"""
