"""The memory of a gateway, which a client may leave at any time. The brokers have the state."""
