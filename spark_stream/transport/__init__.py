"""Sockets under the protocol: one loop that waits for all of them, for clients and for brokers."""
