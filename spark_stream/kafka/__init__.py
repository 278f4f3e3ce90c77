"""Kafka's protocol in front of a cluster: a gateway, which is a client of the brokers.

``records`` converts record batches to Arrow and back. It has no I/O.
"""
